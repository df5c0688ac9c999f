"""The published containers that our images are built on: ``images/bases.toml``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from steelyard.releases.manifest import ReleasedImage
from steelyard_base.exit_codes import CommandError, ExitCode
from steelyard_base.faults import sentences
from steelyard_base.strict import read_toml
from steelyard_constructs.hardware import Hardware

FILE = Path(__file__).resolve().parents[2] / "images" / "bases.toml"

_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")

Bases = Mapping[Hardware, ReleasedImage]
_BASES: TypeAdapter[Bases] = TypeAdapter(Bases)


def load_bases(path: Path = FILE) -> Bases:
    """The containers by hardware.

    Raises:
        CommandError: The file cannot be read, is not TOML, or breaks the schema; the message names every fault.
    """
    written = _read(path)
    for table in written.values():
        if isinstance(table, dict):
            table.pop("tag", None)
    try:
        bases = _BASES.validate_python(written)
    except ValidationError as error:
        raise CommandError(
            f"the file of base images {path} is refused:\n{sentences(error)}", code=ExitCode.USAGE
        ) from error
    if absent := [hardware.value for hardware, base in bases.items() if base.repository is None]:
        raise CommandError(
            f"the file of base images {path} is refused: {', '.join(absent)} has no repository",
            code=ExitCode.USAGE,
            hint='Say where AWS publishes it: repository = "llama-cpp", or "llama-cpp-arm64" for graviton.',
        )
    return bases


def base_tags(path: Path = FILE) -> Mapping[Hardware, str]:
    """The tags that the digests of a valid file were taken from, by hardware, where it names them.

    Raises:
        CommandError: The file cannot be read, or a tag is none.
    """
    tags = {name: table["tag"] for name, table in _read(path).items() if isinstance(table, dict) and "tag" in table}
    for name, tag in tags.items():
        if not isinstance(tag, str) or not _TAG.fullmatch(tag):
            raise CommandError(
                f"the file of base images {path} is refused: {name}.tag is {tag!r}, which is no tag of a registry",
                code=ExitCode.USAGE,
            )
    return {Hardware(name): tag for name, tag in tags.items()}


def _read(path: Path) -> dict[str, Any]:
    return read_toml(path, what="the file of base images", code=ExitCode.USAGE)


def base_for(bases: Bases, hardware: Hardware) -> ReleasedImage:
    """The container for ``hardware``.

    Raises:
        CommandError: There is none; the message lists those that there are.
    """
    if hardware not in bases:
        known = ", ".join(sorted(each.value for each in bases)) or "none"
        raise CommandError(
            f"there is no base image for {hardware.value}; the file of base images has {known}", code=ExitCode.USAGE
        )
    return bases[hardware]

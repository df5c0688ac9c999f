"""The published containers that our images are built on: ``images/bases.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from switchyard.exit_codes import CommandError, ExitCode
from switchyard.faults import sentences
from switchyard.releases.manifest import ReleasedImage
from switchyard_constructs.hardware import Hardware

FILE = Path(__file__).resolve().parents[2] / "images" / "bases.toml"

Bases = Mapping[Hardware, ReleasedImage]
_BASES: TypeAdapter[Bases] = TypeAdapter(Bases)


def load_bases(path: Path = FILE) -> Bases:
    """The containers by hardware.

    Raises:
        CommandError: The file cannot be read, is not TOML, or breaks the schema; the message names every fault.
    """
    try:
        return _BASES.validate_python(tomllib.loads(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        raise CommandError(
            f"the file of base images {path} is refused:\n{sentences(error)}", code=ExitCode.USAGE
        ) from error
    # Not TOML, not UTF-8, a number with more digits than Python reads, or lists too deep.
    except (OSError, ValueError, RecursionError) as error:
        raise CommandError(f"cannot read the file of base images {path}: {error}", code=ExitCode.USAGE) from error


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

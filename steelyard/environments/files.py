"""The environment files: read, named, and followed to the environments that a release is promoted to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from steelyard.environments.schema import Environment
from steelyard_base.exit_codes import CommandError, ExitCode
from steelyard_base.faults import sentences
from steelyard_base.strict import read_toml

FOLDER = Path(__file__).resolve().parents[2] / "environments"
DEFAULT = "dev"
"""The environment that is meant when none is named."""


def parse_environment(data: Mapping[str, Any], *, name: str, source: str) -> Environment:
    """The environment ``name`` from the content of its file.

    Args:
        data: What the TOML file holds.
        name: Name of the environment; it is not in the file.
        source: The file, for messages.

    Raises:
        CommandError: It breaks the schema, or a combination cannot work; the message has a sentence for each fault.
    """
    try:
        if "name" in data:
            raise CommandError(
                f"the environment file {source} has a name; the name is that of the file: remove it",
                code=ExitCode.USAGE,
            )
        return Environment.model_validate({"name": name, **data})
    except ValidationError as error:
        raise CommandError(
            f"the environment file {source} is refused:\n{sentences(error)}", code=ExitCode.USAGE
        ) from error


def load_environment(name: str = DEFAULT, *, folder: Path = FOLDER) -> Environment:
    """The environment in ``folder`` called ``name``, or the one of a file of its own.

    Args:
        name: Its name, or a path that ends in ``.toml``.
        folder: Where environments are looked for by name.

    Raises:
        CommandError: There is no such file, it is not TOML, or its content is refused.
    """
    path = folder / f"{name}.toml"
    if name.endswith(".toml"):
        path = Path(name)
        name = path.stem
    if not path.exists():
        raise CommandError(
            f"there is no environment {name!r}: {path} does not exist",
            code=ExitCode.USAGE,
            hint=f"Known environments: {', '.join(environment_names(folder)) or 'none'}.",
        )
    data = read_toml(path, what="the environment file", code=ExitCode.USAGE)
    return parse_environment(data, name=name, source=str(path))


def write_environment(environment: Environment, folder: Path) -> Path:
    """Write an environment as the file that ``load_environment`` reads as the same, and return its path."""
    fields = environment.model_dump(mode="json", exclude={"name"})
    lines = [f"{_toml(key)} = {_toml(value)}\n" for key, value in fields.items() if value is not None]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{environment.name}.toml"
    path.write_text("".join(lines), encoding="utf-8")
    return path


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        pairs = [f"{_toml(key)} = {_toml(each)}" for key, each in value.items() if each is not None]
        return f"{{ {', '.join(pairs)} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    # TOML's strings, numbers and booleans are written as JSON's are, but for one character.
    return json.dumps(value).replace("\x7f", "\\u007f")


def promotion_targets(environment: Environment, *, folder: Path = FOLDER) -> tuple[Environment, ...]:
    """The environments that a release of this one is promoted to, by ``promotes_to``, theirs included, each once.

    Raises:
        CommandError: A file is missing or refused, or the way leads back to where it began.
    """
    found: dict[str, Environment] = {}
    waiting = list(environment.promotes_to)
    while waiting:
        name = waiting.pop(0)
        if name == environment.name:
            raise CommandError(
                f"promotes_to of the environment {environment.name!r} leads back to it; remove one of the steps",
                code=ExitCode.USAGE,
            )
        if name not in found:
            found[name] = load_environment(name, folder=folder)
            waiting += found[name].promotes_to
    return tuple(found.values())


def environment_names(folder: Path = FOLDER) -> list[str]:
    """Names of the environments in ``folder``, in alphabetical order."""
    return sorted(path.stem for path in folder.glob("*.toml"))

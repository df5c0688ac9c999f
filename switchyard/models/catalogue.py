"""The model catalogue: one TOML file per pinned model, in ``models/``.

The files are found beside this package. In a checkout ``switchyard/data/models`` links to ``models/``; an installed
package carries copies of them.
"""

from __future__ import annotations

import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, HttpUrl, ValidationError, model_validator

from switchyard.exit_codes import CommandError, ExitCode

DATA = Path(__file__).parent.parent / "data"
MODELS = DATA / "models"

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Bytes = Annotated[int, Field(gt=0)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Licence(_Strict):
    """What the weights may be used for; ``url`` holds the text."""

    name: str
    url: HttpUrl


class ModelFile(_Strict):
    """One file of a model. ``size`` is in bytes, and None where it has not been verified."""

    role: Literal["model"]
    name: FileName
    sha256: Sha256
    size: Bytes | None = None


class PackagePart(_Strict):
    """One wheel on a Python package index, and the member of it that is a piece of the file."""

    package: FileName
    version: str
    wheel: FileName
    wheel_size: Bytes
    sha256: Sha256
    member: str
    member_size: Bytes


class PythonPackages(_Strict):
    """A file cut into pieces that Python packages carry; the pieces in order are the file."""

    kind: Literal["python-packages"]
    upstream: HttpUrl
    parts: Annotated[tuple[PackagePart, ...], Field(min_length=1)]


class HuggingFace(_Strict):
    """Files of one revision of a repository on the Hugging Face hub."""

    kind: Literal["hugging-face"]
    repository: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+/[A-Za-z0-9._-]+$")]
    revision: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]


class CatalogueEntry(_Strict):
    """One pinned model: where it comes from, what it must hash to, and under which licence."""

    name: FileName
    summary: str
    notice: str | None = None
    licence: Licence
    files: Annotated[tuple[ModelFile, ...], Field(min_length=1, max_length=1)]
    source: Annotated[PythonPackages | HuggingFace, Field(discriminator="kind")]

    @model_validator(mode="after")
    def _parts_make_the_file(self) -> CatalogueEntry:
        if isinstance(self.source, PythonPackages):
            total = sum(part.member_size for part in self.source.parts)
            if total != self.file.size:
                raise ValueError(f"the parts hold {total} bytes, and the file {self.file.name} has {self.file.size}")
        return self

    @property
    def file(self) -> ModelFile:
        """The GGUF file."""
        return self.files[0]


def read_entry(path: Path) -> CatalogueEntry:
    """The catalogue entry in one TOML file.

    Raises:
        CommandError: The file cannot be read, is not TOML, or breaks the schema; the message names file and field.
    """
    try:
        entry = CatalogueEntry.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CommandError(f"cannot read the catalogue file {path}: {error}", code=ExitCode.MODEL) from error
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'entry'}: {e['msg']}" for e in error.errors())
        raise CommandError(f"the catalogue file {path} is wrong: {faults}", code=ExitCode.MODEL) from error
    if entry.name != path.stem:
        raise CommandError(f"{path} names its model {entry.name!r}; the file must be called {entry.name}.toml")
    return entry


@lru_cache
def catalogue(folder: Path = MODELS) -> dict[str, CatalogueEntry]:
    """All pinned models by name, in alphabetical order.

    Raises:
        CommandError: The folder is not there, or an entry in it is wrong.
    """
    if not folder.is_dir():
        raise CommandError(
            f"the model catalogue is not at {folder}",
            code=ExitCode.MODEL,
            hint="Install the package again, or check the repository out with symbolic links enabled.",
        )
    return {path.stem: read_entry(path) for path in sorted(folder.glob("*.toml"))}


def find(name: str) -> CatalogueEntry:
    """The entry called ``name``.

    Raises:
        CommandError: There is none; the message lists the names that exist.
    """
    entries = catalogue()
    if name not in entries:
        raise CommandError(
            f"there is no model {name!r} in the catalogue",
            code=ExitCode.MODEL,
            hint=f"Known models: {', '.join(entries)}. A GGUF file can be given by its path.",
        )
    return entries[name]


def example(name: str) -> Path:
    """Path of a file in ``examples/``, from a checkout or an installed package."""
    return DATA / "examples" / name

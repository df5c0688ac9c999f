"""``model-manifest.json``: what a model in an artifact bucket consists of. Its hash names the prefix that it lies in.

It is a function of the catalogue entry alone (and of a file's size, where the entry does not pin it), so that whoever
puts the model there (CodeBuild, the local cloud) arrives at the same bytes and the same prefix.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from steelyard.models.catalogue import (
    S3,
    Bytes,
    CatalogueEntry,
    Claims,
    FileName,
    HuggingFace,
    Licence,
    LocalFile,
    ModelFile,
    PythonPackages,
    Readout,
    model_file,
    require_one_model,
)
from steelyard_base.exit_codes import CommandError, ExitCode
from steelyard_base.faults import sentences
from steelyard_base.strict import Listed, Strict

FILE_NAME = "model-manifest.json"


class ManifestFile(ModelFile):
    """One file below the prefix."""

    size: Annotated[Bytes, Field(description="In bytes.")]


class FromFile(Strict):
    """The files were on the publisher's own machine."""

    kind: Literal["file"]


class ModelManifest(Strict):
    """A model's files in an artifact bucket and what is claimed of them."""

    format: Annotated[Literal["steelyard-model/2"], Field(description="Version of this format.")]
    name: Annotated[FileName, Field(description="The model's name in the catalogue.")]
    licence: Annotated[Licence, Field(description="Name and URL of its licence.")]
    readout: Annotated[Readout | None, Field(description="The readout recommended for decisions.")] = None
    claims: Annotated[Claims, Field(description="What the GGUF file says of itself, checked before publishing.")]
    files: Annotated[Listed[ManifestFile], Field(min_length=1, description="Role, name, size and sha256 of each.")]
    source: Annotated[
        PythonPackages | HuggingFace | S3 | FromFile,
        Field(discriminator="kind", description="Where the files were fetched."),
    ]

    @model_validator(mode="after")
    def _one_model(self) -> ModelManifest:
        require_one_model(self.files)
        return self

    @property
    def file(self) -> ManifestFile:
        """The GGUF file that llama.cpp is given: the weights, or their first shard."""
        first = model_file(self.files).name
        return next(file for file in self.files if file.name == first)

    @property
    def total_bytes(self) -> int:
        """Size of all files together; the manifest itself does not count."""
        return sum(file.size for file in self.files)

    def encode(self) -> bytes:
        """JSON in UTF-8 with sorted keys and one newline at the end; what is not known is left out."""
        content = self.model_dump(mode="json", exclude_none=True)
        return (json.dumps(content, sort_keys=True, indent=2, ensure_ascii=False) + "\n").encode()


def read_manifest(manifest: bytes) -> ModelManifest:
    """A manifest, from its bytes.

    Raises:
        CommandError: They are no manifest, or not in the one form that a manifest is written in.
    """
    try:
        read = ModelManifest.model_validate(json.loads(manifest, object_pairs_hook=_unique))
    except ValidationError as error:
        message = f"this is not a {FILE_NAME}:\n{sentences(error)}"
        raise CommandError(message, code=ExitCode.MODEL) from error
    except (ValueError, RecursionError) as error:
        raise CommandError(f"this is not a {FILE_NAME}: {error}", code=ExitCode.MODEL) from error
    if read.encode() != manifest:
        raise CommandError(
            f"this {FILE_NAME} of {read.name} is not written as Steelyard writes it, so its hash would not name it",
            code=ExitCode.MODEL,
            hint=f"Make it again: steelyard model package {read.name} --to FOLDER",
        )
    return read


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError(f"a key is there twice, one of {', '.join(name for name, _ in pairs)}")
    return found


def manifest_of(entry: CatalogueEntry, sizes: Mapping[str, int] | None = None) -> ModelManifest:
    """The manifest of a model.

    Args:
        entry: The model.
        sizes: Size in bytes of each file that was fetched, by name; needed for those that the catalogue does not pin.

    Raises:
        CommandError: A size is not known, or is not the pinned one.
    """
    source = entry.source
    return ModelManifest(
        format="steelyard-model/2",
        name=entry.name,
        licence=entry.licence,
        readout=entry.readout,
        claims=entry.claims,
        files=tuple(_with_size(file, (sizes or {}).get(file.name)) for file in entry.files),
        source=FromFile(kind="file") if isinstance(source, LocalFile) else source,
    )


def _with_size(file: ModelFile, size: int | None) -> ManifestFile:
    if file.size is not None and size is not None and file.size != size:
        raise CommandError(
            f"the file {file.name} has {size} bytes; the catalogue says {file.size}", code=ExitCode.MODEL
        )
    if (size := size or file.size) is None:
        raise CommandError(
            f"the catalogue does not say how large {file.name} is; give the size of the file that was fetched",
            code=ExitCode.MODEL,
        )
    return ManifestFile(role=file.role, name=file.name, sha256=file.sha256, size=size)


def model_manifest(entry: CatalogueEntry, sizes: Mapping[str, int] | None = None) -> bytes:
    """The bytes of ``manifest_of``."""
    return manifest_of(entry, sizes).encode()


def manifest_sha256(manifest: bytes) -> str:
    """Hash of a manifest, in hexadecimal digits."""
    return hashlib.sha256(manifest).hexdigest()


def model_prefix(entry: CatalogueEntry | ModelManifest, manifest: bytes) -> str:
    """Return the prefix of the model in an artifact bucket, ending in ``/``."""
    return f"models/{entry.name}/{manifest_sha256(manifest)}/"

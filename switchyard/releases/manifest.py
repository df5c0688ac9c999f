"""A release manifest: which model and which images are deployed, by digest. One JSON file in ``releases/``.

The same manifest goes from environment to environment; where each keeps its models and images is said in its file of
``environments/``. Everything here names content by its hash, so a manifest means the same in a year.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from switchyard.exit_codes import CommandError, ExitCode
from switchyard.faults import sentences
from switchyard.models.catalogue import Sha256
from switchyard_constructs.hardware import Architecture, Hardware
from switchyard_constructs.images import DLC_REPOSITORY, ImageReference
from switchyard_constructs.model_artifact import ModelArtifact

FOLDER = Path(__file__).resolve().parents[2] / "releases"
SAMPLE = "sample"
"""The release that is deployed when none is named."""

Kind = Literal["chat", "decision"]
ReleaseId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ReleasedModel(_Strict):
    """A model's files in an artifact bucket, below a key that holds their hash."""

    name: Annotated[str, Field(min_length=1, description="Name in the model catalogue.")]
    key: Annotated[str, Field(description="Where it lies in each bucket: a prefix ending in '/', or a '.tar.gz'.")]
    manifest_sha256: Annotated[Sha256, Field(description="Hash of its model-manifest.json; a part of the key.")]
    file: Annotated[str, Field(description="The GGUF file below the key.")]
    file_sha256: Annotated[Sha256, Field(description="Hash of that file.")]
    bytes: Annotated[int, Field(gt=0, description="Size of all its files, in bytes.")]

    @model_validator(mode="after")
    def _content_addressed(self) -> ReleasedModel:
        if self.manifest_sha256 not in self.key:
            raise ValueError(
                f"key {self.key!r} does not contain manifest_sha256 {self.manifest_sha256}, so other files could come "
                "to lie there; name the prefix after the manifest"
            )
        self.artifact(bucket="any")
        return self

    def artifact(self, *, bucket: str) -> ModelArtifact:
        """The model in one environment's ``bucket``."""
        return ModelArtifact(bucket=bucket, key=self.key, bytes=self.bytes, file=self.file)


class ReleasedImage(_Strict):
    """A container image by digest. The registry that holds it is the environment's business, or AWS's."""

    digest: Annotated[str, Field(description="sha256: and 64 hexadecimal digits.")]
    architecture: Annotated[Architecture, Field(description="x86_64 or arm64.")]
    cuda: Annotated[str | None, Field(description="Its CUDA version, such as 13.0; null without.")] = None
    llama_cpp: Annotated[str, Field(pattern=r"^b[0-9]+$", description="Build of llama.cpp in it, such as b10433.")]

    @field_validator("digest")
    @classmethod
    def _pinned(cls, value: str) -> str:
        ImageReference(repository="image", digest=value)
        return value

    def ours(self, *, repository: str, account: str | None) -> ImageReference:
        """Our image, in ``repository`` of the registry of ``account`` (None: the environment's own)."""
        return ImageReference(
            repository=repository,
            digest=self.digest,
            architecture=self.architecture,
            cuda=self.cuda,
            account=account,
        )

    def published(self, *, account: str | None, repository: str | None) -> ImageReference:
        """The published container, in AWS's registry of the region unless ``account`` names another."""
        return ImageReference.dlc(
            digest=self.digest,
            architecture=self.architecture,
            cuda=self.cuda,
            account=account,
            repository=repository or DLC_REPOSITORY,
        )


class Release(_Strict):
    """What is deployed, wherever it is deployed."""

    format: Annotated[Literal["switchyard-release/1"], Field(description="Version of this format.")]
    id: Annotated[ReleaseId, Field(description="Name of the release, and of its file.")]
    note: Annotated[str | None, Field(description="What a person should know about it.")] = None
    models: Annotated[
        Mapping[str, ReleasedModel],
        Field(min_length=1, description="By role. An endpoint serves the role called like its kind unless it says."),
    ]
    images: Annotated[
        Mapping[Kind, Mapping[Hardware, ReleasedImage]],
        Field(description="By kind of endpoint and hardware: our images for decisions, AWS's container for chat."),
    ]

    def model(self, role: str) -> ReleasedModel:
        """The model with this role.

        Raises:
            CommandError: There is none; the message lists the roles that there are.
        """
        if role not in self.models:
            raise CommandError(
                f"release {self.id!r} has no model for the role {role!r}; it has {', '.join(sorted(self.models))}",
                code=ExitCode.USAGE,
            )
        return self.models[role]

    def image(self, kind: Kind, hardware: Hardware) -> ReleasedImage:
        """The image for this kind of endpoint on this hardware.

        Raises:
            CommandError: There is none; the message lists those that there are.
        """
        images = self.images.get(kind, {})
        if hardware not in images:
            known = ", ".join(sorted(images)) or "none"
            raise CommandError(
                f"release {self.id!r} has no {kind} image for {hardware.value}; it has {known}", code=ExitCode.USAGE
            )
        return images[hardware]


def parse_release(data: Any, *, source: str) -> Release:
    """The release in ``data``, the content of a manifest.

    Args:
        data: What the JSON file holds.
        source: The file, for messages.

    Raises:
        CommandError: It breaks the schema; the message names every fault and its place.
    """
    try:
        return Release.model_validate(data)
    except ValidationError as error:
        raise CommandError(
            f"the release manifest {source} is refused:\n{sentences(error)}", code=ExitCode.USAGE
        ) from error


def load_release(reference: str = SAMPLE, *, folder: Path = FOLDER) -> Release:
    """The release called ``reference`` in ``folder``, or in the file at that path when it ends in ``.json``.

    Raises:
        CommandError: There is no such file, it is not JSON, or its content is refused.
    """
    is_path = reference.endswith(".json")
    path = Path(reference) if is_path else folder / f"{reference}.json"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        known = ", ".join(sorted(each.stem for each in folder.glob("*.json"))) or "none"
        raise CommandError(
            f"there is no release {reference!r}: {path} does not exist",
            code=ExitCode.USAGE,
            hint=f"Known releases: {known}. A manifest elsewhere can be given by its path, ending in .json.",
        ) from error
    except (OSError, ValueError) as error:
        raise CommandError(f"cannot read the release manifest {path}: {error}", code=ExitCode.USAGE) from error
    release = parse_release(data, source=str(path))
    if release.id != path.stem:
        raise CommandError(
            f"{path} holds the release {release.id!r}; the file must be called {release.id}.json", code=ExitCode.USAGE
        )
    return release

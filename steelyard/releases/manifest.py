"""A release manifest: which models and images are deployed, by hash, and what they were made of.

The same manifest goes from environment to environment; where each keeps its models and images is said in its file of
``environments/``. Everything here names content by its hash, so a manifest means the same in a year.

A release is called what its content hashes to, and its file in ``releases/`` is called so too. Whoever reads one
compares the three, so a manifest in which a byte of content has changed is not read as another release: it is refused.
"""

from __future__ import annotations

import hashlib
import json
import operator
import os
import re
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

from pydantic import Field, ValidationError, field_validator, model_validator

from steelyard.environments.schema import DecisionName
from steelyard.models.catalogue import Sha256
from steelyard_base.exit_codes import CommandError, ExitCode
from steelyard_base.faults import sentences
from steelyard_base.strict import Listed, Named, Strict
from steelyard_constructs.hardware import Architecture, Hardware
from steelyard_constructs.images import ImageReference
from steelyard_constructs.model_artifact import ModelArtifact
from steelyard_runtime.decisions.content import DecisionContent
from steelyard_runtime.whole_files import read_whole

FOLDER = Path(__file__).resolve().parents[2] / "releases"
FORMAT = "steelyard-release/1"
MOST_BYTES = 16 << 20
"""Bytes of a manifest."""
SAMPLE = "sample"
"""The release of the local cloud and of synthesis when none is named."""

ID_DIGITS = 32
"""Hexadecimal digits of the hash that name a release: 128 bits, which nobody can aim at."""

SHORTEST_PREFIX = 6
"""A release can be named by this many first digits, where they are those of one release only."""

MODEL_MANIFEST = "model-manifest.json"
IMAGE_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
"""The media type that SageMaker takes: one image for one platform, in Docker's format. It refuses OCI's."""

_SHARD = re.compile(r"-[0-9]{5}-of-[0-9]{5}\.gguf\Z")

# Not part of what a release is: its name follows from the rest, and a note is for people.
_NOT_CONTENT = ("id", "note")

Kind = Literal["chat", "decision"]
ReleaseId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
Commit = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
_DIGEST = r"^sha256:[0-9a-f]{64}$"
Digest = Annotated[str, Field(pattern=_DIGEST)]
FilePath = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*$")]


class ReleasedFile(Strict):
    """One file of a model."""

    name: Annotated[FilePath, Field(description="Its name below the model's prefix.")]
    role: Annotated[str, Field(min_length=1, description="What it is for, such as weights or tokenizer.")]
    size: Annotated[int, Field(gt=0, description="Size in bytes.")]
    sha256: Annotated[Sha256, Field(description="Hash of its bytes.")]


class ReleasedModel(Strict):
    """A model's files in an artifact bucket, below a key that holds their hash."""

    name: Annotated[str, Field(min_length=1, description="Name in the model catalogue.")]
    key: Annotated[str, Field(description="Where it lies in each bucket: a prefix that ends in '/'.")]
    manifest_sha256: Annotated[Sha256, Field(description="Hash of its model-manifest.json; a part of the key.")]
    file: Annotated[FilePath, Field(description="The GGUF file that is served; one of its files.")]
    files: Annotated[Listed[ReleasedFile], Field(min_length=1, description="Every file, as its manifest has it.")]

    @model_validator(mode="after")
    def _content_addressed(self) -> ReleasedModel:
        if self.manifest_sha256 not in self.key:
            raise ValueError(
                f"key {self.key!r} does not contain manifest_sha256 {self.manifest_sha256}, so other files could come "
                "to lie there; name the prefix after the manifest"
            )
        names = [each.name for each in self.files]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"the file {twice[0]!r} is named twice; name each once")
        if self.file not in names:
            raise ValueError(f"file {self.file!r} is not one of its files: {', '.join(names)}")
        self.artifact(bucket="any")
        if not self.key.endswith("/"):
            raise ValueError(f"key {self.key!r} is not a prefix: end it in '/'; a release has no archives")
        return self

    @property
    def weights_sha256(self) -> str:
        """Hash of the model as its server gives it: the file's, or that of the shards' hashes in their order."""
        shards = sorted(
            (each.name, each.sha256) for each in self.files if each.name == self.file or _SHARD.search(each.name)
        )
        hashes = [sha256 for _, sha256 in shards]
        return hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()

    @property
    def bytes(self) -> int:
        """Size of all files, in bytes."""
        return sum(each.size for each in self.files)

    def objects(self) -> dict[str, tuple[int, str]]:
        """Return what must lie below the key beside the manifest: size in bytes and sha256 by name."""
        return {each.name: (each.size, each.sha256) for each in self.files}

    def artifact(self, *, bucket: str) -> ModelArtifact:
        """The model in one environment's ``bucket``."""
        return ModelArtifact(bucket=bucket, key=self.key, bytes=self.bytes, file=self.file)


class Sbom(Strict):
    """List of an image's parts: a CycloneDX document in the artifact bucket."""

    key: Annotated[str, Field(min_length=1, description="Its key in each bucket.")]
    sha256: Annotated[Sha256, Field(description="Hash of its bytes.")]


class ImageBuildFacts(Strict):
    """The parts that one of our images was made of."""

    base_digest: Annotated[Digest, Field(description="The published container that it was built on.")]
    interface: Annotated[
        str,
        Field(
            pattern=r"^b[0-9]+$",
            description="The structs of llama.cpp that the engine declares, by the first build that has them.",
        ),
    ]
    sbom: Annotated[Sbom, Field(description="Its list of parts.")]
    critical_accepted: Annotated[
        bool,
        # Left out where false, so that what is shown of a release that knows no such field has its id too.
        Field(
            description="Whether critical findings of ECR's scan, if there were any, were accepted.",
            exclude_if=operator.not_,
        ),
    ] = False


class ReleasedImage(Strict):
    """A container image by digest. The registry that holds it is the environment's business, or AWS's."""

    digest: Annotated[
        str,
        # A validator says better than a pattern what is wrong; the schema has the pattern.
        Field(description="sha256: and 64 hexadecimal digits.", json_schema_extra={"pattern": _DIGEST}),
    ]
    repository: Annotated[
        str | None,
        # Left out where there is none, so that our images are written as they always were.
        Field(
            description="Repository of a published container in AWS's registry: AWS has one for each architecture. "
            "Null for our images, whose repository is the environment's.",
            exclude_if=operator.not_,
        ),
    ] = None
    architecture: Annotated[Named[Architecture], Field(description="x86_64 or arm64.")]
    cuda: Annotated[str | None, Field(description="Its CUDA version, such as 13.0; null without.")] = None
    llama_cpp: Annotated[str, Field(pattern=r"^b[0-9]+$", description="Build of llama.cpp in it, such as b10433.")]
    media_type: Annotated[
        str | None, Field(description="Of its manifest: one image, not an index. Null only in a sample.")
    ] = None
    build: Annotated[
        ImageBuildFacts | None, Field(description="What it was made of; null for a published container or a sample's.")
    ] = None

    @field_validator("digest")
    @classmethod
    def _pinned(cls, value: str) -> str:
        ImageReference(repository="image", digest=value)
        return value

    @field_validator("repository")
    @classmethod
    def _names_a_repository(cls, value: str | None) -> str | None:
        if value is not None:
            ImageReference(repository=value, digest=f"sha256:{'0' * 64}")
        return value

    @field_validator("media_type")
    @classmethod
    def _single(cls, value: str | None) -> str | None:
        if value is not None and value != IMAGE_TYPE:
            raise ValueError(
                f"{value!r} is not {IMAGE_TYPE}, and SageMaker takes no other; build with --provenance=false "
                "--sbom=false --output type=image,oci-mediatypes=false"
            )
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

    def published(self, *, account: str | None) -> ImageReference:
        """The published container, in AWS's registry of the region unless ``account`` names another.

        Raises:
            CommandError: It is one of our images.
        """
        if self.repository is None:
            raise CommandError(f"the image {self.digest} names no repository, so it is no published container")
        return ImageReference.dlc(
            repository=self.repository,
            digest=self.digest,
            architecture=self.architecture,
            cuda=self.cuda,
            llama_cpp=self.llama_cpp,
            account=account,
        )


class ReleasedHead(Strict):
    """A fitted head: its hash, and what it belongs to."""

    sha256: Annotated[Sha256, Field(description="Hash of its head.json, which names that of its numbers.")]
    model_sha256: Annotated[Sha256, Field(description="Hash of the model file that it was fitted on.")]
    llama_cpp: Annotated[
        str, Field(min_length=1, description="Build of llama.cpp that it was fitted with, such as b10433.")
    ]


class ReleasedDecision(Strict):
    """A registered decision: its contract, its head, and the files that a container gets of it."""

    name: Annotated[DecisionName, Field(description="`NAME@VERSION`.")]
    contract_sha256: Annotated[Sha256, Field(description="Hash of its contract.")]
    head: Annotated[ReleasedHead | None, Field(description="Its fitted head; null for letters.")] = None
    files: Annotated[Listed[ReleasedFile], Field(min_length=1, description="Its files.")]

    @property
    def content(self) -> DecisionContent:
        """Its name, and the hashes of what it says and knows."""
        return DecisionContent(self.name, self.contract_sha256, self.head.sha256 if self.head else None)

    def fits(self, builds: Collection[str]) -> bool:
        """Return whether one of these builds of llama.cpp can serve it: its head was fitted with it, or it has none."""
        return self.head is None or self.head.llama_cpp in builds


class Part(Strict):
    """A document that belongs to a release: its name, its version, and the hash of its bytes."""

    name: Annotated[str, Field(min_length=1, description="Which document it is.")]
    version: Annotated[str, Field(min_length=1, description="Its version, as it says itself.")]
    sha256: Annotated[Sha256, Field(description="Hash of its bytes.")]


class ReleaseSource(Strict):
    """The code that a release was built from."""

    commit: Annotated[Commit, Field(description="The last commit that changed what the builds are made of.")]
    dirty: Annotated[bool, Field(description="Whether there were changes that no commit has.")]


class Release(Strict):
    """Models and images that are deployed together, in whatever environment."""

    format: Annotated[Literal["steelyard-release/1"], Field(description="Version of this format.")]
    id: Annotated[
        ReleaseId,
        Field(description=f"First {ID_DIGITS} digits of the hash of its content; a name for a sample. Its file's too."),
    ]
    note: Annotated[str | None, Field(description="What a person should know about it; not part of the content.")] = (
        None
    )
    sample: Annotated[
        bool,
        Field(description="Its image digests are placeholders: for the local cloud and synthesis, refused on AWS."),
    ] = False
    source: Annotated[
        ReleaseSource | None, Field(description="The code that it was built from; null only in a sample.")
    ] = None
    models: Annotated[
        Mapping[str, ReleasedModel],
        Field(min_length=1, description="By role. An endpoint serves the role called like its kind unless it says."),
    ]
    images: Annotated[
        Mapping[Kind, Mapping[Named[Hardware], ReleasedImage]],
        Field(description="By kind of endpoint and hardware: our images for decisions, AWS's container for chat."),
    ]
    prompts: Annotated[
        Listed[Part],
        Field(description="The words that the server puts around a decision; the hash is of prompts with them."),
    ] = ()
    decision_contracts: Annotated[
        Listed[ReleasedDecision],
        Field(
            description="Registered decisions that its endpoints can serve; one once for each build of llama.cpp that "
            "it has a head for."
        ),
    ] = ()
    calibrations: Annotated[Listed[Part], Field(description="Calibrations; none exist yet.")] = ()
    evaluation_reports: Annotated[Listed[Part], Field(description="Evaluation reports; none exist yet.")] = ()

    @model_validator(mode="after")
    def _complete(self) -> Release:
        for kind, images in self.images.items():
            for hardware, image in images.items():
                if (image.repository is None) == (kind == "chat"):
                    raise ValueError(
                        f"images.{kind}.{hardware.value}: repository says where AWS publishes a container; an image "
                        "for chat has it, and our images for decisions do not"
                    )
        if self.sample:
            return self
        if self.source is None:
            raise ValueError("source is missing; only a sample has none: say from which commit it was built")
        for kind, images in self.images.items():
            for hardware, image in images.items():
                if image.media_type is None:
                    raise ValueError(f"images.{kind}.{hardware.value} has no media_type; only a sample's may lack it")
                if (image.build is None) == (kind == "decision"):
                    raise ValueError(
                        f"images.{kind}.{hardware.value}: build says what our images are made of; an image for "
                        "decisions has it, and the published container for chat does not"
                    )
        return self

    @field_validator("decision_contracts")
    @classmethod
    def _each_once(cls, value: tuple[ReleasedDecision, ...]) -> tuple[ReleasedDecision, ...]:
        for name in {each.name: None for each in value}:
            same = [each for each in value if each.name == name]
            builds = {each.head.llama_cpp if each.head else "" for each in same}
            if len(builds) < len(same) or len({each.contract_sha256 for each in same}) > 1:
                raise ValueError(
                    f"the decision {name} is there twice; a version has one contract, and one head for each build of "
                    "llama.cpp"
                )
        return value

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


def content_id(data: Mapping[str, Any]) -> str:
    """Return the id of a release with this content.

    The hash is over JSON with sorted keys and without spaces, in UTF-8, of everything but ``id`` and ``note``. It is
    taken of what the file says and not of what this version of the code makes of it, so that a field which a later
    version adds does not rename old releases.
    """
    content = {name: value for name, value in data.items() if name not in _NOT_CONTENT}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:ID_DIGITS]


def sealed(data: Mapping[str, Any]) -> dict[str, Any]:
    """``data`` with the ``id`` that follows from it."""
    return {"format": FORMAT, **data, "id": content_id({"format": FORMAT, **data})}


def parse_release(data: Any, *, source: str) -> Release:
    """The release in ``data``, the content of a manifest.

    Args:
        data: What the JSON file holds.
        source: The file, for messages.

    Raises:
        CommandError: It breaks the schema, or its content is not that of its id; the message names every fault and its
            place.
    """
    try:
        release = Release.model_validate(data)
    except ValidationError as error:
        raise CommandError(
            f"the release manifest {source} is refused:\n{sentences(error)}", code=ExitCode.USAGE
        ) from error
    if not release.sample and (found := content_id(data)) != release.id:
        raise CommandError(
            f"the release manifest {source} is refused: its content is that of {found}, and it says that it is "
            f"{release.id}, so something in it has changed",
            code=ExitCode.USAGE,
            hint="A release is never edited. Take the file from where it was committed, or build another release.",
        )
    return release


def load_release(reference: str = SAMPLE, *, folder: Path = FOLDER) -> Release:
    """The release called ``reference`` in ``folder``, or in the file at that path when it ends in ``.json``.

    Args:
        reference: A release's id, the first digits of one, or a path.
        folder: Where releases are.

    Raises:
        CommandError: There is no such file or more than one, it is not JSON, or its content is refused.
    """
    path = Path(reference) if reference.endswith(".json") else folder / f"{_whole(reference, folder)}.json"
    try:
        data = json.loads(
            read_whole(path, most=MOST_BYTES, pipes=True).decode(),
            object_pairs_hook=_unique,
            parse_constant=_refuse_constant,
        )
    except FileNotFoundError as error:
        known = ", ".join(release_names(folder)) or "none"
        raise CommandError(
            f"there is no release {reference!r}: {path} does not exist",
            code=ExitCode.USAGE,
            hint=f"Known releases: {known}. A manifest elsewhere can be given by its path, ending in .json.",
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise CommandError(f"cannot read the release manifest {path}: {error}", code=ExitCode.USAGE) from error
    release = parse_release(data, source=str(path))
    if release.id != path.stem:
        raise CommandError(
            f"{path} holds the release {release.id!r}; the file must be called {release.id}.json", code=ExitCode.USAGE
        )
    return release


def release_names(folder: Path = FOLDER) -> list[str]:
    """Ids of the releases in ``folder``, in alphabetical order."""
    return sorted(each.stem for each in folder.glob("*.json"))


def write_release(data: Mapping[str, Any], *, folder: Path = FOLDER) -> tuple[Release, Path]:
    """Check a sealed release and write it, at once or not at all.

    Args:
        data: What :func:`sealed` gave.
        folder: Where to.

    Returns:
        The release, and its file.

    Raises:
        CommandError: The content is refused, or the file cannot be written.
    """
    release = parse_release(dict(data), source="that was built")
    path = folder / f"{release.id}.json"
    text = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=folder, prefix=f".{release.id}.", delete=False
        ) as file:
            try:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
                Path(file.name).chmod(0o644)
                Path(file.name).replace(path)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise
    except OSError as error:
        raise CommandError(f"cannot write the release manifest {path}: {error}") from error
    return release, path


def _whole(reference: str, folder: Path) -> str:
    """The id that begins with ``reference``; ``reference`` itself where none does."""
    if (folder / f"{reference}.json").is_file() or not re.fullmatch(rf"[0-9a-f]{{{SHORTEST_PREFIX},}}", reference):
        return reference
    found = [name for name in release_names(folder) if name.startswith(reference)]
    if len(found) > 1:
        raise CommandError(
            f"{reference!r} begins {len(found)} releases: {', '.join(found)}; give more digits", code=ExitCode.USAGE
        )
    return found[0] if found else reference


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"the name {sorted(twice)[0]!r} is there twice in one object")
    return dict(pairs)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")

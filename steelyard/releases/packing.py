"""Registered decisions on their way from ``decisions/`` into a bucket, beside the model that serves them."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steelyard.aws.session import Aws, aws_errors
from steelyard.releases.manifest import MODEL_MANIFEST, ReleasedDecision, ReleasedFile, ReleasedHead
from steelyard.releases.served import Served, fit_hint
from steelyard_base.exit_codes import CommandError, ExitCode

if TYPE_CHECKING:
    from steelyard_runtime.decisions.contract import Contract

DECISIONS = Path(__file__).resolve().parents[2] / "decisions"

_LARGEST_COPY = 5 << 30
"""Bytes that S3 copies in one request; of such a copy it computes the sha256 itself."""


@dataclass(frozen=True, kw_only=True)
class PackedDecision:
    """A registered decision as a release names it, with its bytes.

    Attributes:
        released: What the release says of it.
        files: Its files by name.
    """

    released: ReleasedDecision
    files: Mapping[str, bytes]


def pack(names: Iterable[str], *, folder: Path | None = None) -> tuple[PackedDecision, ...]:
    """Read registered decisions, each called ``NAME@VERSION``, in the order of their names: once with each head.

    A decision lies in a folder of that name, or of the name without the version. Its heads are for different builds of
    llama.cpp.

    Args:
        names: The decisions.
        folder: Where they are; None means ``decisions/`` of this checkout.

    Raises:
        CommandError: There is none of that version, or its files are refused.
    """
    return tuple(each for name in sorted(set(names)) for each in _packed(name, folder or DECISIONS))


def for_builds(packed: Iterable[PackedDecision], builds: Collection[str]) -> tuple[PackedDecision, ...]:
    """Return those that images with these builds of llama.cpp can serve, in the order given."""
    return tuple(each for each in packed if each.released.fits(builds))


def check_heads(packed: Sequence[PackedDecision], *, builds: Mapping[str, str], models: Mapping[str, str]) -> None:
    """Refuse decisions that not every server of a release can serve.

    Args:
        packed: The decisions, each with all of its heads.
        builds: The build of llama.cpp by what has it, such as ``the image for cpu``.
        models: Hash of the model file by the model's name.

    Raises:
        CommandError: A decision has no head for a build, or one of another model; with what its head was fitted for.
    """
    for each in for_builds(packed, set(builds.values())):
        if (head := each.released.head) is not None and head.model_sha256 not in models.values():
            had = ", ".join(f"{name} ({sha256})" for name, sha256 in models.items())
            raise CommandError(
                f"the head of {each.released.name} was fitted on the model file {head.model_sha256}, and the release "
                f"gets {had}",
                code=ExitCode.USAGE,
                hint="Fit it on a model of the release: steelyard decision fit --model. Or leave the decision out.",
            )
    for name in {each.released.name: None for each in packed}:
        heads = [each.released for each in packed if each.released.name == name]
        for server, build in builds.items():
            if not any(each.fits((build,)) for each in heads):
                fitted = " and ".join(each.head.llama_cpp for each in heads if each.head)
                raise CommandError(
                    f"the head of {name} was fitted with llama.cpp {fitted}, and {server} gets {build}",
                    code=ExitCode.USAGE,
                    hint=f"A head reads numbers that another build gives differently: {fit_hint(name)}, an image of "
                    "ours with that build. Or leave the decision out.",
                )


def _packed(name: str, folder: Path) -> Iterator[PackedDecision]:
    from steelyard_runtime.decisions.head import head_folders
    from steelyard_runtime.decisions.registry import CONTRACT_FILE, RegistryError, load_contract

    places = [folder / name, folder / name.partition("@")[0]]
    place = next((each for each in places if (each / CONTRACT_FILE).is_file()), None)
    if place is None:
        raise CommandError(
            f"there is no decision {name}: neither {places[0]} nor {places[1]} has a {CONTRACT_FILE}",
            code=ExitCode.USAGE,
            hint="Make one: steelyard decision new",
        )
    try:
        contract = load_contract(place)
    except RegistryError as error:
        raise CommandError(f"the decision {name} cannot be released: {error}", code=ExitCode.USAGE) from error
    if contract.full_name != name:
        raise CommandError(
            f"{place} has {contract.full_name}, and {name} is wanted",
            code=ExitCode.USAGE,
            hint=f"Name the version that is there, or put the other one into {places[0]}.",
        )
    for heads in head_folders(place) if contract.readout.strategy == "head" else (None,):
        yield _with_head(contract, place, heads)


def _with_head(contract: Contract, place: Path, heads: Path | None) -> PackedDecision:
    from steelyard_runtime.decisions.head import DESCRIPTION_FILE, TENSORS_FILE, HeadError, load_head
    from steelyard_runtime.decisions.registry import CONTRACT_FILE

    name = contract.full_name
    files = {CONTRACT_FILE: ("contract", (place / CONTRACT_FILE).read_bytes())}
    head = None
    if heads is not None:
        try:
            loaded = load_head(heads)
        except HeadError as error:
            raise CommandError(f"the decision {name} cannot be released: {error}", code=ExitCode.USAGE) from error
        bound = loaded.description.bound
        if bound.question_sha256 != contract.question_sha256:
            raise CommandError(
                f"the decision {name} cannot be released: the head in {heads} was fitted for another question, other "
                "options or another readout",
                code=ExitCode.USAGE,
                hint=f"Fit it again: steelyard decision fit {contract.name}. Or remove it.",
            )
        head = ReleasedHead(sha256=loaded.sha256, model_sha256=bound.model_sha256, llama_cpp=bound.llama_cpp)
        files |= {
            file: (role, (heads / file).read_bytes())
            for file, role in ((DESCRIPTION_FILE, "head"), (TENSORS_FILE, "numbers"))
        }
    released = ReleasedDecision(
        name=name,
        contract_sha256=contract.sha256,
        head=head,
        files=tuple(
            ReleasedFile(name=file, role=role, size=len(body), sha256=hashlib.sha256(body).hexdigest())
            for file, (role, body) in files.items()
        ),
    )
    return PackedDecision(released=released, files={file: body for file, (_, body) in files.items()})


def place(aws: Aws, served: Served, packed: Sequence[PackedDecision], *, bucket: str) -> None:
    """Put a model and its decisions under their common key. What lies there already stays as it is.

    The model is copied within S3; nothing of it passes through this machine.

    Args:
        aws: Where to.
        served: What is to lie there. Its model lies in the bucket.
        packed: The decisions with their bytes.
        bucket: The bucket of artifacts.

    Raises:
        CommandError: A decision here is another one than the release's, or S3 refused.
    """
    bodies = _bodies(served, packed)
    with aws_errors():
        s3 = aws.client("s3")
        pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=served.key)
        there = {each["Key"] for page in pages for each in page.get("Contents", ())}
        copied = {name: sha256 for name, (_, sha256) in served.model.objects().items()}
        copied[MODEL_MANIFEST] = served.model.manifest_sha256
        for name, sha256 in copied.items():
            if served.key + name not in there:
                copy_object(s3, (bucket, served.model.key + name), (bucket, served.key + name), sha256=sha256)
        for name, body in bodies.items():
            if served.key + name not in there:
                s3.put_object(
                    Bucket=bucket,
                    Key=served.key + name,
                    Body=body,
                    ChecksumAlgorithm="SHA256",
                    Metadata={"sha256": hashlib.sha256(body).hexdigest()},
                )


def _bodies(served: Served, packed: Sequence[PackedDecision]) -> dict[str, bytes]:
    """The decisions' files by their names below the key, each proved to be the release's."""
    here: dict[str, PackedDecision] = {}
    for decision in served.decisions:
        same_name = [each for each in packed if each.released.name == decision.name]
        same = next((each for each in same_name if each.released == decision), None)
        if same is None:
            others = " and ".join(_hashes(each.released) for each in same_name) or "none"
            raise CommandError(
                f"decisions/ has another {decision.name} than the release: {others}, and the release has "
                f"{_hashes(decision)}",
                code=ExitCode.USAGE,
                hint="A release names hashes; the files come from this checkout. Check out decisions/ of the commit "
                "that has the release, or build a release of those that are here.",
            )
        here[decision.name] = same
    return {name: here[of].files[file] for name, ((of, file), _) in served.decision_objects().items()}


def _hashes(decision: ReleasedDecision) -> str:
    head = decision.head
    fitted = f"head {head.sha256[:12]} for llama.cpp {head.llama_cpp}" if head else "no head"
    return f"contract {decision.contract_sha256[:12]} and {fitted}"


def copy_object(s3: Any, source: tuple[str, str], target: tuple[str, str], *, sha256: str) -> None:
    """Copy an object within S3, from one bucket and key to another, and record its sha256 there."""
    from boto3.s3.transfer import TransferConfig

    s3.copy(
        {"Bucket": source[0], "Key": source[1]},
        *target,
        ExtraArgs={"ChecksumAlgorithm": "SHA256", "Metadata": {"sha256": sha256}, "MetadataDirective": "REPLACE"},
        Config=TransferConfig(multipart_threshold=_LARGEST_COPY, multipart_chunksize=1 << 29),
    )

"""Registered decisions on their way from ``decisions/`` into a bucket, beside the model that serves them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steelyard.aws.session import Aws, aws_errors
from steelyard.releases.manifest import MODEL_MANIFEST, ReleasedDecision, ReleasedFile, ReleasedHead
from steelyard.releases.served import Served
from steelyard_base.exit_codes import CommandError, ExitCode

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


def pack(names: Iterable[str], *, folder: Path = DECISIONS) -> tuple[PackedDecision, ...]:
    """Read registered decisions, each called ``NAME@VERSION``, in the order of their names.

    A decision lies in a folder of that name, or of the name without the version.

    Raises:
        CommandError: There is none of that version, or its files are refused.
    """
    return tuple(_packed(name, folder) for name in sorted(set(names)))


def _packed(name: str, folder: Path) -> PackedDecision:
    from steelyard_runtime.decisions.head import DESCRIPTION_FILE, TENSORS_FILE
    from steelyard_runtime.decisions.registry import CONTRACT_FILE, RegistryError, load_decision

    places = [folder / name, folder / name.partition("@")[0]]
    place = next((each for each in places if (each / CONTRACT_FILE).is_file()), None)
    if place is None:
        raise CommandError(
            f"there is no decision {name}: neither {places[0]} nor {places[1]} has a {CONTRACT_FILE}",
            code=ExitCode.USAGE,
            hint="Make one: steelyard decision new",
        )
    try:
        found = load_decision(place)
    except RegistryError as error:
        raise CommandError(f"the decision {name} cannot be released: {error}", code=ExitCode.USAGE) from error
    if found.contract.full_name != name:
        raise CommandError(
            f"{place} has {found.contract.full_name}, and {name} is wanted",
            code=ExitCode.USAGE,
            hint=f"Name the version that is there, or put the other one into {places[0]}.",
        )
    roles = {CONTRACT_FILE: "contract"} | ({DESCRIPTION_FILE: "head", TENSORS_FILE: "numbers"} if found.head else {})
    files = {file: (place / file).read_bytes() for file in roles}
    head = None
    if found.head is not None:
        bound = found.head.description.bound
        head = ReleasedHead(sha256=found.head.sha256, model_sha256=bound.model_sha256, llama_cpp=bound.llama_cpp)
    released = ReleasedDecision(
        name=name,
        contract_sha256=found.contract.sha256,
        head=head,
        files=tuple(
            ReleasedFile(name=file, role=roles[file], size=len(body), sha256=hashlib.sha256(body).hexdigest())
            for file, body in files.items()
        ),
    )
    return PackedDecision(released=released, files=files)


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
    here = {each.released.name: each for each in packed}
    for decision in served.decisions:
        if (found := here[decision.name].released) != decision:
            raise CommandError(
                f"decisions/ has another {decision.name} than the release: contract {found.contract_sha256[:12]} and "
                f"head {found.head.sha256[:12] if found.head else 'none'}, and the release has "
                f"{decision.contract_sha256[:12]} and {decision.head.sha256[:12] if decision.head else 'none'}",
                code=ExitCode.USAGE,
                hint="A release names hashes; the files come from this checkout. Check out decisions/ of the commit "
                "that has the release, or build a release of those that are here.",
            )
    return {name: here[of].files[file] for name, ((of, file), _) in served.decision_objects().items()}


def copy_object(s3: Any, source: tuple[str, str], target: tuple[str, str], *, sha256: str) -> None:
    """Copy an object within S3, from one bucket and key to another, and record its sha256 there."""
    from boto3.s3.transfer import TransferConfig

    s3.copy(
        {"Bucket": source[0], "Key": source[1]},
        *target,
        ExtraArgs={"ChecksumAlgorithm": "SHA256", "Metadata": {"sha256": sha256}, "MetadataDirective": "REPLACE"},
        Config=TransferConfig(multipart_threshold=_LARGEST_COPY, multipart_chunksize=1 << 29),
    )

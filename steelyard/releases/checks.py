"""Compares what a release names with what is in an account: objects in S3, images in ECR, what these say of themselves.

The gate in every endpoint's stack asks the same functions (``steelyard_constructs.release_gate_handler``).
"""

from __future__ import annotations

import hashlib
import json
import os
import ssl
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from http.client import HTTPException
from typing import Any

from steelyard.aws.session import Aws, aws_errors, error_code
from steelyard.environments.schema import Environment
from steelyard.releases.manifest import Kind, Release, ReleasedImage, ReleasedModel
from steelyard.releases.served import Served, all_served
from steelyard_base.exit_codes import CommandError, ExitCode
from steelyard_constructs.hardware import Hardware
from steelyard_constructs.images import RELEASE_TAG_PREFIX, publisher_account
from steelyard_constructs.refusal import Refused

LOCAL_ACCOUNT = "000000000000"
"""The account of the local cloud; AWS gives it to nobody."""

BASE_LABEL = "org.opencontainers.image.base.digest"
LLAMA_CPP_LABEL = "steelyard.llama-cpp"
INTERFACE_LABEL = "steelyard.llama-cpp-interface"

_ABSENT = ("404", "NoSuchKey", "NotFound", "NoSuchBucket")
_BLOCK = 1 << 20


class State(StrEnum):
    """State of a part of a release in an account."""

    OK = "ok"
    MISSING = "missing"
    DIFFERS = "differs"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One part of a release, looked at.

    Attributes:
        item: Which part, such as ``model decision`` or ``image decision cpu``.
        state: How it stands.
        detail: What is wrong and where; for what is right, what was compared.
        used: Whether an endpoint of the environment needs it.
    """

    item: str
    state: State
    detail: str
    used: bool


def check_account(release: Release, account: str) -> None:
    """Refuse a sample release outside the local cloud.

    Raises:
        CommandError: It is one, and the account is AWS's.
    """
    if release.sample and account != LOCAL_ACCOUNT:
        raise CommandError(
            f"release {release.id!r} is a sample: its image digests are placeholders, and account {account} is one of "
            "AWS",
            code=ExitCode.USAGE,
            hint="Build a release: steelyard release build. The local cloud takes a sample: --local.",
        )


def findings(
    aws: Aws,
    environment: Environment,
    release: Release,
    *,
    bucket: str,
    used_only: bool = False,
    deep: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> Iterator[Finding]:
    """Look at every part of a release in an environment's account.

    Args:
        aws: Where to look.
        environment: The environment.
        release: The release.
        bucket: The environment's bucket of artifacts.
        used_only: Leave out what no endpoint of the environment needs.
        deep: Read every byte of every model again, instead of trusting the checksums that S3 and the writer recorded.
        tell: Receives what is looked at.

    Raises:
        CommandError: AWS cannot be asked, or a sample is looked for outside the local cloud.
    """
    check_account(release, aws.account())
    looked = set()
    for role, model in release.models.items():
        used = role in {each.role for each in environment.endpoints.values() if each.hub is None}
        if (used or not used_only) and (model.key, used) not in looked:
            looked.add((model.key, used))
            tell(f"model {model.name}")
            yield _finding(f"model {role} ({model.name})", used, model_faults(aws, model, bucket=bucket, deep=deep))
    for name, served in all_served(environment, release).items():
        if served.decisions:
            tell(f"decisions of {name}")
            names = ", ".join(each.name for each in served.decisions)
            faults = served_faults(aws, served, bucket=bucket)
            yield _finding(f"decisions of {name} ({names})", True, faults)
    for kind, images in release.images.items():
        for hardware, image in images.items():
            used = (kind, hardware) in {(each.kind, each.hardware) for each in environment.endpoints.values()}
            # A sample's published container is a placeholder: no registry has it.
            if (used_only and not used) or (release.sample and kind == "chat"):
                continue
            tell(f"image {kind} {hardware.value}")
            item = f"image {kind} {hardware.value}"
            if release.sample:
                yield _finding(item, used, image_faults(aws, environment, kind, hardware, image))
                continue
            found = list(image_faults(aws, environment, kind, hardware, image))
            yield _finding(item, used, found)
            if image.build is not None and not used_only and not found:
                yield _finding(f"{item}: what it says of itself", used, label_faults(aws, environment, image))
                yield _finding(f"{item}: its tag", used, tag_faults(aws, environment, release, hardware))
                if environment.images.account is None:
                    yield _finding(f"{item}: its list of parts", used, sbom_faults(aws, image, bucket=bucket))
                yield Finding(
                    item=f"{item}: scan", state=State.OK, detail=scan_summary(aws, environment, image), used=used
                )


def refuse(faulty: list[Finding], *, what: str) -> None:
    """Raise for findings that are not right.

    Raises:
        CommandError: There are some; the message has a line for each.
    """
    if faulty:
        raise CommandError(
            f"{what}:\n" + "\n".join(f"- {each.item} {_stands(each.state)}: {each.detail}" for each in faulty),
            hint="Nothing was changed. Build what is missing (steelyard release build), or name a release that is "
            "there: steelyard release verify tells.",
        )


def _stands(state: State) -> str:
    return "is missing" if state is State.MISSING else "differs"


def _finding(item: str, used: bool, faults: Iterator[str] | list[str]) -> Finding:
    found = list(faults)
    if not found:
        return Finding(item=item, state=State.OK, detail="", used=used)
    missing = all(fault.endswith(" is missing") for fault in found)
    return Finding(item=item, state=State.MISSING if missing else State.DIFFERS, detail="; ".join(found), used=used)


def model_faults(aws: Aws, model: ReleasedModel, *, bucket: str, deep: bool = False) -> Iterator[str]:
    """A sentence for everything that is wrong with a model in a bucket."""
    found = list(served_faults(aws, Served(model=model), bucket=bucket))
    yield from found
    if deep and not found:
        for name, (_, sha256) in model.objects().items():
            if (read := object_sha256(aws, bucket, model.key + name)) != sha256:
                yield f"s3://{bucket}/{model.key}{name} differs: sha256 {read}, not {sha256}"


def served_faults(aws: Aws, served: Served, *, bucket: str) -> Iterator[str]:
    """A sentence for everything that is wrong with what a container is given."""
    from steelyard_constructs import release_gate_handler as gate

    wanted = [bucket, served.key, served.model.manifest_sha256, served.objects()]
    with aws_errors():
        yield from list(gate.model_faults(aws.client("s3"), wanted))


def image_faults(
    aws: Aws, environment: Environment, kind: Kind, hardware: Hardware, image: ReleasedImage
) -> Iterator[str]:
    """A sentence for everything that is wrong with an image in its registry."""
    from steelyard_constructs import release_gate_handler as gate

    where, repository = registry_of(aws, environment, kind, image)
    with aws_errors():
        yield from gate.image_faults(aws.client("ecr"), [where, repository, image.digest])
    if image.architecture is not hardware.architecture:
        found, wanted = image.architecture.value, hardware.architecture.value
        yield f"the image {image.digest} differs: it is for {found}, not {wanted}"


Registry = tuple[str, str]
"""Account and repository."""


def registry_of(aws: Aws, environment: Environment, kind: Kind, image: ReleasedImage) -> Registry:
    """Account and repository that endpoints of this kind pull an image from.

    Raises:
        CommandError: AWS has no registry of published containers in the region that the CDK knows.
    """
    return own_registry(aws, environment) if kind == "decision" else published_registry(aws, environment, image)


def own_registry(aws: Aws, environment: Environment) -> Registry:
    """Account and repository of our images."""
    return environment.images.account or aws.account(), environment.repository_name


def published_registry(aws: Aws, environment: Environment, image: ReleasedImage) -> Registry:
    """Account and repository of a container that AWS publishes.

    Raises:
        CommandError: The CDK knows no registry of published containers in the region.
    """
    account = published_account(aws, image, account=environment.images.chat_account)
    return account, image.published(account=account).repository


def published_account(aws: Aws, image: ReleasedImage, *, account: str | None) -> str:
    """Account of the registry that has a published container: the one that is named, or AWS's of the region.

    Raises:
        CommandError: The CDK knows no registry of published containers in the region.
    """
    return image.published(account=account).account or _publisher(aws.region)


def _publisher(region: str) -> str:
    from steelyard.cdk.nodejs import use_packaged_node

    use_packaged_node()
    try:
        return publisher_account(region)
    except Refused as refused:
        raise CommandError(str(refused), code=ExitCode.USAGE) from refused


def image_manifest(aws: Aws, registry: Registry, digest: str) -> tuple[str, str] | None:
    """An image's manifest as its registry has it, and its media type; None where there is no such image.

    Raises:
        CommandError: ECR cannot be asked.
    """
    from botocore.exceptions import ClientError

    from steelyard_constructs import release_gate_handler as gate

    account, repository = registry
    with aws_errors():
        try:
            images = aws.client("ecr").batch_get_image(
                registryId=account,
                repositoryName=repository,
                imageIds=[{"imageDigest": digest}],
                acceptedMediaTypes=[gate.SINGLE, *gate.OTHER],
            )["images"]
        except ClientError as error:
            if error_code(error) == "RepositoryNotFoundException":
                return None
            raise
    return (images[0]["imageManifest"], images[0].get("imageManifestMediaType", "")) if images else None


def release_tag(release_id: str, hardware: Hardware) -> str:
    """The tag of one image of a release."""
    return f"{RELEASE_TAG_PREFIX}{release_id}-{hardware.value}"


def tagged_digest(aws: Aws, environment: Environment, tag: str) -> str | None:
    """Digest of the image that has a tag; None where none has it.

    Raises:
        CommandError: ECR cannot be asked.
    """
    from botocore.exceptions import ClientError

    account, repository = own_registry(aws, environment)
    with aws_errors():
        try:
            found = aws.client("ecr").batch_get_image(
                registryId=account, repositoryName=repository, imageIds=[{"imageTag": tag}]
            )["images"]
        except ClientError as error:
            if error_code(error) == "RepositoryNotFoundException":
                return None
            raise
    return str(found[0]["imageId"]["imageDigest"]) if found else None


def tag_faults(aws: Aws, environment: Environment, release: Release, hardware: Hardware) -> Iterator[str]:
    """A sentence when an image of a release may be expired by the registry's rule."""
    tag = release_tag(release.id, hardware)
    digest = release.images["decision"][hardware].digest
    if (found := tagged_digest(aws, environment, tag)) is None:
        yield f"the tag {tag} of {digest} is missing"
    elif found != digest:
        yield f"the tag {tag} differs: it is on {found}, not {digest}"


def label_faults(aws: Aws, environment: Environment, image: ReleasedImage) -> Iterator[str]:
    """Return whether the bytes in the registry hash to the digest, and the labels in them are what the release says."""
    if image.build is None or (found := image_manifest(aws, own_registry(aws, environment), image.digest)) is None:
        return
    manifest = found[0]
    if (digest := f"sha256:{hashlib.sha256(manifest.encode()).hexdigest()}") != image.digest:
        yield f"the manifest of {image.digest} differs: its bytes hash to {digest}"
        return
    try:
        config = str(json.loads(manifest)["config"]["digest"])
    except (ValueError, KeyError, TypeError, RecursionError):
        yield f"the manifest of {image.digest} differs: it is not that of one image, which names a configuration"
        return
    labels = _labels(aws, environment, config)
    for label, wanted in (
        (BASE_LABEL, image.build.base_digest),
        (LLAMA_CPP_LABEL, image.llama_cpp),
        (INTERFACE_LABEL, image.build.interface),
    ):
        if labels.get(label) != wanted:
            yield f"the label {label} of {image.digest} differs: it is {labels.get(label)}, not {wanted}"


def _labels(aws: Aws, environment: Environment, config_digest: str) -> Mapping[str, str]:
    account, repository = own_registry(aws, environment)
    with aws_errors():
        url = aws.client("ecr").get_download_url_for_layer(
            registryId=account, repositoryName=repository, layerDigest=config_digest
        )["downloadUrl"]
    trust = ssl.create_default_context(cafile=os.environ.get("AWS_CA_BUNDLE") or None)
    try:
        with urllib.request.urlopen(url, context=trust, timeout=60) as answer:  # noqa: S310 - ECR's own URL
            content = answer.read()
    except (OSError, HTTPException) as error:
        raise CommandError(
            f"cannot fetch the configuration {config_digest} of {repository} from ECR: {type(error).__name__}: {error}",
            hint="Check the network (or the proxy), then run this again.",
        ) from error
    if f"sha256:{hashlib.sha256(content).hexdigest()}" != config_digest:
        raise CommandError(f"ECR gave other bytes for {config_digest} of {repository}; try again")
    return _labels_in(content)


def _labels_in(configuration: bytes) -> Mapping[str, str]:
    """The labels of an image's configuration; none where it is not one."""
    try:
        return dict(json.loads(configuration)["config"]["Labels"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}


def sbom_faults(aws: Aws, image: ReleasedImage, *, bucket: str) -> Iterator[str]:
    """Return whether the list of an image's parts is in the bucket, with the release's hash."""
    if image.build is None:
        return
    sbom = image.build.sbom
    if (found := object_sha256(aws, bucket, sbom.key)) is None:
        yield f"s3://{bucket}/{sbom.key} is missing"
    elif found != sbom.sha256:
        yield f"s3://{bucket}/{sbom.key} differs: sha256 {found}, not {sbom.sha256}"


def object_sha256(aws: Aws, bucket: str, key: str) -> str | None:
    """The sha256 of an object's bytes, which are all read; None where there is none.

    Raises:
        CommandError: S3 cannot be asked.
    """
    from botocore.exceptions import ClientError

    digest = hashlib.sha256()
    with aws_errors():
        try:
            body = aws.client("s3").get_object(Bucket=bucket, Key=key)["Body"]
        except ClientError as error:
            if error_code(error) in _ABSENT:
                return None
            raise
        while block := body.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def recorded_size(aws: Aws, bucket: str, key: str) -> int | None:
    """An object's size in bytes; None where there is none.

    Raises:
        CommandError: S3 cannot be asked.
    """
    from botocore.exceptions import ClientError

    with aws_errors():
        try:
            return int(aws.client("s3").head_object(Bucket=bucket, Key=key)["ContentLength"])
        except ClientError as error:
            if error_code(error) in _ABSENT:
                return None
            raise


def scan_summary(aws: Aws, environment: Environment, image: ReleasedImage) -> str:
    """Summarize in a few words what ECR's scan found in one of our images."""
    from botocore.exceptions import ClientError

    try:
        said = _scan(aws, environment, image)
    except ClientError as error:
        return f"no result ({error_code(error)})"
    status = str(said.get("imageScanStatus", {}).get("status", "unknown")).lower()
    counts = _scan_counts(said)
    listed = ", ".join(f"{count} {severity.lower()}" for severity, count in sorted(counts.items())) or "nothing found"
    return f"{status}: {listed}"


def scan_counts(aws: Aws, environment: Environment, image: ReleasedImage) -> Mapping[str, int] | None:
    """Findings of ECR's scan of one of our images by severity, such as ``CRITICAL``; None without a finished scan.

    Raises:
        CommandError: ECR cannot be asked.
    """
    from botocore.exceptions import ClientError

    with aws_errors():
        try:
            said = _scan(aws, environment, image)
        except ClientError as error:
            if error_code(error) in ("ScanNotFoundException", "ImageNotFoundException", "RepositoryNotFoundException"):
                return None
            raise
    # ACTIVE is the state of a continuous scan of Inspector.
    finished = said.get("imageScanStatus", {}).get("status") in ("COMPLETE", "ACTIVE")
    return _scan_counts(said) if finished else None


def _scan(aws: Aws, environment: Environment, image: ReleasedImage) -> Mapping[str, Any]:
    account, repository = own_registry(aws, environment)
    said: Mapping[str, Any] = aws.client("ecr").describe_image_scan_findings(
        registryId=account, repositoryName=repository, imageId={"imageDigest": image.digest}
    )
    return said


def _scan_counts(said: Mapping[str, Any]) -> Mapping[str, int]:
    counts: Mapping[str, int] = said.get("imageScanFindings", {}).get("findingSeverityCounts", {})
    return counts

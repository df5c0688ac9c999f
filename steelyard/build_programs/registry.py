"""An image's repository in ECR, and the bucket that has the lists of what is in images."""

from __future__ import annotations

import base64
import hashlib
import time
from dataclasses import dataclass
from typing import Any

from steelyard.aws.session import aws_errors, error_code
from steelyard.build_programs.container_tool import SINGLE, docker
from steelyard.build_programs.program import say
from steelyard_base.exit_codes import CommandError, ExitCode

POLL_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Destination of an image, and of the list of its contents.

    Attributes:
        repository: Name of the repository in ECR.
        uri: ``REGISTRY/REPOSITORY``.
        tag: The tag, a hash of what the image is made of.
        region: Region of the registry.
        base_registry: Registry that holds the base.
        base_region: Its region.
        bucket: The artifact bucket.
    """

    repository: str
    uri: str
    tag: str
    region: str
    base_registry: str
    base_region: str
    bucket: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """An image in ECR."""

    digest: str
    media_type: str


def require_immutable(ecr: Any, repository: str) -> None:
    """Refuse a repository whose tags can be moved: a tag would not say what the image is made of.

    Raises:
        CommandError: Its tags are mutable.
    """
    with aws_errors():
        (found,) = ecr.describe_repositories(repositoryNames=[repository])["repositories"]
    if found["imageTagMutability"] != "IMMUTABLE":
        raise CommandError(
            f"tags of the repository {repository} can be moved ({found['imageTagMutability']}), so a tag would not say "
            "what an image is made of",
            code=ExitCode.REFUSED,
            hint="Make them immutable: the stack of builds does, so deploy it again.",
        )


def find_pushed(ecr: Any, target: Target) -> Pushed | None:
    """The image that the tag names in ECR; None if there is none."""
    accepted = [SINGLE, "application/vnd.docker.distribution.manifest.list.v2+json"]
    accepted += [f"application/vnd.oci.image.{kind}.v1+json" for kind in ("index", "manifest")]
    with aws_errors():
        answer = ecr.batch_get_image(
            repositoryName=target.repository, imageIds=[{"imageTag": target.tag}], acceptedMediaTypes=accepted
        )
    for failure in answer.get("failures", []):
        if failure["failureCode"] != "ImageNotFound":
            raise CommandError(f"ECR does not show {target.uri}:{target.tag}: {failure['failureReason']}")
    for image in answer["images"]:
        return Pushed(digest=image["imageId"]["imageDigest"], media_type=image["imageManifestMediaType"])
    return None


def require_single(reference: str, media_type: str) -> None:
    """Refuse what SageMaker would refuse: an index of several images, or an image in OCI's format.

    Raises:
        CommandError: The image is one of these.
    """
    if media_type != SINGLE:
        raise CommandError(
            f"{reference} is a {media_type}, and SageMaker takes {SINGLE} only",
            code=ExitCode.REFUSED,
            hint="Attestations make an index (build with --provenance=false --sbom=false), and Docker's containerd "
            "image store keeps images in OCI's format: turn that store off. Then build under another tag.",
        )


def require_clean(ecr: Any, repository: str, digest: str, *, allow_critical: bool, timeout_s: float) -> None:
    """Wait for ECR's scan of a pushed image and refuse one with critical findings.

    Raises:
        CommandError: The scan failed, took too long, or found something critical.
    """
    findings = scan_findings(ecr, repository, digest, timeout_s=timeout_s)
    counts = findings.get("findingSeverityCounts", {})
    summary = ", ".join(f"{count} {severity.lower()}" for severity, count in sorted(counts.items())) or "nothing"
    say(f"ECR's scan found {summary}")
    if counts.get("CRITICAL", 0) and not allow_critical:
        found = [each for each in findings.get("findings", []) if each.get("severity") == "CRITICAL"]
        names = ", ".join(sorted(each["name"] for each in found[:5])) or "see the console"
        raise CommandError(
            f"{repository}@{digest} has {counts['CRITICAL']} critical findings: {names}",
            code=ExitCode.REFUSED,
            hint="Take a newer base image. To accept them: steelyard release build --allow-critical.",
        )


def scan_findings(ecr: Any, repository: str, digest: str, *, timeout_s: float) -> dict[str, Any]:
    """Wait until the scan has ended, and return its findings."""
    from botocore.exceptions import ClientError

    until = time.monotonic() + timeout_s
    while True:
        status = "NOT_STARTED"
        try:
            with aws_errors():
                answer = ecr.describe_image_scan_findings(repositoryName=repository, imageId={"imageDigest": digest})
            status = answer["imageScanStatus"]["status"]
            if status in ("COMPLETE", "ACTIVE"):
                return dict(answer["imageScanFindings"])
            if status not in ("IN_PROGRESS", "PENDING"):
                why = answer["imageScanStatus"].get("description", "no reason given")
                raise CommandError(f"ECR's scan of {repository}@{digest} ended as {status}: {why}")
        except CommandError as error:
            cause = error.__cause__
            # It takes a moment from the push until the scan is known.
            if not (isinstance(cause, ClientError) and error_code(cause) == "ScanNotFoundException"):
                raise
        if time.monotonic() >= until:
            raise CommandError(
                f"ECR's scan of {repository}@{digest} is {status} after {timeout_s:.0f} s",
                hint="Start the build again: it continues from here. Scan on push has to be on for the repository.",
            )
        time.sleep(POLL_S)


def log_in(ecr: Any, registry: str) -> None:
    """Let ``docker`` reach a registry; the password goes through standard input."""
    with aws_errors():
        (given,) = ecr.get_authorization_token()["authorizationData"]
    user, _, password = base64.b64decode(given["authorizationToken"]).decode().partition(":")
    docker("login", "--username", user, "--password-stdin", registry, stdin=password, quiet=True)


def stored(s3: Any, bucket: str, key: str) -> bytes | None:
    """An object's bytes; None if it is missing."""
    from botocore.exceptions import ClientError

    try:
        return bytes(s3.get_object(Bucket=bucket, Key=key)["Body"].read())
    except ClientError as error:
        # S3 answers 403 for what is missing to those who may not list the bucket; the write then tells which it is.
        if error_code(error) in ("NoSuchKey", "404", "403", "AccessDenied"):
            return None
        with aws_errors():
            raise


def store(s3: Any, bucket: str, key: str, document: bytes) -> None:
    """Write an object that is not there yet; one that came to be there meanwhile has to be the same."""
    from botocore.exceptions import ClientError

    try:
        s3.put_object(
            Bucket=bucket,
            Key=key,
            Body=document,
            ContentType="application/vnd.cyclonedx+json",
            ChecksumSHA256=base64.b64encode(hashlib.sha256(document).digest()).decode("ascii"),
            IfNoneMatch="*",
        )
    except ClientError as error:
        if error_code(error) not in ("PreconditionFailed", "ConditionalRequestConflict"):
            with aws_errors():
                raise
        if stored(s3, bucket, key) != document:
            raise CommandError(
                f"s3://{bucket}/{key} is there already and lists something else", code=ExitCode.REFUSED
            ) from error

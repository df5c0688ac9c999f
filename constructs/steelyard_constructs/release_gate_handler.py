"""Lambda function of ReleaseGate: is what a release names there, and is it that? May instance types change?

It is deployed as inline source: one file, less than 4096 characters without its docstrings, and boto3 only. The command
line asks the same functions before it deploys.
"""

import base64
import hashlib
import json
import os
import ssl
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import boto3
from botocore.exceptions import ClientError

SINGLE = "application/vnd.docker.distribution.manifest.v2+json"
OTHER = (
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
)
MANIFEST = "model-manifest.json"


def image_faults(ecr: Any, wanted: Any) -> Iterator[str]:
    """Find the fault of an image: registry, repository, digest."""
    registry, name, digest = wanted
    where = f"image {name}@{digest} in registry {registry}"
    try:
        found = ecr.batch_get_image(
            registryId=registry,
            repositoryName=name,
            imageIds=[{"imageDigest": digest}],
            acceptedMediaTypes=[SINGLE, *OTHER],
        )["images"]
    except ecr.exceptions.RepositoryNotFoundException:
        found = []
    if not found:
        yield f"{where} is missing"
    elif (kind := found[0].get("imageManifestMediaType")) != SINGLE:
        yield f"{where} is a {kind}; SageMaker takes {SINGLE} only"


def model_faults(s3: Any, wanted: Any) -> Iterator[str]:
    """Find the fault of a model: bucket, prefix, manifest's sha256, (size, sha256) by name."""
    bucket, prefix, manifest, files = wanted
    where = f"s3://{bucket}/{prefix}"
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    there = {one["Key"].removeprefix(prefix): one["Size"] for page in pages for one in page.get("Contents", [])}
    for name in sorted({*there, *files, MANIFEST}):
        if name not in there:
            yield f"{where}{name} is missing"
        elif name == MANIFEST:
            body = s3.get_object(Bucket=bucket, Key=prefix + name)["Body"].read()
            if (own := hashlib.sha256(body).hexdigest()) != manifest:
                yield f"{where}{name} differs: sha256 {own}, not {manifest}"
        elif name not in files:
            yield f"{where}{name} does not belong there"
        elif there[name] != files[name][0]:
            yield f"{where}{name} differs: {there[name]} bytes, not {files[name][0]}"
        elif (is_ := checksum(s3, bucket, prefix + name)) != files[name][1]:
            yield f"{where}{name} differs: sha256 {is_}, not {files[name][1]}"


def scaling_faults(scaling: Any, endpoint: str) -> Iterator[str]:
    """A refusal where an endpoint is scaled: it is asked about when its instance types are to change."""
    variant = f"endpoint/{endpoint}/variant/primary"
    if scaling.describe_scalable_targets(ServiceNamespace="sagemaker", ResourceIds=[variant])["ScalableTargets"]:
        yield (
            f"{endpoint} is scaled, and AWS changes no instance types under that; steelyard up does it in two "
            "deployments"
        )


def checksum(s3: Any, bucket: str, key: str) -> str | None:
    """S3's own sha256 of an object; of one stored in parts, that which its writer recorded."""
    head = s3.head_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED")
    own = head.get("ChecksumSHA256", "-")
    return head["Metadata"].get("sha256") if "-" in own else base64.b64decode(own).hex()


CHECKS = (
    ("image", "ecr", image_faults),
    ("model", "s3", model_faults),
    ("scaled", "application-autoscaling", scaling_faults),
)


def faults(wanted: Any) -> list[str]:
    """All that is wrong; a new policy takes seconds to count."""
    if set(wanted.get("account", "0")) != {"0"}:
        return ["a sample release is for the local cloud only; build one"]
    for rest in range(9, -1, -1):
        try:
            return [
                fault
                for name, service, check in CHECKS
                if name in wanted
                for fault in check(boto3.client(service), wanted[name])
            ]
        except ClientError as error:
            if not rest or error.response["Error"]["Code"][:12] not in ("403", "AccessDenied"):
                raise
            time.sleep(3)
    return []


def handler(event: Any, context: Any) -> None:  # noqa: ARG001 - Lambda passes it
    """Refuse a release whose parts are missing or differ. Deletion is free."""
    reason = ""
    if event["RequestType"] != "Delete":
        try:
            found = faults(json.loads(event["ResourceProperties"]["Wanted"]))
            reason = "; ".join([*found[:3], *([f"and {len(found) - 3} more"] if found[3:] else [])])
        except Exception as error:  # whatever happens, CloudFormation must not wait for an hour
            reason = repr(error)
    answer = {name: event[name] for name in ("StackId", "RequestId", "LogicalResourceId")}
    answer["PhysicalResourceId"] = event["LogicalResourceId"]
    answer |= {"Status": "FAILED", "Reason": reason} if reason else {"Status": "SUCCESS"}
    data = json.dumps(answer).encode()
    put = urllib.request.Request(event["ResponseURL"], data, {"Content-Type": ""}, method="PUT")  # noqa: S310 (CloudFormation's own URL)
    # Outside AWS the endpoint may have a certificate of its own authority.
    trust = ssl.create_default_context(cafile=os.environ.get("AWS_CA_BUNDLE"))
    urllib.request.urlopen(put, context=trust, timeout=30).close()  # noqa: S310

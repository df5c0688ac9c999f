"""Put a verified model into an artifact bucket, below the prefix that its manifest's hash names; never over anything.

``python -m switchyard.models.publisher MODEL --bucket BUCKET`` is what CodeBuild runs (``images/model.buildspec.yml``).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import boto3
from botocore.exceptions import ClientError

from switchyard.exit_codes import CommandError, ExitCode
from switchyard.models import storage
from switchyard.models.catalogue import find
from switchyard.models.manifest import FILE_NAME, manifest_sha256, model_manifest, model_prefix

PART_BYTES = 64 << 20
"""Size of one part of a large file; with the 10,000 parts that S3 allows, a file may have 640 GiB."""


def publish(model: str, *, bucket: str, s3: Any) -> tuple[str, str]:
    """Verify a pulled model and upload what of it is not in the bucket yet; the manifest last.

    A model is complete when its manifest is there. Every write carries ``If-None-Match: *``, so that S3 itself refuses
    to replace a file; one that is there already must be the same.

    Args:
        model: Its name in the catalogue. It must have been pulled.
        bucket: Name of the artifact bucket.
        s3: A boto3 client for S3.

    Returns:
        The key, ending in ``/``, and the sha256 of the manifest.

    Raises:
        CommandError: The model is missing or not the pinned file, or another file lies at one of its keys.
        botocore.exceptions.ClientError: S3 refused.
    """
    entry = find(model)
    path = storage.verify(entry)
    manifest = model_manifest(entry, size=path.stat().st_size)
    key = model_prefix(entry, manifest)
    digest = manifest_sha256(manifest)
    _upload(s3, bucket, f"{key}{entry.file.name}", path, sha256=entry.file.sha256)
    _upload(s3, bucket, f"{key}{FILE_NAME}", manifest, sha256=digest)
    return key, digest


def _upload(s3: Any, bucket: str, key: str, content: Path | bytes, *, sha256: str) -> None:
    """Create one object, or find that it is there already."""
    size = len(content) if isinstance(content, bytes) else content.stat().st_size
    if _is_there(s3, bucket, key, size=size, sha256=sha256):
        return
    try:
        if isinstance(content, bytes):
            s3.put_object(Bucket=bucket, Key=key, Body=content, IfNoneMatch="*", Metadata={"sha256": sha256})
        else:
            _upload_parts(s3, bucket, key, content, sha256=sha256)
    except ClientError as error:
        # Someone else was faster; what they wrote is compared like what was there before.
        if error.response["Error"]["Code"] not in ("PreconditionFailed", "ConditionalRequestConflict"):
            raise
        if not _is_there(s3, bucket, key, size=size, sha256=sha256):
            raise


def _upload_parts(s3: Any, bucket: str, key: str, path: Path, *, sha256: str) -> None:
    upload = s3.create_multipart_upload(Bucket=bucket, Key=key, Metadata={"sha256": sha256})["UploadId"]
    try:
        parts: list[dict[str, Any]] = []
        with path.open("rb") as file:
            while block := file.read(PART_BYTES):
                number = len(parts) + 1
                part = s3.upload_part(Bucket=bucket, Key=key, UploadId=upload, PartNumber=number, Body=block)
                # S3 keeps a checksum per part (CRC-32 by default) and wants it again where it was sent.
                sums = {name: value for name, value in part.items() if name.startswith("Checksum")}
                parts.append({"PartNumber": number, "ETag": part["ETag"], **sums})
        s3.complete_multipart_upload(
            Bucket=bucket, Key=key, UploadId=upload, MultipartUpload={"Parts": parts}, IfNoneMatch="*"
        )
    except BaseException:
        s3.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=upload)
        raise


def _is_there(s3: Any, bucket: str, key: str, *, size: int, sha256: str) -> bool:
    """Whether the object is known to exist.

    Raises:
        CommandError: It does, and is another file.
    """
    try:
        head = s3.head_object(Bucket=bucket, Key=key)
    except ClientError as error:
        # S3 answers 403 for what is missing to those who may not list the bucket; the write then tells which it is.
        if error.response["Error"]["Code"] in ("403", "404", "NoSuchKey"):
            return False
        raise
    found = (head["ContentLength"], head["Metadata"].get("sha256"))
    if found != (size, sha256):
        raise CommandError(
            f"s3://{bucket}/{key} is there already and is another file: it has {found[0]} bytes and sha256 {found[1]}, "
            f"and {size} bytes and {sha256} were to be published",
            code=ExitCode.MODEL,
            hint="Published files are never replaced. Find out who wrote it before you delete it.",
        )
    return True


def main(arguments: list[str] | None = None) -> int:
    """Publish, and print ``MODEL_KEY=...`` and ``MODEL_MANIFEST_SHA256=...`` for a shell to read."""
    parser = argparse.ArgumentParser(prog="python -m switchyard.models.publisher", description=__doc__)
    parser.add_argument("model", help="A name of the catalogue, pulled before.")
    parser.add_argument("--bucket", required=True, help="The artifact bucket.")
    options = parser.parse_args(arguments)
    try:
        key, digest = publish(options.model, bucket=options.bucket, s3=boto3.client("s3"))
    except CommandError as error:
        sys.stderr.write(f"error: {error.message}\n" + (f"{error.hint}\n" if error.hint else ""))
        return int(error.code)
    sys.stdout.write(f"MODEL_KEY={key}\nMODEL_MANIFEST_SHA256={digest}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

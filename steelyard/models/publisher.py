"""Put a verified model into an artifact bucket, below the prefix that its manifest's hash names; never over anything.

S3 proves the content: each part carries the SHA-256 of the bytes that were verified here, S3 hashes what arrives and
refuses a part that differs, and the checksum that it keeps is compared when the same model is published again.
"""

from __future__ import annotations

import base64
import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from steelyard.models import storage
from steelyard.models.catalogue import CatalogueEntry, find
from steelyard.models.claims import check_claims
from steelyard.models.manifest import FILE_NAME, manifest_sha256, model_manifest, model_prefix
from steelyard.models.package import ARCHIVE, write_package_archive
from steelyard.models.parallel import Tally, check, ordered
from steelyard.models.pull import Progress, Silent
from steelyard_base.exit_codes import CommandError, ExitCode

PART_BYTES = 64 << 20
"""Size of one part of a large file; with the 10,000 parts that S3 allows, a file may have 640 GiB. The checksum that S3
keeps depends on it, so that a model published with another one could not be compared."""

AT_ONCE = 4
"""Parts that are uploaded at the same time; each is held in memory."""

_TAKEN = ("PreconditionFailed", "ConditionalRequestConflict")
_DAMAGED = ("BadDigest", "InvalidDigest", "XAmzContentChecksumMismatch")


class Published(NamedTuple):
    """A model in a bucket.

    Attributes:
        key: Its prefix, ending in ``/``, or the key of its archive.
        manifest_sha256: Hash of its manifest.
    """

    key: str
    manifest_sha256: str


@dataclass(frozen=True, kw_only=True)
class _Content:
    """Content of one object, hashed before anything is sent.

    Attributes:
        data: The bytes, or the file that has them.
        size: In bytes.
        sha256: In hexadecimal digits.
        parts: SHA-256 of each part of ``PART_BYTES``.
    """

    data: Path | bytes
    size: int
    sha256: str
    parts: tuple[bytes, ...]

    @property
    def checksum(self) -> str:
        """The checksum that S3 keeps: of the object, or of its parts' checksums when there are several."""
        if len(self.parts) == 1:
            return _base64(self.parts[0])
        return f"{_base64(hashlib.sha256(b''.join(self.parts)).digest())}-{len(self.parts)}"


def publish(
    model: str,
    *,
    bucket: str,
    s3: Any,
    archive: bool = False,
    progress: Progress | None = None,
    warn: Callable[[str], None] = lambda _warning: None,
) -> Published:
    """Verify a pulled model and upload what of it is not in the bucket yet; the manifest last.

    A model is complete when its manifest is there. Every write carries ``If-None-Match: *``, so that S3 itself refuses
    to replace a file; one that is there already must be the same. Interrupted, it leaves no half file, and the next
    run continues with the files that are missing.

    Args:
        model: Its name in the catalogue. It must have been pulled.
        bucket: Name of the artifact bucket.
        s3: A boto3 client for S3.
        archive: Publish one ``.tar.gz``, which carries the manifest, instead of the files themselves.
        progress: Receives progress.
        warn: Receives what the model's chat template tries.

    Raises:
        CommandError: The model is missing or not the pinned one, another file lies at its prefix, or S3 refused.
    """
    from steelyard.aws.session import aws_errors

    shown = progress or Silent()
    entry = find(model)
    paths = [storage.file_path(entry, file) for file in entry.files]
    for file, path in zip(entry.files, paths, strict=True):
        if not path.is_file():
            raise storage.missing(entry, file)
    contents = _hash_all(entry, paths, shown)
    for warning in check_claims(entry)[1]:
        warn(warning)
    manifest = model_manifest(entry, {path.name: path.stat().st_size for path in paths})
    prefix = model_prefix(entry, manifest)
    with aws_errors():
        if archive:
            key = prefix.removesuffix("/") + ".tar.gz"
            _publish_archive(s3, bucket, key, entry, manifest, shown)
        else:
            key = prefix
            _publish_files(s3, bucket, prefix, contents, manifest, shown)
    return Published(key=key, manifest_sha256=manifest_sha256(manifest))


def _hash_all(entry: CatalogueEntry, paths: Sequence[Path], progress: Progress) -> dict[str, _Content]:
    """All files are hashed before the first is sent, so that a wrong one leaves the bucket as it was."""
    tally = Tally(lambda done, total: progress.step("verifying", done, total), sum(p.stat().st_size for p in paths))
    contents = {}
    for file, path in zip(entry.files, paths, strict=True):
        content = _hashed(path, partial(tally.set, path.name))
        storage.require_pinned(path, file, found=content.sha256, size=content.size)
        contents[path.name] = content
    return contents


def _publish_files(
    s3: Any, bucket: str, prefix: str, contents: Mapping[str, _Content], manifest: bytes, progress: Progress
) -> None:
    _require_no_strangers(s3, bucket, prefix, {*contents, FILE_NAME})
    tally = Tally(
        lambda done, total: progress.step("uploading", done, total), sum(each.size for each in contents.values())
    )
    for name, content in contents.items():
        _upload(s3, bucket, f"{prefix}{name}", content, partial(tally.set, name))
    _upload(s3, bucket, f"{prefix}{FILE_NAME}", _hashed(manifest), lambda _done: None)


def _publish_archive(
    s3: Any, bucket: str, key: str, entry: CatalogueEntry, manifest: bytes, progress: Progress
) -> None:
    """The archive is written beside the model first, because S3 wants checksums before it gets bytes."""
    folder = storage.model_folder(entry)
    target = folder / f".{ARCHIVE}"
    try:
        with storage.exclusive(folder, progress.waiting):
            target.unlink(missing_ok=True)  # of a run that was killed
            try:
                write_package_archive(entry, target, manifest, progress)
                size = target.stat().st_size
                content = _hashed(target, lambda done: progress.step("hashing", done, size))
                _upload(s3, bucket, key, content, lambda done: progress.step("uploading", done, size))
            finally:
                target.unlink(missing_ok=True)
    except OSError as error:
        raise storage.disk_error(folder, error) from error


def _require_no_strangers(s3: Any, bucket: str, prefix: str, names: set[str]) -> None:
    """SageMaker downloads all that lies below a prefix, so nothing else may lie there."""
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    found = [each["Key"] for page in pages for each in page.get("Contents", ())]
    if strangers := sorted(key for key in found if key.removeprefix(prefix) not in names):
        raise CommandError(
            f"s3://{bucket}/{strangers[0]} lies where only the files of this model belong"
            + (f", and {len(strangers) - 1} more" if len(strangers) > 1 else ""),
            code=ExitCode.MODEL,
            hint="An endpoint would be given it too. Find out who wrote it before you delete it.",
        )


def _hashed(data: Path | bytes, report: Callable[[int], None] = lambda _done: None) -> _Content:
    """Read everything once: the hash of the whole, and of each part."""
    whole, parts, size = hashlib.sha256(), list[bytes](), 0
    if isinstance(data, bytes):
        whole.update(data)
        return _Content(data=data, size=len(data), sha256=whole.hexdigest(), parts=(whole.digest(),))
    with data.open("rb") as file:
        part, left = hashlib.sha256(), PART_BYTES
        while block := file.read(min(storage.BLOCK, left)):
            whole.update(block)
            part.update(block)
            size += len(block)
            left -= len(block)
            if left == 0:
                parts.append(part.digest())
                part, left = hashlib.sha256(), PART_BYTES
            report(size)
        if left < PART_BYTES or not parts:
            parts.append(part.digest())
    return _Content(data=data, size=size, sha256=whole.hexdigest(), parts=tuple(parts))


def _upload(s3: Any, bucket: str, key: str, content: _Content, report: Callable[[int], None]) -> None:
    """Create one object, or find that it is there already."""
    from botocore.exceptions import ClientError

    from steelyard.aws.session import error_code

    if _is_there(s3, bucket, key, content):
        report(content.size)
        return
    try:
        if len(content.parts) == 1:
            body = content.data if isinstance(content.data, bytes) else content.data.read_bytes()
            s3.put_object(
                Bucket=bucket,
                Key=key,
                Body=body,
                IfNoneMatch="*",
                ChecksumSHA256=content.checksum,
                Metadata={"sha256": content.sha256},
            )
            report(content.size)
        else:
            _upload_parts(s3, bucket, key, content, report)
    except ClientError as error:
        if error_code(error) in _DAMAGED:
            raise CommandError(
                f"S3 refused s3://{bucket}/{key}: what arrived is not what was verified here ({error_code(error)})",
                code=ExitCode.MODEL,
                hint="The file changed while it was uploaded, or the network damaged it. Nothing was published; "
                "verify the model and run the command again.",
            ) from error
        # Someone else was faster; what they wrote is compared like what was there before.
        if error_code(error) not in _TAKEN:
            raise
        if not _is_there(s3, bucket, key, content):
            raise


def _upload_parts(s3: Any, bucket: str, key: str, content: _Content, report: Callable[[int], None]) -> None:
    upload = s3.create_multipart_upload(
        Bucket=bucket, Key=key, ChecksumAlgorithm="SHA256", Metadata={"sha256": content.sha256}
    )["UploadId"]
    tally = Tally(lambda done, _total: report(done), content.size)

    def job(number: int) -> Callable[[threading.Event], dict[str, Any]]:
        return lambda stop: _upload_part(s3, bucket, key, upload, number, content, stop, tally)

    try:
        with closing(ordered([job(number) for number in range(1, len(content.parts) + 1)], workers=AT_ONCE)) as results:
            parts = list(results)
        done = s3.complete_multipart_upload(
            Bucket=bucket, Key=key, UploadId=upload, MultipartUpload={"Parts": parts}, IfNoneMatch="*"
        )
    except BaseException:
        # A second Ctrl-C must not leave the parts behind: they cost money and no listing of objects shows them.
        aborting = threading.Thread(target=_abort, args=(s3, bucket, key, upload))
        aborting.start()
        while aborting.is_alive():
            with suppress(KeyboardInterrupt):
                aborting.join()
        raise
    if done.get("ChecksumSHA256") != content.checksum:
        raise CommandError(
            f"S3 keeps the checksum {done.get('ChecksumSHA256')} for s3://{bucket}/{key}, and {content.checksum} was "
            "expected",
            code=ExitCode.MODEL,
        )


def _upload_part(
    s3: Any, bucket: str, key: str, upload: str, number: int, content: _Content, stop: threading.Event, tally: Tally
) -> dict[str, Any]:
    """Send one part; S3 hashes it and refuses it when it is not what was verified."""
    check(stop)
    assert isinstance(content.data, Path)  # noqa: S101 - bytes have one part
    with content.data.open("rb") as file:
        file.seek((number - 1) * PART_BYTES)
        block = file.read(PART_BYTES)
    checksum = _base64(content.parts[number - 1])
    part = s3.upload_part(
        Bucket=bucket, Key=key, UploadId=upload, PartNumber=number, Body=block, ChecksumSHA256=checksum
    )
    tally.set(str(number), len(block))
    return {"PartNumber": number, "ETag": part["ETag"], "ChecksumSHA256": checksum}


def _abort(s3: Any, bucket: str, key: str, upload: str) -> None:
    from botocore.exceptions import BotoCoreError, ClientError

    # What cannot be aborted any more is removed by the bucket's rule for unfinished uploads.
    with suppress(BotoCoreError, ClientError):
        s3.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=upload)


def _is_there(s3: Any, bucket: str, key: str, content: _Content) -> bool:
    """Return whether the object is known to exist.

    Raises:
        CommandError: It does, and is another file, or S3 keeps no checksum that could tell.
    """
    from botocore.exceptions import ClientError

    from steelyard.aws.session import error_code

    try:
        head = s3.head_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED")
    except ClientError as error:
        # S3 answers 403 for what is missing to those who may not list the bucket; the write then tells which it is.
        if error_code(error) in ("403", "404", "NoSuchKey"):
            return False
        raise
    found = (head["ContentLength"], head.get("ChecksumSHA256"))
    if found != (content.size, content.checksum):
        raise CommandError(
            f"s3://{bucket}/{key} is there already and is another file: it has {found[0]} bytes and the checksum "
            f"{found[1]}, and {content.size} bytes and {content.checksum} were to be published",
            code=ExitCode.MODEL,
            hint="Published files are never replaced. Find out who wrote it before you delete it.",
        )
    return True


def _base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode("ascii")

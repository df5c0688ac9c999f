"""``model.tar.gz`` with the same bytes each time, on every machine.

Weights hardly compress, and what a compressor writes differs between its versions. So the gzip stream holds the archive
as it is, in stored blocks (RFC 1951, 3.2.4): any gunzip reads it, and its bytes depend on the files alone.
"""

from __future__ import annotations

import hashlib
import os
import struct
import tarfile
import zlib
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, cast

BLOCK = 65535
"""Most bytes of a stored block."""

# Magic, deflate, no flags, time 0, no extra flags, operating system unknown (RFC 1952).
_HEADER = bytes((0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 0, 255))
_LAST_EMPTY_BLOCK = b"\x01\x00\x00\xff\xff"


class StoredGzip:
    """A gzip stream without compression, for ``tarfile`` to write to.

    Args:
        file: Where the stream goes.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._waiting = bytearray()
        self._crc = 0
        self._size = 0
        file.write(_HEADER)

    def write(self, data: bytes) -> int:
        """Take bytes of the archive; whole blocks of them are written."""
        self._crc = zlib.crc32(data, self._crc)
        self._size += len(data)
        self._waiting += data
        whole = len(self._waiting) // BLOCK * BLOCK
        for start in range(0, whole, BLOCK):
            self._block(bytes(self._waiting[start : start + BLOCK]))
        del self._waiting[:whole]
        return len(data)

    def finish(self) -> None:
        """Write what is left, and the end of the stream."""
        if self._waiting:
            self._block(bytes(self._waiting))
        self._file.write(_LAST_EMPTY_BLOCK + struct.pack("<II", self._crc, self._size & 0xFFFFFFFF))

    def _block(self, data: bytes) -> None:
        self._file.write(struct.pack("<BHH", 0, len(data), len(data) ^ 0xFFFF) + data)


def write_archive(
    target: Path,
    members: Sequence[tuple[str, Path | bytes]],
    *,
    advance: Callable[[int], None] = lambda _count: None,
) -> dict[str, str]:
    """Write ``members`` in their order. Nothing of the machine is in it: no times, owners or modes.

    Args:
        target: A new file.
        members: Name and content of each.
        advance: Receives the bytes of each block that was read.

    Returns:
        sha256 of each member by name, of the bytes that went into the archive.
    """
    digests = {}
    with target.open("xb") as file:
        stream = StoredGzip(file)
        with tarfile.open(fileobj=cast(BinaryIO, stream), mode="w|", format=tarfile.PAX_FORMAT) as archive:
            for name, content in members:
                digest = hashlib.sha256()
                with BytesIO(content) if isinstance(content, bytes) else content.open("rb") as source:
                    info = tarfile.TarInfo(name)
                    info.size = len(content) if isinstance(content, bytes) else content.stat().st_size
                    info.mode = 0o644
                    archive.addfile(info, cast(BinaryIO, _Hashing(source, digest, advance)))
                digests[name] = digest.hexdigest()
        stream.finish()
        file.flush()
        os.fsync(file.fileno())
    return digests


def archive_bytes(sizes: Sequence[int]) -> int:
    """About how large an archive of members of these sizes is, never less than it is."""
    content = sum(size + 2048 for size in sizes) + 20480
    return content + 5 * (content // BLOCK + 2) + len(_HEADER) + 8


class _Hashing:
    """A file that hashes what is read from it."""

    def __init__(self, file: BinaryIO, digest: hashlib._Hash, advance: Callable[[int], None]) -> None:
        self._file = file
        self._digest = digest
        self._advance = advance

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._digest.update(data)
        self._advance(len(data))
        return data

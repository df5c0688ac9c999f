"""Files that are read as a whole: within a limit, and without waiting for somebody to write them."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_BLOCK = 1 << 20


def read_whole(path: Path, *, most: int, pipes: bool = False) -> bytes:
    """Return the bytes of a file.

    Args:
        path: The file. A device is none: it may have no end.
        most: Bytes that it may have.
        pipes: Take a named pipe or a shell's ``<(...)``, too, and wait for whoever writes it.

    Raises:
        OSError: It cannot be read, is no file, or is too long; ``strerror`` says which, with both numbers.
    """
    with open(path, "rb", opener=None if pipes else without_waiting) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) and not (pipes and stat.S_ISFIFO(status.st_mode)):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        if status.st_size > most:
            raise OSError(errno.EFBIG, f"it has {status.st_size} bytes and {most} are allowed", str(path))
        content = bytearray()
        # Some files do not know their size, and a file may grow.
        while block := file.read(_BLOCK):
            content += block
            if len(content) > most:
                raise OSError(errno.EFBIG, f"it has more than {most} bytes, which is the limit", str(path))
    return bytes(content)


def without_waiting(path: str, flags: int) -> int:
    """Open a file for ``open``; a named pipe that nobody writes is open at once, so that it can be refused."""
    return os.open(path, flags | os.O_NONBLOCK)

"""Write log lines without ever waiting for their reader.

A pipe that nobody reads is full after 64 KiB, and then a write to it never returns. So lines wait in a bounded queue
for a thread that may be stuck, and what does not fit is dropped and counted.
"""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime

QUEUE_BYTES = 4 << 20
"""Most bytes of lines that wait to be written; the newest are dropped."""
FLUSH_S = 1.0
"""Seconds that the end of the process waits for lines to be written."""


_LINE_END = ord("\n")
_FOR_GOOD = (errno.EPIPE, errno.EBADF, errno.EIO, errno.ECONNRESET)


def dropped_line(count: int) -> str:
    """Return the line that stands where ``count`` lines were dropped."""
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    return json.dumps({"lines": count, "event": "log_lines_dropped", "level": "warning", "time": now}) + "\n"


class LogWriter:
    """A text stream over a file descriptor whose ``write`` returns at once.

    Args:
        descriptor: Where lines go, None for nowhere.
        queue_bytes: Most bytes that wait.
        describe_drop: Makes the line that says how many were dropped.

    Attributes:
        dropped: Lines that were not written, because too many were waiting or nobody can read them any more.
    """

    def __init__(
        self,
        descriptor: int | None,
        *,
        queue_bytes: int = QUEUE_BYTES,
        describe_drop: Callable[[int], str] = dropped_line,
    ) -> None:
        self.dropped = 0
        self._descriptor = descriptor
        self._limit = queue_bytes
        self._describe_drop = describe_drop
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._unsaid = 0
        self._writing = False
        self._torn = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def write(self, text: str) -> None:
        """Take one line, whole with its end; a line that does not fit any more is dropped."""
        line = text.encode("utf-8", "backslashreplace")
        with self._changed:
            if self._descriptor is None or (self._lines and self._bytes + len(line) > self._limit):
                self.dropped += 1
                self._unsaid += 1
                return
            if self._unsaid:
                self._append(self._note())
            self._append(line)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def isatty(self) -> bool:
        """Tell whether a person reads it on a terminal."""
        return self._descriptor is not None and os.isatty(self._descriptor)

    def flush(self) -> None:
        """Do nothing; see ``drain``."""

    def drain(self, *, timeout_s: float = FLUSH_S) -> bool:
        """Wait until every line is written, no longer than ``timeout_s`` seconds; whether they were."""
        until = time.monotonic() + timeout_s
        with self._changed:
            while self._lines or self._writing or self._unsaid:
                left = until - time.monotonic()
                if left <= 0 or self._descriptor is None:
                    return not (self._lines or self._writing)
                self._changed.wait(left)
        return True

    def _run(self) -> None:
        while True:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
                while not (self._lines or self._unsaid):
                    self._changed.wait()
                self._writing = True
                if not self._lines:
                    self._append(self._note())
                data = self._lines.popleft()
                self._bytes -= len(data)
            if not self._write_whole(data):
                self._give_up()
                return

    def _append(self, line: bytes) -> None:
        self._lines.append(line)
        self._bytes += len(line)

    def _note(self) -> bytes:
        """Return the line for what was dropped; its place is behind all that waited then."""
        count, self._unsaid = self._unsaid, 0
        return self._describe_drop(count).encode()

    def _write_whole(self, data: bytes) -> bool:
        """Write all of ``data``; False when nobody can read it any more."""
        descriptor = self._descriptor
        # Behind a line of which a full disk took a part, on a line of its own.
        whole = memoryview(b"\n" + data if self._torn else data)
        rest = whole
        while rest and descriptor is not None:
            try:
                rest = rest[os.write(descriptor, rest) :]
            except BlockingIOError:  # somebody else made it non-blocking
                time.sleep(0.05)
            except OSError as error:
                if error.errno in _FOR_GOOD:
                    return False
                time.sleep(0.05)  # a full disk, for one, may have room again
                if written := len(whole) - len(rest):
                    self._torn = whole[written - 1] != _LINE_END
                with self._changed:
                    self.dropped += 1
                    self._unsaid += 1
                return True
        self._torn = False
        return True

    def _give_up(self) -> None:
        with self._changed:
            self._descriptor = None
            self.dropped += 1 + len(self._lines)
            self._lines.clear()
            self._bytes = self._unsaid = 0
            self._writing = False
            self._changed.notify_all()

"""One endpoint's process: started under a guard, pinged, logged, stopped."""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from switchyard_localcloud.ports import HOST
from switchyard_localcloud.sagemaker import guard
from switchyard_localcloud.sagemaker.container import Launch

PING_S = 2.0
_KILL_AFTER_S = guard.GRACE_S + 5.0


class Process:
    """A running stand-in for one container.

    Args:
        launch: How to start it.
        port: Port that it listens on.
        folder: Its folder; ``process.json`` there names its ids while it runs.
        write: Takes each line that it prints.
    """

    def __init__(self, launch: Launch, *, port: int, folder: Path, write: Callable[[str], None]) -> None:
        self.launch = launch
        self.port = port
        self._folder = folder
        self._write = write
        self._lines = threading.Thread(target=self._read_lines, daemon=True)
        # -I and -S: the guard starts in a few milliseconds and imports nothing of the site's.
        self._process = subprocess.Popen(  # noqa: S603 - the command comes from the container's plan
            [sys.executable, "-I", "-S", guard.__file__, *launch.command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=launch.environment,
            cwd=folder,
            text=True,
            errors="replace",
        )
        self._record().write_text(
            json.dumps({"guard": self._process.pid, "port": port, "command": launch.command}), encoding="utf-8"
        )
        self._lines.start()

    @property
    def pid(self) -> int:
        """Id of the guard, whose child is the command."""
        return self._process.pid

    def exit_status(self) -> int | None:
        """The exit status; None while it runs."""
        return self._process.poll()

    def healthy(self) -> bool:
        """Whether the health check gets 200 within the 2 seconds that SageMaker waits."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=PING_S)
        try:
            connection.request("GET", self.launch.ping_path)
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def stop(self) -> None:
        """SIGTERM, SIGKILL after 30 seconds, and wait for the end."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_KILL_AFTER_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._lines.join(timeout=5)
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        self._record().unlink(missing_ok=True)

    def _read_lines(self) -> None:
        for line in self._process.stdout or ():
            self._write(line.rstrip("\n"))

    def _record(self) -> Path:
        return self._folder / "process.json"

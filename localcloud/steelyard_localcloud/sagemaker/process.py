"""One endpoint's process or container: started under a guard, pinged, logged, stopped."""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from steelyard_localcloud.ports import HOST
from steelyard_localcloud.sagemaker import guard, relay
from steelyard_localcloud.sagemaker.launch import Launch

PING_S = 2.0
_KILL_AFTER_S = guard.GRACE_S + 5.0


class Process:
    """A running container, or the process that stands in for one.

    Args:
        launch: How to start it.
        port: Port of this machine at which it is reached.
        folder: Its folder; ``process.json`` there names its ids while it runs.
        write: Takes each line that it prints.
    """

    def __init__(self, launch: Launch, *, port: int, folder: Path, write: Callable[[str], None]) -> None:
        self.launch = launch
        self.port = port
        self._folder = folder
        self._write = write
        self._lines = threading.Thread(target=self._read_lines, daemon=True)
        afterwards = ["--afterwards", json.dumps(launch.afterwards)] if launch.afterwards else []
        self._relay = None if launch.pid_file is None else _script(relay.__file__, str(port), str(launch.pid_file))
        self._process = _script(
            guard.__file__,
            *afterwards,
            *launch.command,
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
        """Id of the process whose use of the machine counts: the container's first, or the guard over a command."""
        if self.launch.pid_file is not None:
            with contextlib.suppress(OSError, ValueError):
                return int(self.launch.pid_file.read_text(encoding="ascii"))
        return self._process.pid

    def exit_status(self) -> int | None:
        """The exit status; None while it runs."""
        return self._process.poll()

    def healthy(self) -> bool:
        """Return whether the health check gets 200 within the 2 seconds that SageMaker waits."""
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
        if self._process.returncode < 0 and self.launch.afterwards:
            # Killed, the guard removed nothing.
            subprocess.run(self.launch.afterwards, env=self.launch.environment, capture_output=True, check=False)  # noqa: S603
        self._lines.join(timeout=5)
        for script in (self._process, self._relay):
            if script is not None and script.stdin is not None:
                with contextlib.suppress(OSError):
                    script.stdin.close()
        if self._relay is not None:
            self._relay.wait()
        self._record().unlink(missing_ok=True)

    def _read_lines(self) -> None:
        for line in self._process.stdout or ():
            self._write(line.rstrip("\n"))

    def _record(self) -> Path:
        return self._folder / "process.json"


def _script(path: str, *words: str, **options: Any) -> subprocess.Popen[str]:
    """Start one of our programs, which ends when its standard input does.

    -I and -S: it starts in a few milliseconds and imports nothing of the site's.
    """
    return subprocess.Popen([sys.executable, "-I", "-S", path, *words], stdin=subprocess.PIPE, **options)  # noqa: S603

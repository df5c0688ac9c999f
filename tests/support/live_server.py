"""Servers that listen on real sockets: as a process, or in a thread of the test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import httpx
import uvicorn
from starlette.types import ASGIApp

from steelyard_runtime.http.connections import Connections
from steelyard_runtime.http.protocol import Protocol as HttpProtocol

START_S = 120.0


class Serving(Protocol):
    """A server that runs, in whatever way."""

    url: str
    lines: list[dict[str, Any]]


class ServerProcess:
    """A server in a process of its own.

    Settings are given as keyword arguments and passed on through the environment. ``lines`` holds the log so far.
    """

    def __init__(self, *, command: list[str] | None = None, **settings: object) -> None:
        self.command = command or [sys.executable, "-m", "steelyard_runtime.http.serve"]
        self.settings = {"port": 0, **settings}
        self.lines: list[dict[str, Any]] = []
        self.url = ""
        self.process: subprocess.Popen[str]
        self.errors = ""

    def start(self) -> None:
        environment = {
            **os.environ,
            **{f"STEELYARD_{name.upper()}": str(value) for name, value in self.settings.items()},
        }
        self.process = subprocess.Popen(
            self.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        for target in (self._read_log, self._read_errors):
            threading.Thread(target=target, daemon=True).start()

    def _read_log(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(json.loads(line))

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors += line

    def wait_for(self, event: str) -> dict[str, Any]:
        """The first log line of that event."""
        limit = time.monotonic() + START_S
        while time.monotonic() < limit:
            ended = self.process.poll() is not None
            for line in list(self.lines):
                if line["event"] == event:
                    return line
            if ended:
                break
            time.sleep(0.02)
        raise AssertionError(
            f"no {event!r}; status {self.process.poll()}, log {self.lines}, errors {self.errors[-2000:]}"
        )

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the end."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(timeout=60)
        finally:
            if self.process.poll() is None:
                self.process.kill()

    @contextmanager
    def running(self, until: str = "ready") -> Iterator[ServerProcess]:
        """Start, wait for ``until``, stop at the end."""
        self.start()
        try:
            self.url = self.wait_for("listening")["url"]
            self.wait_for(until)
            yield self
        finally:
            self.stop()


class ServerThread:
    """An application on a real socket, served by a thread of the test's process."""

    def __init__(self, app: ASGIApp, *, connections: Connections | None = None) -> None:
        protocol: Any = partial(HttpProtocol, connections=connections)
        self._server = uvicorn.Server(
            uvicorn.Config(
                app, host="127.0.0.1", port=0, http=protocol, ws="none", lifespan="off", log_config=None,
                timeout_graceful_shutdown=1,
            )
        )  # fmt: skip
        self.port = 0
        self.url = ""

    @contextmanager
    def running(self) -> Iterator[ServerThread]:
        thread = threading.Thread(target=self._server.run, daemon=True)
        thread.start()
        while not self._server.started:
            time.sleep(0.005)
        self.port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        try:
            yield self
        finally:
            self._server.should_exit = True
            thread.join(timeout=10)


def eventually(condition: Any, *, within_s: float = 10.0) -> bool:
    """Whether ``condition()`` becomes true; polls, so that a test waits no longer than it has to."""
    limit = time.monotonic() + within_s
    while time.monotonic() < limit:
        if condition():
            return True
        time.sleep(0.01)
    return bool(condition())


def get_status(url: str) -> int:
    """The status of a GET."""
    return httpx.get(url, timeout=5).status_code

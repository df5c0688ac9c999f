"""The server under attack: any command that serves on a port, watched from outside through ``/proc``."""

from __future__ import annotations

import fcntl
import http.client
import os
import resource
import shlex
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers import machine

HOST = "127.0.0.1"
START_S = 120.0
STOP_S = 32.0
SAMPLE_S = 0.1
PIPE_BYTES = 4096


@dataclass(frozen=True)
class Plan:
    """The start of the server.

    Attributes:
        command: With ``{model}`` and ``{port}`` where these belong.
        model: The GGUF file.
        logs: Folder for what servers print.
        memory_limit: Bytes of its own; a server that takes more is killed, so that the machine survives.
        caller_header: The header in which a caller gives its name.
    """

    command: str
    model: Path
    logs: Path
    memory_limit: int = 6 << 30
    caller_header: str = "X-Steelyard-Caller"


@dataclass
class Server:
    """A server that runs, and what it has used so far."""

    port: int
    process: subprocess.Popen[bytes]
    log: Path
    peak_bytes: int = 0
    killed_for_memory: bool = False
    _over: threading.Event = field(default_factory=threading.Event)

    @property
    def alive(self) -> bool:
        """Tell whether its process has not ended."""
        return self.process.poll() is None

    @property
    def own_bytes(self) -> int:
        """Memory of its process group, without mapped files such as the weights."""
        return machine.memory(self.process.pid).own

    @property
    def cpu_s(self) -> float:
        """Processor time of its process group."""
        return machine.cpu_seconds(self.process.pid)

    @property
    def log_bytes(self) -> int:
        """Its output so far."""
        return self.log.stat().st_size if self.log.exists() else 0

    def watch(self, limit: int) -> None:
        """Keep the peak of its memory until it ends, and kill it above ``limit`` bytes."""
        while not self._over.wait(SAMPLE_S):
            own = self.own_bytes
            self.peak_bytes = max(self.peak_bytes, own)
            if own > limit:
                self.killed_for_memory = True
                os.killpg(self.process.pid, signal.SIGKILL)
                return

    def stop(self) -> tuple[int, float]:
        """Send SIGTERM, and SIGKILL after ``STOP_S``: its status, negative for a signal, and the seconds it took."""
        started = time.monotonic()
        if self.alive:
            os.kill(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        return self.process.returncode, time.monotonic() - started

    def end_watch(self) -> None:
        """End ``watch``, and whatever the server left running."""
        self._over.set()
        for pid in machine.group(self.process.pid):
            os.kill(pid, signal.SIGKILL)


@contextmanager
def serving(
    plan: Plan, name: str, *, open_files: int | None = None, unread_output: bool = False, model: Path | None = None
) -> Iterator[Server]:
    """Start the server, without waiting until it is ready; it is stopped when the block ends.

    Args:
        plan: How.
        name: Of its log.
        open_files: Limit on its descriptors, both the soft and the hard one.
        unread_output: Give it a pipe for its output that nobody reads, instead of a file.
        model: Another model than the plan's.
    """
    plan.logs.mkdir(parents=True, exist_ok=True)
    port, log = free_port(), plan.logs / f"{name}.log"
    command = shlex.split(plan.command.format(model=model or plan.model, port=port))

    def limit() -> None:
        if open_files is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))

    with log.open("wb") as sink:
        process = subprocess.Popen(
            command,
            cwd=plan.logs,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if unread_output else sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=limit,
        )
    if process.stdout is not None:
        # Full after some lines instead of some hundred.
        fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    server = Server(port, process, log)
    watcher = threading.Thread(target=server.watch, args=(plan.memory_limit,), daemon=True)
    watcher.start()
    try:
        yield server
    finally:
        if server.alive:
            server.stop()
        server.end_watch()
        watcher.join()
        if process.stdout is not None:
            process.stdout.close()


def wait_ready(server: Server, seconds: float = START_S) -> bool:
    """Wait until ``/ping`` answers 200; False when the server ended, or was not ready in time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and server.alive:
        if ping(server.port, 5.0)[0] == 200:
            return True
        time.sleep(0.1)
    return False


def ping(port: int, patience_s: float) -> tuple[int, float]:
    """The status of ``/ping`` over a new connection, 0 without one, and the seconds it took."""
    started = time.monotonic()
    status, _ = ask(port, "GET", "/ping", None, patience_s=patience_s)
    return status, time.monotonic() - started


def ask(
    port: int, method: str, path: str, body: bytes | None, *, patience_s: float, headers: dict[str, str] | None = None
) -> tuple[int, bytes]:
    """One request over a connection of its own: status and body, or 0 and the reason."""
    link = http.client.HTTPConnection(HOST, port, timeout=max(0.05, patience_s))
    try:
        link.request(method, path, body, {"Content-Type": "application/json", **(headers or {})})
        answer = link.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException) as error:
        return 0, f"{type(error).__name__}: {error}".encode()
    finally:
        link.close()


def free_port() -> int:
    """A port of loopback that nobody uses."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def tail(server: Server, lines: int = 20) -> str:
    """The end of what the server printed."""
    text: Any = server.log.read_bytes()[-8000:].decode("utf-8", "replace")
    return "\n".join(str(text).splitlines()[-lines:])

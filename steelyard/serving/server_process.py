"""A server as a child process: started, waited for, and always stopped."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from steelyard.client.http import Client
from steelyard_base.exit_codes import CommandError, ExitCode

START_S = 300.0
# The server drains for up to 25 s after SIGTERM; a little more, then no mercy.
STOP_S = 30.0
POLL_S = 0.1


def free_port(host: str, wanted: int) -> int:
    """``wanted`` if it is free, else a port that the system picks."""
    for port in (wanted, 0):
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise CommandError(f"nothing can listen on {host}", hint="Give an address of this machine with --host.")


@contextmanager
def running_server(
    arguments: list[str], *, url: str, log: Path, waiting: Callable[[float], None] = lambda _s: None
) -> Iterator[subprocess.Popen[bytes]]:
    """``steelyard serve`` with ``arguments``, ready; stopped when the block ends, however it ends.

    Args:
        arguments: For ``steelyard serve``.
        url: Where it will answer.
        log: Receives what it prints.
        waiting: Receives the seconds waited so far, several times a second.

    Raises:
        CommandError: It stopped before it was ready (the end of its log is quoted), or was not ready in time.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    process: subprocess.Popen[bytes] | None = None
    try:
        with log.open("wb") as sink, _interrupts_later():
            # In its own session, so that Ctrl-C in a terminal reaches us alone, and we stop it in order.
            process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-m", "steelyard", "serve", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        _wait_until_ready(process, url, log, waiting)
        yield process
    finally:
        if process:
            stop(process)


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """Hold Ctrl-C and SIGTERM back until the block ends: in the middle of a fork they would leave a child behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {
        int(number): signal.signal(number, lambda n, _: came.append(n)) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in came:
            signal.raise_signal(number)


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path, waiting: Callable[[float], None]) -> None:
    start = time.monotonic()
    with Client(url) as client:
        while not client.ready():
            waited = time.monotonic() - start
            code = process.poll()
            if code is not None:
                known = code if code in tuple(ExitCode) and code != ExitCode.OK else ExitCode.FAILED
                raise CommandError(
                    f"the server stopped with exit code {code}. It said:\n{tail(log)}", code=ExitCode(known)
                )
            if waited > START_S:
                raise CommandError(f"the server was not ready after {START_S:g} s. It said:\n{tail(log)}")
            waiting(waited)
            time.sleep(POLL_S)


def stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, time to drain, then SIGKILL. A second Ctrl-C cuts the time short."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(STOP_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def tail(log: Path, lines: int = 15) -> str:
    """The last lines of a log, or a word on why there are none."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        return f"(its log {log} cannot be read: {error.strerror})"
    return "\n".join(text.splitlines()[-lines:]) or "(nothing)"

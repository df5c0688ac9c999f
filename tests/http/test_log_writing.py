"""A log that nobody reads, that is read slowly, or that is closed: nothing waits for it. With real pipes."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import pty
import re
import resource
import shlex
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import CapturingLogger

from live_server import eventually, get_status
from steelyard_runtime.http.observability.log_writer import LogWriter
from steelyard_runtime.http.observability.logs import ForwardToLog, Repeats, as_text, make_log
from steelyard_runtime.settings import Settings

STUB = [sys.executable, str(Path(__file__).with_name("stub_process.py"))]
PIPE_BYTES = 4096


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextmanager
def serving(stdout: Any, stderr: Any, **settings: object) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A server process whose output goes where the test wants; its URL."""
    port = free_port()
    values = {"port": port, "drain_s": 20, **settings}
    environment = {**os.environ, **{f"STEELYARD_{name.upper()}": str(value) for name, value in values.items()}}
    process = subprocess.Popen(STUB, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=environment)
    url = f"http://127.0.0.1:{port}"
    try:
        assert eventually(lambda: ready(url), within_s=60)
        yield process, url
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def ready(url: str) -> bool:
    try:
        return get_status(url + "/ping") == 200
    except httpx.TransportError:
        return False


@contextmanager
def unread_pipe() -> Iterator[tuple[int, int]]:
    """A pipe of one page."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    try:
        yield reading, writing
    finally:
        for descriptor in (reading, writing):
            with suppress(OSError):
                os.close(descriptor)


def waiting_in(descriptor: int) -> int:
    """Bytes in a pipe."""
    return int.from_bytes(fcntl.ioctl(descriptor, termios.FIONREAD, b"\0\0\0\0"), sys.byteorder)


def ask(url: str, times: int) -> None:
    with httpx.Client(timeout=20) as client:
        for _ in range(times):
            body = {"state": "x", "questions": {"a": {"type": "noul"}}}
            assert client.post(url + "/v1/systemone", json=body).status_code == 200
            assert client.get(url + "/ping").status_code == 200


def dropped(url: str) -> float:
    found = re.search(r"^steelyard_log_lines_dropped_total (\S+)$", httpx.get(url + "/metrics").text, re.MULTILINE)
    assert found
    return float(found[1])


@pytest.mark.parametrize("stderr_too", [False, True], ids=["stdout", "stdout and stderr"])
def test_output_that_nobody_reads_stops_nothing(stderr_too: bool) -> None:
    with (
        unread_pipe() as (_, writing),
        serving(writing, writing if stderr_too else subprocess.DEVNULL) as (
            process,
            url,
        ),
    ):
        ask(url, 20)
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=10) as connection:
                connection.sendall(b"nonsense\r\n\r\n")
                assert connection.recv(100).startswith(b"HTTP/1.1 400 ")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=25) == 0


def test_output_whose_reader_leaves_stops_nothing() -> None:
    with unread_pipe() as (reading, writing), serving(writing, subprocess.DEVNULL) as (process, url):
        os.close(writing)
        os.close(reading)
        ask(url, 10)
        assert dropped(url) > 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=25) == 0


def test_output_that_is_closed_from_the_start_goes_to_no_caller() -> None:
    port = free_port()
    command = f"STEELYARD_PORT={port} exec {shlex.join(STUB)} >&- 2>&- <&-"
    process = subprocess.Popen(["/bin/sh", "-c", command])
    url = f"http://127.0.0.1:{port}"
    try:
        assert eventually(lambda: ready(url), within_s=60)
        ask(url, 5)
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall(b"GET /ping HTTP/1.1\r\nHost: a\r\n\r\n")
            received = b""
            while b'"ready"}' not in received:
                received += connection.recv(65536)
            ask(url, 1)
            connection.settimeout(0.2)
            with pytest.raises(TimeoutError):
                connection.recv(1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=25) == 0
    finally:
        process.kill()


def test_a_slow_reader_gets_whole_lines_in_their_order() -> None:
    with unread_pipe() as (reading, writing), serving(writing, subprocess.DEVNULL) as (process, url):
        os.close(writing)
        received: list[bytes] = []

        def read_slowly() -> None:
            while piece := os.read(reading, 3000):
                received.append(piece)
                time.sleep(0.001)

        ask(url, 20)
        reader = threading.Thread(target=read_slowly)
        reader.start()
        ask(url, 20)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=25) == 0
        reader.join(timeout=20)
    lines = [json.loads(line) for line in b"".join(received).splitlines()]
    assert sum(line["event"] == "request" for line in lines) >= 80
    assert [line["time"] for line in lines] == sorted(line["time"] for line in lines)
    assert lines[-1]["event"] == "stopped"


def test_a_full_queue_drops_the_newest_lines_and_says_how_many() -> None:
    with unread_pipe() as (reading, writing):
        writer = LogWriter(writing, queue_bytes=20_000, describe_drop=lambda count: f"dropped {count}\n")
        lines = [f"{number:05d} {'x' * 90}\n" for number in range(1000)]
        for line in lines[:60]:
            writer.write(line)
        assert eventually(lambda: waiting_in(reading) > PIPE_BYTES - len(lines[0]))  # now the thread is stuck
        for line in lines[60:]:
            writer.write(line)
        assert writer.dropped > 600
        assert not writer.drain(timeout_s=0.05)
        received = b""
        while not received.endswith(b" end\n"):
            received += os.read(reading, 65536)
            if b"dropped" in received and b" end" not in received:
                writer.write("the end\n")
        told = received.decode().splitlines()
        kept = [line for line in told if "x" in line]
        assert [line + "\n" for line in kept] == lines[: len(kept)]
        assert told[len(kept) :] == [f"dropped {1000 - len(kept)}", "the end"]
        assert writer.dropped == 1000 - len(kept)
        assert writer.drain(timeout_s=5)


def test_a_part_of_a_line_spoils_no_other_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    writer = LogWriter(os.open(path, os.O_WRONLY | os.O_CREAT), describe_drop=lambda count: f"{count} dropped\n")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8, limits[1]))
    try:
        for line in ("first\n", "second\n", "third\n"):
            writer.write(line)
        assert eventually(lambda: writer.dropped >= 2, within_s=10)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    writer.write("fourth\n")
    assert writer.drain(timeout_s=10)
    lines = path.read_text().splitlines()
    assert lines[:2] == ["first", "se"]
    assert "fourth" in lines[2:]
    assert all(re.fullmatch(r"fourth|\d dropped", line) for line in lines[2:])


def test_a_full_disk_loses_lines_and_not_the_log(tmp_path: Path) -> None:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    writer = LogWriter(descriptor)
    writer.write("lost\n")
    assert eventually(lambda: writer.dropped >= 1)
    fixed = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    os.dup2(fixed, descriptor)
    writer.write("kept\n")
    assert eventually(lambda: "kept\n" in (tmp_path / "log").read_text())


def test_one_fault_in_a_loop_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = CapturingLogger()
    handler = ForwardToLog(kept, Settings())  # type: ignore[arg-type]
    now = [1000.0]
    monkeypatch.setattr("steelyard_runtime.http.observability.logs.time.monotonic", lambda: now[0])
    for _ in range(500):
        handler.emit(logging.LogRecord("uvicorn.error", logging.WARNING, "", 1, "Invalid HTTP request.", (), None))
    assert len(kept.calls) == 1
    now[0] += 11
    handler.emit(logging.LogRecord("uvicorn.error", logging.WARNING, "", 1, "Invalid HTTP request.", (), None))
    assert kept.calls[-1].kwargs["repeated"] == 499


def test_the_kinds_of_faults_are_bounded() -> None:
    repeats = Repeats()
    assert sum(repeats.due(number) is not None for number in range(10_000)) <= 65


def test_a_person_at_a_terminal_reads_text_and_a_pipe_json() -> None:
    controller, terminal = pty.openpty()
    with serving(terminal, subprocess.DEVNULL) as (process, url):
        ask(url, 1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=25) == 0
    os.close(terminal)
    text = ""
    with suppress(OSError):  # Linux has this at the end
        while piece := os.read(controller, 65536):
            text += piece.decode()
    lines = text.splitlines()
    assert re.match(r"\d\d:\d\d:\d\d info    listening  url=http://127", lines[0]), lines[0]
    assert any(re.search(r" request  .*route=/v1/systemone .*status=200", line) for line in lines)
    assert not any(line.startswith("{") for line in lines)


@pytest.mark.parametrize(("log_format", "is_json"), [("json", True), ("text", False), ("auto", True)])
def test_the_format_is_a_setting(log_format: Any, is_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    make_log(Settings(log_format=log_format)).info("hello", who="a b", status=200)
    line = capsys.readouterr().out
    assert line.startswith("{") == is_json
    assert is_json or line.endswith(' hello  who="a b" status=200\n')


def test_text_for_people_holds_no_control_characters() -> None:
    entry = {
        "time": "12:00:00", "level": "error", "event": "exception", "raw_body": "\x1b[2J\u202e\x9b", "none": None,
        "tokens": {"prompt": 3, "x": "\x07"}, "traceback": ["a.py:1 in f", "b.py:2 in \x1bg"], "prompt_sha256": ["0"],
    }  # fmt: skip
    text = as_text(None, "", entry)
    assert text.splitlines()[0].startswith("12:00:00 error   exception  raw_body=")
    assert "tokens={prompt=3 x=" in text
    assert "sha256" not in text
    assert len(text.splitlines()) == 3
    assert all(line.isprintable() for line in text.splitlines())

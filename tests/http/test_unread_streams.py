"""A stream that its client does not read gives its place back, and says why to a client that reads after all."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest

from live_server import ServerThread, eventually
from steelyard_runtime.http.app import create_app
from steelyard_runtime.http.connections import Connections
from steelyard_runtime.http.runtime import Runtime, build_services
from steelyard_runtime.settings import Settings
from stub_engine import StubEngine


@pytest.fixture
def engine() -> Iterator[StubEngine]:
    engine = StubEngine()
    engine.never_ends = True
    yield engine
    engine.close(timeout_s=0)


def streaming(server: ServerThread) -> socket.socket:
    """A client that has asked for a stream and reads nothing."""
    body = json.dumps({"messages": [{"role": "user", "content": "hello"}], "stream": True, "max_tokens": 60_000})
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(20)
    client.connect(("127.0.0.1", server.port))
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nConnection: close\r\n"
    client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
    return client


def test_a_stream_that_is_not_read_is_stopped_and_its_last_event_says_so(engine: StubEngine) -> None:
    settings = Settings(unread_timeout_s=0.5)
    # The connection itself lives on: how long is another limit.
    runtime = Runtime(settings=settings, services=build_services(settings, engine))
    with ServerThread(create_app(runtime)).running() as server, streaming(server) as client:
        assert eventually(lambda: engine.cancelled_jobs == 1, within_s=20)
        received = b""
        while more := client.recv(65536):
            received += more
    last = [line for line in received.split(b"\n") if line.startswith(b"data: ")][-1]
    error = json.loads(last.removeprefix(b"data: "))["error"]
    assert error["code"] == "unread"
    assert "unread_timeout_s" in error["message"]
    assert b"[DONE]" not in received


def test_a_stream_that_is_never_read_has_its_connection_closed(engine: StubEngine) -> None:
    settings = Settings(unread_timeout_s=0.3)
    runtime = Runtime(settings=settings, services=build_services(settings, engine))
    runtime.connections = Connections(unread_timeout_s=settings.unread_timeout_s)
    server = ServerThread(create_app(runtime), connections=runtime.connections)
    with server.running(), streaming(server):
        assert eventually(lambda: runtime.connections.closed["unread"] == 1, within_s=20)
        assert len(runtime.connections) == 0
    assert engine.cancelled_jobs == 1


def test_a_stream_that_is_read_slowly_is_read_to_its_end(engine: StubEngine) -> None:
    engine.never_ends = False
    settings = Settings(unread_timeout_s=2)
    runtime = Runtime(settings=settings, services=build_services(settings, engine))
    with ServerThread(create_app(runtime)).running() as server, streaming(server) as client:
        received = b""
        while more := client.recv(40):
            received += more
    assert b"data: [DONE]" in received

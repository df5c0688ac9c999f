"""What only a real socket shows: slow, broken and leaving clients, connections that stay usable, many at once."""

from __future__ import annotations

import gzip
import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from live_server import ServerThread, eventually
from steelyard_runtime.http import protocol
from steelyard_runtime.settings import Settings
from stub_engine import StubEngine

KIB = 1024


@pytest.fixture
def settings() -> Settings:
    return Settings(max_body_bytes=256 * KIB, upload_timeout_s=0.5)


@pytest.fixture
def raw(live_stub: ServerThread) -> Iterator[socket.socket]:
    """A connected socket."""
    with socket.create_connection(("127.0.0.1", live_stub.port), timeout=10) as connection:
        yield connection


def head(path: str = "/invocations", *headers: str) -> bytes:
    """The head of a POST."""
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *headers, "", ""]
    return "\r\n".join(lines).encode()


def read_response(connection: socket.socket) -> tuple[int, dict[str, str], Any]:
    """Status, headers, JSON body."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65536)
        assert more, f"closed after {data!r}"
        data += more
    top, _, body = data.partition(b"\r\n\r\n")
    first, *rest = top.decode().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in rest)}
    while len(body) < int(headers["content-length"]):
        body += connection.recv(65536)
    return int(first.split()[1]), headers, json.loads(body)


def closed(connection: socket.socket) -> bool:
    """Whether the other side has closed."""
    try:
        return connection.recv(65536) == b""
    except ConnectionResetError:
        return True


def test_a_declared_size_over_the_limit_is_refused_before_a_byte_is_read(raw: socket.socket) -> None:
    raw.sendall(head("/invocations", f"Content-Length: {10 << 30}"))
    status, headers, body = read_response(raw)
    assert (status, headers["connection"], body["limit"]) == (413, "close", 256 * KIB)
    assert closed(raw)


@pytest.mark.parametrize(
    "expect", [["100-continue"], ["100-Continue"], ["100-continue", "100-continue"], [", 100-continue"]]
)
def test_a_client_that_asks_first_is_refused_without_an_upload(raw: socket.socket, expect: list[str]) -> None:
    raw.sendall(head("/invocations", f"Content-Length: {10 << 30}", *(f"Expect: {line}" for line in expect)))
    assert read_response(raw)[0] == 413


def test_the_answer_reaches_a_client_that_uploads_everything_first(live_stub: ServerThread) -> None:
    response = httpx.post(
        live_stub.url + "/invocations", content=b" " * (8 << 20), headers={"content-type": "application/json"}
    )
    assert response.status_code == 413


def test_a_chunked_body_is_counted_while_it_comes(raw: socket.socket) -> None:
    raw.sendall(head("/invocations", "Transfer-Encoding: chunked"))
    chunk = b"8000\r\n" + b" " * 0x8000 + b"\r\n"
    for _ in range(9):
        raw.sendall(chunk)
    status, headers, body = read_response(raw)
    assert (status, headers["connection"], body["type"]) == (413, "close", "body_too_large")


def test_a_chunked_body_within_the_limit_is_read(live_stub: ServerThread, decision: dict[str, Any]) -> None:
    def parts() -> Iterator[bytes]:
        for byte in json.dumps(decision).encode():
            yield bytes([byte])

    response = httpx.post(live_stub.url + "/invocations", content=parts(), headers={"content-type": "application/json"})
    assert response.status_code == 200


def test_a_slow_upload_is_timed_out_and_holds_no_slot(
    raw: socket.socket, live_stub: ServerThread, stub_engine: StubEngine, decision: dict[str, Any]
) -> None:
    raw.sendall(head("/invocations", "Content-Length: 1000") + b'{"decision"')
    assert httpx.post(live_stub.url + "/invocations", json=decision).status_code == 200
    assert stub_engine.counters.queue_depth == 0
    status, headers, body = read_response(raw)
    assert (status, headers["connection"], body["retryable"]) == (408, "close", True)
    assert closed(raw)


def test_a_trickle_does_not_extend_the_time(raw: socket.socket) -> None:
    raw.sendall(head("/invocations", "Content-Length: 1000"))
    raw.settimeout(0.05)
    answer = b""
    for _ in range(100):
        raw.sendall(b" ")
        try:
            answer = raw.recv(65536)
            break
        except TimeoutError:
            continue
    assert answer.startswith(b"HTTP/1.1 408")


def test_slow_headers_end_the_connection(monkeypatch: pytest.MonkeyPatch, live_stub: ServerThread) -> None:
    monkeypatch.setattr(protocol, "HEADERS_TIMEOUT_S", 0.2)
    with socket.create_connection(("127.0.0.1", live_stub.port), timeout=10) as connection:
        assert closed(connection)
    with socket.create_connection(("127.0.0.1", live_stub.port), timeout=10) as connection:
        connection.sendall(b"POST /invocations HTTP/1.1\r\nHost")
        status, _, body = read_response(connection)
        assert (status, body["type"], body["retryable"]) == (408, "head_timeout", True)
        assert closed(connection)


@pytest.mark.parametrize("path", ["/v1/systemone", "/v1/chat/completions", "/invocations"])
def test_a_gzip_body_is_415(live_stub: ServerThread, path: str, systemone: dict[str, Any]) -> None:
    response = httpx.post(
        live_stub.url + path,
        content=gzip.compress(json.dumps(systemone).encode()),
        headers={"content-type": "application/json", "content-encoding": "gzip"},
    )
    assert response.status_code == 415


def test_the_connection_stays_usable_after_errors(raw: socket.socket, decision: dict[str, Any]) -> None:
    body = json.dumps(decision).encode()
    length = f"Content-Length: {len(body)}"
    for request, expected in [
        (head("/nowhere", length) + body, 404),
        (head("/ping", length) + body, 405),
        (head("/invocations", length, "Content-Encoding: gzip") + body, 415),
        (head("/invocations", "Content-Length: 1") + b"{", 400),
        (head("/invocations", "Content-Length: 2") + b"{}", 400),
        (head("/invocations", length) + body, 200),
    ]:
        raw.sendall(request)
        status, headers, _ = read_response(raw)
        assert (status, headers.get("connection")) == (expected, None)


def test_what_is_not_http_gets_json_and_an_end(raw: socket.socket) -> None:
    raw.sendall(b"hello\r\n\r\n")
    status, _, body = read_response(raw)
    assert (status, body["type"]) == (400, "malformed_http")
    assert closed(raw)


def test_too_large_headers_are_refused(raw: socket.socket) -> None:
    raw.sendall(head("/invocations", "X-Filler: " + "a" * (64 * KIB)))
    assert read_response(raw)[0] == 431


def test_a_broken_chunk_ends_the_connection_and_nothing_else(raw: socket.socket, live_stub: ServerThread) -> None:
    raw.sendall(head("/invocations", "Transfer-Encoding: chunked") + b"zz\r\n")
    assert read_response(raw)[0] == 400
    assert httpx.get(live_stub.url + "/ping").status_code == 200


def test_leaving_during_the_upload_is_quiet(live_stub: ServerThread, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_connection(("127.0.0.1", live_stub.port)) as connection:
        connection.sendall(head("/invocations", "Content-Length: 1000") + b'{"decision"')
    assert httpx.get(live_stub.url + "/ping").status_code == 200
    assert eventually(lambda: 'outcome="client_left"' in httpx.get(live_stub.url + "/metrics").text)


def test_leaving_before_the_answer_cancels_the_work(
    live_stub: ServerThread, stub_engine: StubEngine, decision: dict[str, Any]
) -> None:
    stub_engine.gate.clear()
    body = json.dumps(decision).encode()
    with socket.create_connection(("127.0.0.1", live_stub.port)) as connection:
        connection.sendall(head("/invocations", f"Content-Length: {len(body)}") + body)
        assert eventually(lambda: stub_engine._pending)
    assert eventually(lambda: 'outcome="client_left"' in httpx.get(live_stub.url + "/metrics").text)
    stub_engine.gate.set()
    assert eventually(lambda: stub_engine.cancelled_jobs == 1)
    assert stub_engine.counters.decisions == 0


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_a_chat_cancels_the_generation(
    live_stub: ServerThread, stub_engine: StubEngine, chat: dict[str, Any], stream: bool
) -> None:
    stub_engine.never_ends, stub_engine.token_delay_s = True, 0.005
    body = json.dumps({**chat, "max_tokens": 20_000, "stream": stream}).encode()
    with socket.create_connection(("127.0.0.1", live_stub.port), timeout=10) as connection:
        connection.sendall(head("/v1/chat/completions", f"Content-Length: {len(body)}") + body)
        if stream:
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        else:
            assert eventually(lambda: stub_engine.counters.active_generations == 1)
    assert eventually(lambda: stub_engine.cancelled_jobs == 1)
    assert eventually(lambda: stub_engine.counters.active_generations == 0)
    assert eventually(lambda: 'outcome="client_left"' in httpx.get(live_stub.url + "/metrics").text)


def test_ping_answers_while_the_engine_works(
    live_stub: ServerThread, stub_engine: StubEngine, decision: dict[str, Any]
) -> None:
    stub_engine.gate.clear()
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(httpx.post, live_stub.url + "/invocations", json=decision, timeout=30) for _ in range(8)]
        assert eventually(lambda: len(stub_engine._pending) == 8)
        assert httpx.get(live_stub.url + "/ping", timeout=2).status_code == 200
        stub_engine.gate.set()
        assert {future.result().status_code for future in waiting} == {200}


def test_32_clients_at_once_get_their_own_answers(live_stub: ServerThread, decision: dict[str, Any]) -> None:
    def ask(number: int) -> tuple[str, list[float]]:
        body = {"decision": {**decision["decision"], "id": f"d{number}", "state": f"Parcel {number} is late."}}
        result = httpx.post(live_stub.url + "/invocations", json=body, timeout=30).json()["result"]
        return result["id"], result["probabilities"]

    alone = [ask(number) for number in range(32)]
    with ThreadPoolExecutor(32) as pool:
        together = list(pool.map(ask, range(32)))
    assert together == alone
    assert len({tuple(probabilities) for _, probabilities in alone}) == 32


def test_pipelined_requests_are_answered_in_order(raw: socket.socket) -> None:
    raw.sendall(b"GET /ping HTTP/1.1\r\nHost: a\r\n\r\n" * 3)
    data = b""
    limit = time.monotonic() + 10
    while data.count(b"HTTP/1.1 200") < 3 and time.monotonic() < limit:
        data += raw.recv(65536)
    assert data.count(b"HTTP/1.1 200") == 3

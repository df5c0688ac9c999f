"""More connections than descriptors, of every idle and half-finished kind: ``/ping`` answers, in a real process."""

from __future__ import annotations

import resource
import shlex
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from live_server import ServerProcess, eventually, get_status
from steelyard_runtime.http.connections import (
    MOST,
    OWN_DESCRIPTORS,
    RESERVE,
    Connections,
    TooFewDescriptorsError,
    connection_limit,
)

STUB = [sys.executable, str(Path(__file__).with_name("stub_process.py"))]
DESCRIPTORS = 200
LIMIT = DESCRIPTORS - OWN_DESCRIPTORS - RESERVE
MANY = 260


def limited(descriptors: int, **settings: object) -> ServerProcess:
    """A server process that may have so many files open."""
    command = ["/bin/sh", "-c", f"ulimit -n {descriptors}; exec {shlex.join(STUB)}"]
    return ServerProcess(command=command, **settings)


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with limited(DESCRIPTORS, upload_timeout_s=20, unread_timeout_s=20).running() as server:
        yield server


def address(server: ServerProcess) -> tuple[str, int]:
    parts = urlsplit(server.url)
    assert parts.hostname
    assert parts.port
    return parts.hostname, parts.port


def samples(server: ServerProcess) -> dict[tuple[str, ...], float]:
    text = httpx.get(server.url + "/metrics", timeout=30).text
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def idle(_: socket.socket) -> None:
    """Nothing is sent."""


def kept_alive(connection: socket.socket) -> None:
    connection.sendall(b"GET /ping HTTP/1.1\r\nHost: a\r\n\r\n")


def slow_head(connection: socket.socket) -> None:
    connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nX-Part: ")


def slow_body(connection: socket.socket) -> None:
    head = "POST /v1/systemone HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 9000\r\n\r\n{"
    connection.sendall(head.encode())


def slow_named_body(connection: socket.socket) -> None:
    head = "POST /v1/systemone HTTP/1.1\r\nHost: a\r\nX-Steelyard-Caller: x\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: 9000\r\n\r\n{{".encode())


def unread_answer(connection: socket.socket) -> None:
    """Many answers are asked for at once and none is read."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: a\r\n\r\n" * 12)


@pytest.mark.parametrize("behave", [idle, kept_alive, slow_head, slow_body, slow_named_body, unread_answer])
def test_ping_answers_beside_more_connections_than_descriptors(
    server: ServerProcess, behave: Callable[[socket.socket], None]
) -> None:
    server_lines = len(server.lines)
    with ExitStack() as stack:
        for number in range(MANY):
            connection = stack.enter_context(socket.create_connection(address(server), timeout=10))
            with suppress(ConnectionError):  # it was closed for another one
                behave(connection)
            if number % 20 == 0:
                assert get_status(server.url + "/ping") == 200
        for _ in range(5):
            assert get_status(server.url + "/ping") == 200
        counted = samples(server)
    requests = MANY * (12 if behave is unread_answer else 1)
    assert len(server.lines) - server_lines <= requests + 100
    assert counted["steelyard_http_connections_limit",] == LIMIT
    assert sum(counted["steelyard_http_connections", state] for state in ("idle", "head", "unread", "request")) <= (
        LIMIT + RESERVE
    )
    assert counted["steelyard_http_accept_errors_total",] == 0
    assert eventually(lambda: samples(server)["steelyard_http_connections", "request"] <= 1, within_s=30)


def test_a_request_in_progress_is_never_closed_for_another_connection(
    monkeypatch: pytest.MonkeyPatch, decision: dict[str, object]
) -> None:
    with limited(DESCRIPTORS).running() as server, ExitStack() as stack:
        body = b'{"state": "x", "questions": {"a": {"type": "noul"}}}'
        head = "POST /v1/systemone HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        working = socket.create_connection(address(server), timeout=30)
        working.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:10])
        for _ in range(MANY):
            stack.enter_context(socket.create_connection(address(server), timeout=10))
        assert get_status(server.url + "/ping") == 200
        working.sendall(body[10:])
        assert working.recv(65536).startswith(b"HTTP/1.1 200 ")
        working.close()


def test_named_callers_find_a_connection_beside_those_without_a_name(server: ServerProcess) -> None:
    question = {"state": "x", "questions": {"a": {"type": "noul"}}}
    with ExitStack() as stack:
        for _ in range(MANY):
            connection = stack.enter_context(socket.create_connection(address(server), timeout=10))
            with suppress(ConnectionError):
                slow_body(connection)
        refused = httpx.post(server.url + "/v1/systemone", json=question, timeout=30)
        assert (refused.status_code, refused.json()["detail"]["error_type"]) == (503, "busy")
        assert "unnamed_share" in refused.json()["detail"]["message"]
        named = httpx.post(
            server.url + "/v1/systemone", json=question, timeout=30, headers={"x-steelyard-caller": "ann"}
        )
        assert named.status_code == 200
    assert eventually(lambda: samples(server)["steelyard_http_connections", "request"] <= 1, within_s=30)


def told(server: ServerProcess) -> int:
    return sum("could be accepted" in str(line.get("text")) for line in server.lines)


def test_a_server_without_any_descriptor_left_is_quiet_and_comes_back() -> None:
    """The limit falls below what is open, as no setting can foresee: every accept fails."""
    with limited(DESCRIPTORS).running() as server, ExitStack() as stack:
        pid = server.process.pid
        used = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used, DESCRIPTORS))
        for _ in range(20):
            stack.enter_context(socket.create_connection(address(server), timeout=10))
        time.sleep(1.0)
        assert eventually(lambda: told(server))
        assert told(server) <= 2  # dozens of failures are one line in ten seconds
        assert len(server.lines) < 20
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
        assert get_status(server.url + "/ping") == 200
        assert samples(server)["steelyard_http_accept_errors_total",] >= 2


def test_too_few_descriptors_are_said_at_the_start() -> None:
    server = limited(DESCRIPTORS, max_connections=LIMIT + 1)
    server.start()
    assert f"at most {LIMIT}" in server.wait_for("not_listening")["reason"]
    assert server.process.wait(timeout=20) == 1


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    command = ["/bin/sh", "-c", f"ulimit -Sn 150; exec {shlex.join(STUB)}"]
    with ServerProcess(command=command).running() as server:
        soft, hard = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
        assert soft == hard > 150


class Fake:
    """A connection without a socket."""

    closed = False

    def close_now(self) -> None:
        self.closed = True


def opened(connections: Connections, *peers: str) -> list[Fake]:
    made = []
    for peer in peers:
        made.append(Fake())
        connections.add(made[-1], peer=peer)
    return made


@pytest.mark.parametrize("crowd", [RESERVE + 1])
def test_the_longest_idle_connection_of_the_largest_peer_goes_first(crowd: int) -> None:
    connections = Connections(limit=4)
    few = opened(connections, "few", "few")
    many = opened(connections, *["many"] * (2 + crowd))
    assert [c.closed for c in many] == [True] + [False] * (len(many) - 1)
    assert not any(c.closed for c in few)
    connections.set_state(many[1], "request")
    opened(connections, "few")
    assert many[2].closed
    assert not many[1].closed
    assert connections.closed["evicted"] == 2


def test_what_sends_a_head_goes_after_the_idle_and_what_works_never() -> None:
    connections = Connections(limit=1)
    first = opened(connections, *"a" * (1 + RESERVE))
    for connection in first[2:]:
        connections.set_state(connection, "request")
    connections.set_state(first[0], "head")
    assert connections.full
    opened(connections, "b")
    assert (first[0].closed, first[1].closed) == (False, True)
    assert connections.closed == {"evicted": 1}


def test_a_connection_for_which_no_other_can_be_closed_is_refused() -> None:
    connections = Connections(limit=1)
    for connection in opened(connections, *"a" * (1 + RESERVE)):
        connections.set_state(connection, "request")
    [refused] = opened(connections, "b")
    assert refused.closed
    assert connections.closed == {"refused": 1}
    assert len(connections) == 1 + RESERVE


@pytest.mark.parametrize(
    ("wanted", "descriptors", "limit"), [(0, 200, 136), (0, 1 << 20, MOST), (7, 200, 7), (5000, 6000, 5000), (0, 65, 1)]
)
def test_the_limit_leaves_room_for_files_and_the_reserve(wanted: int, descriptors: int, limit: int) -> None:
    assert connection_limit(wanted, descriptors=descriptors) == limit


@pytest.mark.parametrize(("wanted", "descriptors"), [(137, 200), (0, 64)])
def test_what_does_not_fit_is_refused_with_the_numbers(wanted: int, descriptors: int) -> None:
    with pytest.raises(TooFewDescriptorsError, match=str(descriptors)):
        connection_limit(wanted, descriptors=descriptors)

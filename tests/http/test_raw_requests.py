"""Raw requests on a real socket: what RFC 9112 asks of a server, and what two servers in a row read differently."""

from __future__ import annotations

import json
import random
import re
import socket
from collections.abc import Iterator

import httpx
import pytest

from live_server import ServerThread
from steelyard_runtime.http import request_head
from steelyard_runtime.http.app import create_app
from steelyard_runtime.http.runtime import Runtime, build_services
from steelyard_runtime.settings import Settings
from stub_engine import StubEngine

STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) [A-Z]")
HOST = "Host: a\r\n"
BODY = '{"model": "x"}'
POST = "POST /v1/systemone HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port of the application over the stub engine."""
    settings = Settings()
    engine = StubEngine(settings)
    app = create_app(Runtime(settings=settings, services=build_services(settings, engine)))
    with ServerThread(app).running() as server:
        yield server.port
    engine.close(timeout_s=0)


def exchange(port: int, data: bytes, *, then: bytes = b"") -> tuple[list[int], bytes, bool]:
    """Send ``data``, and ``then`` after the first answer; the statuses, what came, whether the server closed."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(data)
        received = connection.recv(65536)
        ended = not received
        connection.settimeout(20 if then else 0.5)
        try:
            connection.sendall(then)
            while not ended:
                more = connection.recv(65536)
                received, ended = received + more, not more
                if then and len(STATUS.findall(received)) > 1:
                    break
        except (TimeoutError, ConnectionError):
            pass
    statuses = [int(status) for status in STATUS.findall(received)]
    return statuses, received, ended


# What is refused before the application sees it: the request, the status, a word of the reason. Always closed.
REFUSED = {
    "a length twice": (f"{POST}Content-Length: 14\r\nContent-Length: 15\r\n\r\n{BODY}", 400, "Content-Length"),
    "a length and chunks": (
        f"{POST}Content-Length: 14\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
        "both Content-Length and Transfer-Encoding",
    ),
    "chunks and a length": (
        f"{POST}Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        400,
        "both Content-Length and Transfer-Encoding",
    ),
    "a length with a sign": (f"{POST}Content-Length: +14\r\n\r\n{BODY}", 400, "Content-Length"),
    "a negative length": (f"{POST}Content-Length: -1\r\n\r\n", 400, "Content-Length"),
    "a hexadecimal length": (f"{POST}Content-Length: 0xe\r\n\r\n{BODY}", 400, "Content-Length"),
    "a huge length": (f"{POST}Content-Length: {'9' * 5000}\r\n\r\n", 400, "Content-Length"),
    "chunks twice": (f"{POST}Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", 400, "Transfer-Encoding"),
    "an unknown coding": (f"{POST}Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400, "Transfer-Encoding"),
    "a coding with a trick": (f"{POST}Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n", 400, ""),
    "chunks in HTTP/1.0": (
        "POST /ping HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
        "HTTP/1.0",
    ),
    "a folded header": (f"GET /ping HTTP/1.1\r\n{HOST}X-A: b\r\n c\r\n\r\n", 400, "folded"),
    "a folded first header": ("GET /ping HTTP/1.1\r\n Host: a\r\n\r\n", 400, "folded"),
    "a folded length": (f"{POST}Content-Length:\r\n 14\r\n\r\n{BODY}", 400, "folded"),
    "bare line ends": ("GET /ping HTTP/1.1\nHost: a\n\n", 400, "bare LF"),
    "one bare line end": ("GET /ping HTTP/1.1\r\nHost: a\nX: y\r\n\r\n", 400, "bare LF"),
    "a bare end of the head": (f"GET /ping HTTP/1.1\r\n{HOST}\n", 400, "bare LF"),
    "a bare CR": (f"GET /ping HTTP/1.1\r\n{HOST}X: a\rb\r\n\r\n", 400, "bare CR"),
    "a NUL": (f"GET /ping HTTP/1.1\r\n{HOST}X: a\0b\r\n\r\n", 400, ""),
    "a space before the colon": ("GET /ping HTTP/1.1\r\nHost : a\r\n\r\n", 400, ""),
    "no name of a header": (f"GET /ping HTTP/1.1\r\n{HOST}: b\r\n\r\n", 400, ""),
    "no colon": (f"GET /ping HTTP/1.1\r\n{HOST}nothing\r\n\r\n", 400, ""),
    "no host": ("GET /ping HTTP/1.1\r\n\r\n", 400, "Host"),
    "two hosts": ("GET /ping HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400, "Host"),
    "no valid host": ("GET /ping HTTP/1.1\r\nHost: a b\r\n\r\n", 400, "Host"),
    "a host with a path": ("GET /ping HTTP/1.1\r\nHost: a/b\r\n\r\n", 400, "Host"),
    "a host with a user": ("GET /ping HTTP/1.1\r\nHost: a@b\r\n\r\n", 400, "Host"),
    "no version": ("GET /ping\r\n\r\n", 400, ""),
    "HTTP/0.9": (f"GET /ping HTTP/0.9\r\n{HOST}\r\n", 400, "HTTP/1.1"),
    "HTTP/2 without asking": ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "HTTP/1.1"),
    "HTTP/3": (f"GET /ping HTTP/3.0\r\n{HOST}\r\n", 400, "HTTP/1.1"),
    "a version in small letters": (f"GET /ping http/1.1\r\n{HOST}\r\n", 400, ""),
    "two spaces": (f"GET  /ping HTTP/1.1\r\n{HOST}\r\n", 400, ""),
    "a space in the path": (f"GET /pi ng HTTP/1.1\r\n{HOST}\r\n", 400, ""),
    "no path": (f"GET ping HTTP/1.1\r\n{HOST}\r\n", 400, "path"),
    "another scheme": (f"GET ftp://a/ping HTTP/1.1\r\n{HOST}\r\n", 400, "path"),
    "a user in the address": (f"GET http://u@a/ping HTTP/1.1\r\n{HOST}\r\n", 400, "path"),
    "an address without a host": (f"GET http:///ping HTTP/1.1\r\n{HOST}\r\n", 400, "path"),
    "an asterisk to get": (f"GET * HTTP/1.1\r\n{HOST}\r\n", 400, "path"),
    "a tunnel": ("CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n", 400, "path"),
    "TLS": ("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, ""),
    "another expectation": (f"{POST}Expect: 200-ok\r\nContent-Length: 14\r\n\r\n{BODY}", 417, "100-continue"),
    "two expectations": (f"{POST}Expect: 100-continue, x\r\nContent-Length: 14\r\n\r\n{BODY}", 417, "100-continue"),
    "a long path": (f"GET /{'a' * 40_000} HTTP/1.1\r\n{HOST}\r\n", 414, "32768"),
    "a long header": (f"GET /ping HTTP/1.1\r\n{HOST}X: {'a' * 40_000}\r\n\r\n", 431, "32768"),
    "a complete head above the limit": (
        f"GET /ping HTTP/1.1\r\n{HOST}" + f"X: {'a' * 9000}\r\n" * 4 + "\r\n",
        431,
        "32768",
    ),
    "many headers": (f"GET /ping HTTP/1.1\r\n{HOST}" + "X: y\r\n" * 200 + "\r\n", 431, "100 headers"),
    "a broken size of a chunk": (f"{POST}Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400, ""),
    "a negative size of a chunk": (f"{POST}Transfer-Encoding: chunked\r\n\r\n-1\r\n", 400, ""),
    "a chunk with a bare line end": (f"{POST}Transfer-Encoding: chunked\r\n\r\n2\n{{}}\r\n0\r\n\r\n", 400, ""),
    "a chunk that is longer than it says": (f"{POST}Transfer-Encoding: chunked\r\n\r\n2\r\n{{}}xx0\r\n\r\n", 400, ""),
    "a huge size of a chunk": (f"{POST}Transfer-Encoding: chunked\r\n\r\n{'f' * 40}\r\n", 400, ""),
    "a long extension of a chunk": (f"{POST}Transfer-Encoding: chunked\r\n\r\n1;{'x' * 70_000}", 431, ""),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_quite_http_is_refused_and_the_connection_closed(port: int, name: str) -> None:
    raw, status, word = REFUSED[name]
    statuses, received, ended = exchange(port, raw.encode("latin-1"), then=b"GET /ping HTTP/1.1\r\nHost: a\r\n\r\n")
    assert (statuses, ended) == ([status], True), received
    head, _, body = received.partition(b"\r\n\r\n")
    told = json.loads(body)
    assert word in told["error"]
    assert (told["type"], told["retryable"]) == ("malformed_http", False)
    assert b"connection: close" in head.lower()


# What is answered, and the connection stays open.
ANSWERED = {
    "a path": (f"GET /ping HTTP/1.1\r\n{HOST}\r\n", 200),
    "an address": (f"GET http://host/ping HTTP/1.1\r\n{HOST}\r\n", 200),
    "an address with a port and a query": (f"GET http://host:80/ping?a=b HTTP/1.1\r\n{HOST}\r\n", 200),
    "an address with TLS": (f"GET HTTPS://host/ping HTTP/1.1\r\n{HOST}\r\n", 200),
    "an address alone": (f"GET http://host HTTP/1.1\r\n{HOST}\r\n", 404),
    "an address with a query alone": (f"GET http://host?a HTTP/1.1\r\n{HOST}\r\n", 404),
    "an address to post to": (
        POST.replace("/v1", "http://h/v1") + f"Content-Length: 14\r\n\r\n{BODY}",
        422,
    ),
    "empty lines before": (f"\r\n\r\nGET /ping HTTP/1.1\r\n{HOST}\r\n", 200),
    "an empty host": ("GET /ping HTTP/1.1\r\nHost:\r\n\r\n", 200),
    "an IPv6 host": ("GET /ping HTTP/1.1\r\nHost: [::1]:8080\r\n\r\n", 200),
    "a later version": (f"GET /ping HTTP/1.2\r\n{HOST}\r\n", 200),
    "the same length twice": (f"{POST}Content-Length: 14\r\nContent-Length: 14\r\n\r\n{BODY}", 422),
    "an extension of a chunk": (f"{POST}Transfer-Encoding: chunked\r\n\r\ne;a=b\r\n{BODY}\r\n0\r\n\r\n", 422),
    "a trailer": (f"{POST}Transfer-Encoding: chunked\r\n\r\ne\r\n{BODY}\r\n0\r\nX: y\r\n\r\n", 422),
    "chunks in capitals": (f"{POST}Transfer-Encoding: CHUNKED\r\n\r\ne\r\n{BODY}\r\n0\r\n\r\n", 422),
    "all options": (f"OPTIONS * HTTP/1.1\r\n{HOST}\r\n", 404),
    "an upgrade": (f"GET /ping HTTP/1.1\r\n{HOST}Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n", 200),
    "HTTP/2 asked for": (
        f"GET /ping HTTP/1.1\r\n{HOST}Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: \r\n\r\n",
        200,
    ),
    "an unknown method": (f"BREW /ping HTTP/1.1\r\n{HOST}\r\n", 405),
    "a body for a ping": (f"GET /ping HTTP/1.1\r\n{HOST}Content-Length: 5\r\n\r\nhello", 200),
    "as many headers as may be": (f"GET /ping HTTP/1.1\r\n{HOST}" + "X: y\r\n" * 99 + "\r\n", 200),
    "a head as large as may be": (
        (start := f"GET /ping HTTP/1.1\r\n{HOST}X: ")
        + "a" * (request_head.MAX_HEAD_BYTES - len(start) - 4)
        + "\r\n\r\n",
        200,
    ),
    "a dot and an escape in the path": (f"GET /./%70ing HTTP/1.1\r\n{HOST}\r\n", 404),
}


@pytest.mark.parametrize("name", ANSWERED)
def test_what_is_http_is_answered_and_the_connection_stays(port: int, name: str) -> None:
    raw, status = ANSWERED[name]
    statuses, received, _ = exchange(port, raw.encode(), then=b"GET /ping HTTP/1.1\r\nHost: a\r\n\r\n")
    assert statuses == [status, 200], received


def test_a_head_is_checked_wherever_it_is_cut(port: int) -> None:
    """The end of a line may arrive in two pieces, and a request behind another one is checked like the first."""
    good, bad = f"GET /ping HTTP/1.1\r\n{HOST}\r\n".encode(), f"GET /ping HTTP/1.1\r\n{HOST}X: a\r\n b\r\n\r\n".encode()
    for cut in range(1, len(good)):
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(good[:cut])
            connection.sendall(good[cut:])
            assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
    statuses, received, ended = exchange(port, good + bad + good)
    assert statuses == [200, 400], received
    assert ended


def test_a_request_hidden_behind_a_length_and_chunks_is_not_answered(port: int) -> None:
    hidden = f"GET /ping HTTP/1.1\r\n{HOST}\r\n"
    raw = f"{POST}Content-Length: {5 + len(hidden)}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}"
    assert exchange(port, raw.encode())[0] == [400]


def test_a_body_of_tiny_chunks_is_refused_after_so_many(port: int) -> None:
    chunks = b"1\r\n \r\n" * (request_head.MAX_CHUNKS + 1)
    statuses, received, ended = exchange(port, f"{POST}Transfer-Encoding: chunked\r\n\r\n".encode() + chunks)
    assert statuses == [400], received
    assert b"chunks" in received
    assert ended


def test_the_answer_reaches_a_client_that_goes_on_sending(port: int) -> None:
    """Closing with unread bytes resets the connection, and the reset can overtake the answer."""
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            connection.sendall(b"nonsense\r\n\r\n")
            for _ in range(50):
                connection.sendall(b"x" * 4096)
            received = b""
            while more := connection.recv(65536):
                received += more
            assert received.startswith(b"HTTP/1.1 400 ")


def mutated(draw: random.Random, raw: bytes) -> bytes:
    data = bytearray(raw)
    for _ in range(draw.randrange(1, 4)):
        at = draw.randrange(len(data))
        match draw.randrange(4):
            case 0:
                data[at] = draw.randrange(256)
            case 1:
                del data[at]
            case 2:
                data.insert(at, draw.choice(b"\r\n\t :,;0\x00\xff"))
            case _:
                data[at:at] = data[at : at + draw.randrange(40)]
    return bytes(data)


def test_no_mutated_request_has_a_5xx_or_stops_the_server(port: int) -> None:
    """Fuzz: 400 requests, each changed in a few bytes, the same every time."""
    draw = random.Random(9112)
    raws = [raw.encode("latin-1") for raw, *_ in (*REFUSED.values(), *ANSWERED.values()) if len(raw) < 2000]
    for _ in range(400):
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            connection.sendall(mutated(draw, draw.choice(raws)))
            connection.shutdown(socket.SHUT_WR)
            received = b""
            try:
                while more := connection.recv(65536):
                    received += more
            except ConnectionResetError:
                pass
            assert not received or received.startswith(b"HTTP/1.1 "), received
            assert b"HTTP/1.1 5" not in received, received
    assert httpx.get(f"http://127.0.0.1:{port}/ping").status_code == 200

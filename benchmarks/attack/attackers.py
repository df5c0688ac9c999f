"""The attackers: one process per attack, started by the benchmark, bounded in requests and in time.

    python -m benchmarks.attack.attackers hung-up-spaces --port 8080 --seconds 10

Only loopback is attacked. The last line that it prints is a JSON object: what the attack cost the attacker.
Nothing but the standard library is imported, so that it starts at once and its processor time is the attack's own.
"""

from __future__ import annotations

import argparse
import json
import resource
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

HOST = "127.0.0.1"
PIECE = 256 << 10
BODY_LIMIT = 4 << 20


@dataclass
class Cost:
    """The attacker's cost of an attack, and the answers to it.

    ``answers`` counts statuses; "hung up" is a request whose answer was not waited for, "refused" a connection that the
    server did not take, "cut" one that it closed without an answer.
    """

    connections: int = 0
    requests: int = 0
    bytes_sent: int = 0
    cpu_s: float = 0.0
    answers: Counter[str] = field(default_factory=Counter)


class Attacker:
    """Sends one kind of request until its time or its number of requests is used up."""

    def __init__(self, port: int, seconds: float, caller_header: str) -> None:
        self.port = port
        self.until = time.monotonic() + seconds
        self.caller_header = caller_header
        self.cost = Cost()
        self._lock = threading.Lock()

    @property
    def left_s(self) -> float:
        """Seconds until the attack ends."""
        return self.until - time.monotonic()

    def connect(self) -> socket.socket | None:
        """A new connection, or None where the server takes none."""
        try:
            link = socket.create_connection((HOST, self.port), timeout=max(0.1, min(10.0, self.left_s)))
        except OSError:
            self.count("refused")
            return None
        with self._lock:
            self.cost.connections += 1
        return link

    def count(self, answer: str) -> None:
        """Count how a request ended."""
        with self._lock:
            self.cost.answers[answer] += 1

    def send(self, link: socket.socket, data: bytes) -> None:
        """Send all of ``data``, and count what was sent even when the server stops reading."""
        view = memoryview(data)
        for start in range(0, len(view), PIECE):
            link.settimeout(max(0.1, self.left_s))
            link.sendall(view[start : start + PIECE])
            with self._lock:
                self.cost.bytes_sent += min(PIECE, len(view) - start)

    def post(self, path: str, body: bytes, *, hang_up_s: float | None = None, headers: str = "") -> None:
        """Send one request; read its status, or close the connection after ``hang_up_s``."""
        with self._lock:
            self.cost.requests += 1
        link = self.connect()
        if link is None:
            time.sleep(0.05)
            return
        with link:
            try:
                self.send(link, head(path, len(body), headers) + body)
                if hang_up_s is not None:
                    time.sleep(max(0.0, min(hang_up_s, self.left_s)))
                    self.count("hung up")
                    return
                link.settimeout(max(0.1, self.left_s))
                start = link.recv(PIECE)
                self.count(start[9:12].decode("ascii", "replace") if start else "cut")
            except TimeoutError:
                self.count("no answer")
            except OSError:
                self.count("cut")

    def crowd(self, clients: int, requests: int, one: Callable[[], None]) -> None:
        """Call ``one`` at most ``requests`` times, from ``clients`` threads, until the time is over."""
        numbers = iter(range(requests))

        def work() -> None:
            while self.left_s > 0:
                with self._lock:
                    if next(numbers, None) is None:
                        return
                one()

        threads = [threading.Thread(target=work, daemon=True) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, self.left_s) + 1.0)


def head(path: str, length: int, headers: str = "") -> bytes:
    """The head of a request with a JSON body of ``length`` bytes."""
    lines = f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n"
    return f"{lines}{headers}\r\n".encode()


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _questions(count: int) -> dict[str, Any]:
    return {f"q{number}": {"type": "noul", "instructions": f"Is it number {number}?"} for number in range(count)}


def _systemone(state: Any, questions: int = 64) -> bytes:
    return _json({"state": state, "model": "jev-latest", "questions": _questions(questions)})


def _words(size: int) -> str:
    sentence = "The courier of order 4711 says that the parcel was handed over on Monday, but nothing has arrived. "
    return (sentence * (size // len(sentence) + 1))[:size]


def hung_up_spaces(attacker: Attacker) -> None:
    """Six requests of 250,000 spaces with 64 questions; the caller hangs up after 0.3 s."""
    body = _systemone(" " * 250_000)
    attacker.crowd(6, 6, lambda: attacker.post("/v1/systemone", body, hang_up_s=0.3))


def spaces(attacker: Attacker) -> None:
    """Six clients that send 100,000 spaces with 64 questions and wait for the answer."""
    body = _systemone(" " * 100_000)
    attacker.crowd(6, 200, lambda: attacker.post("/v1/systemone", body))


def big_texts(attacker: Attacker) -> None:
    """32 clients that send 4 MB of text with 64 questions."""
    body = _systemone(_words(BODY_LIMIT - 20_000))
    attacker.crowd(32, 320, lambda: attacker.post("/v1/systemone", body))


def one_big_text(attacker: Attacker) -> None:
    """One request of 1 MB of text with 64 questions."""
    body = _systemone(_words(1_000_000))
    attacker.crowd(1, 1, lambda: attacker.post("/v1/systemone", body))


def big_chats(attacker: Attacker) -> None:
    """Six clients whose chats are 4 MB of spaces; they hang up after a second."""
    text = " " * (BODY_LIMIT - 20_000)
    body = _json({"model": "default", "max_tokens": 1, "messages": [{"role": "user", "content": text}]})
    attacker.crowd(6, 60, lambda: attacker.post("/v1/chat/completions", body, hang_up_s=1.0))


def many_messages(attacker: Attacker) -> None:
    """Four clients whose chats have 60,000 messages."""
    body = _json({"model": "default", "max_tokens": 1, "messages": [{"role": "user", "content": "hello"}] * 60_000})
    attacker.crowd(4, 60, lambda: attacker.post("/v1/chat/completions", body))


def big_prompts(attacker: Attacker) -> None:
    """Four clients that have 4 MB of one letter continued; they hang up after a second."""
    body = _json({"model": "default", "max_tokens": 1, "prompt": "a" * (BODY_LIMIT - 20_000)})
    attacker.crowd(4, 60, lambda: attacker.post("/v1/completions", body, hang_up_s=1.0))


def empty_lists(attacker: Attacker) -> None:
    """Six clients that send 4 MB of ``{"state": [[], [], ...]}``."""
    body = b'{"state":[' + b",".join([b"[]"] * 1_390_000) + b'],"questions":{}}'
    attacker.crowd(6, 240, lambda: attacker.post("/v1/systemone", body))


def many_keys(attacker: Attacker) -> None:
    """Six clients that send 4 MB of an object with 300,000 keys."""
    body = b'{"state":{' + b",".join(b'"%07d":1' % number for number in range(340_000)) + b'},"questions":{}}'
    attacker.crowd(6, 240, lambda: attacker.post("/v1/systemone", body))


def many_faults(attacker: Attacker) -> None:
    """Six clients whose chats name 60,000 tokens wrongly: each name may be worth a fault in the answer."""
    messages = [{"role": "user", "content": "hello"}]
    body = _json(
        {"model": "default", "messages": messages, "logit_bias": {f"x{number}": 0 for number in range(60_000)}}
    )
    attacker.crowd(6, 240, lambda: attacker.post("/v1/chat/completions", body))


def idle_connections(attacker: Attacker) -> None:
    """260 idle keep-alive connections, each after one answered request."""
    _keep_open(attacker, 260, b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")


def silent_connections(attacker: Attacker) -> None:
    """260 connections on which nothing is ever sent."""
    _keep_open(attacker, 260, b"")


def slow_heads(attacker: Attacker) -> None:
    """150 connections whose heads arrive a byte at a time."""
    _keep_open(attacker, 150, b"POST /invocations HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ", drip=b"x")


def slow_bodies(attacker: Attacker) -> None:
    """150 connections whose bodies of 4 MB arrive a byte at a time."""
    _keep_open(attacker, 150, head("/invocations", BODY_LIMIT), drip=b" ")


def _keep_open(attacker: Attacker, count: int, first: bytes, *, drip: bytes = b"") -> None:
    links: list[socket.socket] = []
    while len(links) < count and attacker.left_s > 0:
        link = attacker.connect()
        if link is None:
            break
        with suppress(OSError):
            attacker.send(link, first)
            attacker.cost.requests += bool(first)
        links.append(link)
    while attacker.left_s > 0:
        time.sleep(min(0.5, max(0.0, attacker.left_s)))
        for link in links if drip else ():
            with suppress(OSError):
                attacker.send(link, drip)
    for link in links:
        attacker.count("cut" if _is_closed(link) else "kept open")
        link.close()


def _is_closed(link: socket.socket) -> bool:
    link.setblocking(False)
    try:
        while data := link.recv(PIECE):
            del data
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def huge_heads(attacker: Attacker) -> None:
    """Eight clients whose complete heads are 2 MB of header lines."""
    lines = "".join(f"X-Filler-{number}: {'x' * 80}\r\n" for number in range(20_000))
    attacker.crowd(8, 400, lambda: attacker.post("/invocations", b"{}", headers=lines))


def bad_requests(attacker: Attacker) -> None:
    """Eight clients that send bodies which are no JSON, as fast as they can: each may be worth a log line."""
    attacker.crowd(8, 20_000, lambda: attacker.post("/invocations", b"{"))


def unread_streams(attacker: Attacker) -> None:
    """Three chats that are streamed to a client that reads none of them; again as soon as one ends."""
    body = _json(
        {
            "model": "default",
            "stream": True,
            "max_tokens": 2000,
            "logprobs": True,
            "top_logprobs": 20,
            "messages": [{"role": "user", "content": "Count to ten thousand."}],
        }
    )

    def one() -> None:
        attacker.cost.requests += 1
        link = attacker.connect()
        if link is None:
            time.sleep(0.05)
            return
        with link:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            with suppress(OSError):
                attacker.send(link, head("/v1/chat/completions", len(body)) + body)
            while attacker.left_s > 0:
                time.sleep(min(0.2, max(0.0, attacker.left_s)))
            attacker.count("unread")

    attacker.crowd(3, 3, one)


def long_chats(attacker: Attacker) -> None:
    """Eight clients that have long texts chatted about, and never stop."""
    messages = [{"role": "user", "content": _words(5_000)}]
    body = _json({"model": "default", "max_tokens": 400, "messages": messages})
    attacker.crowd(8, 400, lambda: attacker.post("/v1/chat/completions", body))


def many_names(attacker: Attacker) -> None:
    """16 clients that ask decisions of 64 questions, each request under another caller's name."""
    body = _systemone(_words(400))
    numbers = iter(range(1_000_000))

    def one() -> None:
        attacker.post("/v1/systemone", body, headers=f"{attacker.caller_header}: attacker-{next(numbers)}\r\n")

    attacker.crowd(16, 2_000, one)


ATTACKS: dict[str, Callable[[Attacker], None]] = {
    attack.__name__.replace("_", "-"): attack
    for attack in (
        *(hung_up_spaces, spaces, big_texts, one_big_text, big_chats, many_messages, big_prompts),
        *(
            empty_lists,
            many_keys,
            many_faults,
            idle_connections,
            silent_connections,
            slow_heads,
            slow_bodies,
            huge_heads,
        ),
        *(bad_requests, unread_streams, long_chats, many_names),
    )
}


def main() -> None:
    """Attack until the time is over, and print what it cost."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attack.attackers", description=__doc__)
    parser.add_argument("attack", choices=list(ATTACKS))
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--caller-header", default="X-Steelyard-Caller")
    given = parser.parse_args()
    attacker = Attacker(given.port, given.seconds, given.caller_header)
    ATTACKS[given.attack](attacker)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    attacker.cost.cpu_s = usage.ru_utime + usage.ru_stime
    print(json.dumps(vars(attacker.cost)), flush=True)


if __name__ == "__main__":
    main()

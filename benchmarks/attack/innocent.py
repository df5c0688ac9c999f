"""The callers who attack nobody: their decisions and chats, the platform's ``/ping``, and whether all is answered."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from benchmarks.attack import target
from benchmarks.peers.cases import WORKLOADS, chat_prompt
from benchmarks.peers.wire import systemone_body

PATIENCE_S = 20.0
CHAT_PATIENCE_S = 55.0
"""An answer of many tokens may take as long as the server's own deadline."""
PING_PATIENCE_S = 10.0
PING_EVERY_S = 0.25
PAUSE_S = 0.02
DECISIONS = tuple(WORKLOADS["A"](number) for number in range(2000, 2008))


@dataclass
class Asked:
    """Requests of one kind: seconds of each that was answered, and the fate of the others."""

    seconds: list[float] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    wrong: int = 0
    refusals: int = 0


@dataclass
class Pings:
    """Seconds of each ``/ping``, and how many were answered by anything but 200."""

    seconds: list[float] = field(default_factory=list)
    failed: int = 0

    @property
    def worst(self) -> float:
        """The slowest; what was given up counts with the time that was waited."""
        return max(self.seconds, default=0.0)


Answer = dict[str, Any]


def decision(number: int) -> bytes:
    """One of the innocent caller's decisions."""
    return json.dumps(systemone_body(DECISIONS[number % len(DECISIONS)], {})).encode()


def decided(body: bytes) -> Any:
    """Of an answer, what never depends on company: probabilities and logits, to the last bit."""
    answers = json.loads(body)["answers"]
    kept = ("choice", "probabilities", "x_logits", "confidence")
    return {name: {key: answer.get(key) for key in kept} for name, answer in answers.items()}


def chat(number: int, *, stream: bool = False) -> bytes:
    """One of the innocent caller's chats: short, and the same text each time it is asked."""
    messages = [{"role": "user", "content": chat_prompt(number % 4, 30)}]
    body = {"model": "default", "messages": messages, "max_tokens": 12, "temperature": 0, "seed": 7, "stream": stream}
    return json.dumps(body).encode()


def chatted(body: bytes) -> str:
    """The text of a chat's answer, streamed or not.

    Raises:
        ValueError: The stream ended early.
    """
    if not body.startswith(b"data:"):
        return str(json.loads(body)["choices"][0]["message"]["content"])
    lines = [line[5:].strip() for line in body.decode().splitlines() if line.startswith("data:")]
    if not lines or lines[-1] != "[DONE]":
        raise ValueError("the stream has no end")
    parts = [json.loads(line)["choices"] for line in lines[:-1]]
    return "".join(part[0]["delta"].get("content") or "" for part in parts if part)


@dataclass(frozen=True)
class Kind:
    """A kind of innocent request.

    Attributes:
        path: Where it is sent.
        body: The request of a number.
        read: What is compared of an answer with the same request's quiet one.
        patience_s: How long it is asked for, in seconds.
    """

    path: str
    body: Callable[[int], bytes]
    read: Callable[[bytes], Any]
    patience_s: float = PATIENCE_S


DECIDE = Kind("/v1/systemone", decision, decided)
CHAT = Kind("/v1/chat/completions", chat, chatted, CHAT_PATIENCE_S)
STREAM = Kind("/v1/chat/completions", lambda number: chat(number, stream=True), chatted, CHAT_PATIENCE_S)


def ask_until(
    port: int, kind: Kind, number: int, asked: Asked, expected: dict[int, Any], *, headers: dict[str, str]
) -> None:
    """Ask once, and again after as long as a refusal says, for at most the kind's ``patience_s``; note how it went.

    ``expected`` is filled by the first answer of each number, and compared with the later ones.
    """
    started = time.monotonic()
    body, status, answer = kind.body(number), 0, b""
    while (left := started + kind.patience_s - time.monotonic()) > 0:
        status, answer = target.ask(port, "POST", kind.path, body, patience_s=left, headers=headers)
        if status not in (429, 503):
            break
        asked.refusals += 1
        time.sleep(max(0.0, min(_retry_after_s(answer), started + kind.patience_s - time.monotonic())))
    if status != 200:
        asked.lost.append(f"{status} after {time.monotonic() - started:.1f} s: {answer[:160]!r}")
        return
    asked.seconds.append(time.monotonic() - started)
    try:
        read = kind.read(answer)
    except (ValueError, KeyError, IndexError) as error:
        asked.lost.append(f"unreadable: {type(error).__name__}: {error}")
        return
    asked.wrong += expected.setdefault(number % 8, read) != read


def _retry_after_s(answer: bytes) -> float:
    try:
        found = _find(json.loads(answer), "retry_after_ms")
    except ValueError:
        return 0.5
    return 0.5 if found is None else float(found) / 1000


def _find(value: Any, key: str) -> Any:
    if isinstance(value, dict):
        return value[key] if key in value else next((f for v in value.values() if (f := _find(v, key))), None)
    return None


def in_turn(
    port: int,
    kind: Kind,
    seconds: float,
    expected: dict[int, Any],
    *,
    caller: dict[str, str],
    over: threading.Event | None = None,
) -> Asked:
    """Requests of one caller, one after another, until the time is over."""
    asked, until, number = Asked(), time.monotonic() + seconds, 0
    while time.monotonic() < until and not (over and over.is_set()):
        ask_until(port, kind, number, asked, expected, headers=caller)
        number += 1
        time.sleep(PAUSE_S)
    return asked


@contextmanager
def pinging(port: int) -> Iterator[Pings]:
    """Ask for ``/ping`` as the platform does, while the block runs."""
    pings, over = Pings(), threading.Event()

    def repeat() -> None:
        while not over.is_set():
            status, seconds = target.ping(port, PING_PATIENCE_S)
            pings.seconds.append(seconds)
            pings.failed += status != 200
            over.wait(PING_EVERY_S)

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield pings
    finally:
        over.set()
        thread.join()


def beside(works: Sequence[Callable[[], Asked]]) -> list[Asked]:
    """The results of ``works``, done at the same time."""
    results: list[Asked] = [Asked() for _ in works]

    def work(index: int) -> None:
        results[index] = works[index]()

    threads = [threading.Thread(target=work, args=(index,), daemon=True) for index in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results

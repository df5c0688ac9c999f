"""The clients: one request with its retries becomes one record, and nothing that happens to it goes unrecorded."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, TextIO

import httpx

from benchmarks.peers.cases import Case
from benchmarks.peers.wire import Answer, UnreadableError, retryable

ANSWERED, REFUSED, LOST = "answered", "refused", "lost"


class Target(Protocol):
    """A peer as a client sees it."""

    @property
    def name(self) -> str:
        """Its name in tables."""
        ...

    @property
    def path(self) -> str:
        """The path that answers decisions."""
        ...

    def body(self, case: Case) -> dict[str, Any]:
        """The request's body."""
        ...

    def answers(self, case: Case, body: Any) -> list[Answer]:
        """The answers in a body; raises ``UnreadableError``."""
        ...


@dataclass(frozen=True)
class Patience:
    """The behaviour of a client.

    Attributes:
        attempt_s: Seconds until an attempt is given up; SageMaker AI cuts a call off after 60.
        total_s: Seconds, from the first attempt on, within which a refused request is tried again.
        attempts: The most attempts of one request.
    """

    attempt_s: float = 60.0
    total_s: float = 180.0
    attempts: int = 12


@dataclass
class Record:
    """One request and what became of it. Seconds; ``started_s`` is on the harness's monotonic clock.

    ``outcome`` is ``answered``; ``refused``: the last attempt got an answer that says to come back later, and the
    client's patience was over; or ``lost``: anything else, ``reason`` says what.
    """

    peer: str
    cell: str
    workload: str
    number: int
    started_s: float
    seconds: float = 0.0
    attempts: int = 0
    refusals: int = 0
    outcome: str = LOST
    reason: str = ""
    answers: list[Answer] = field(default_factory=list)
    changed: bool | None = None
    flipped: bool | None = None

    @property
    def evaluated(self) -> int | None:
        """Tokens evaluated for all its questions, where the peer says so."""
        counts = [answer.evaluated for answer in self.answers]
        return None if not counts or None in counts else sum(count for count in counts if count is not None)


class Log:
    """Records, kept and written as JSON lines."""

    def __init__(self, sink: TextIO) -> None:
        self._sink = sink
        self.records: list[Record] = []

    def add(self, record: Record) -> Record:
        """Keep and write one."""
        self.records.append(record)
        self._sink.write(json.dumps(asdict(record)) + "\n")
        self._sink.flush()
        return record

    def of(self, cell: str, peer: str) -> list[Record]:
        """The records of one cell and peer, in the order in which they ended."""
        return [record for record in self.records if record.cell == cell and record.peer == peer]


async def ask(
    client: httpx.AsyncClient,
    target: Target,
    case: Case,
    *,
    cell: str,
    patience: Patience,
    rng: random.Random | None = None,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> Record:
    """Ask once, and again after each honest refusal while ``patience`` lasts."""
    rng = rng or random.Random(case.number)
    body = json.dumps(target.body(case)).encode()
    record = Record(target.name, cell, case.workload, case.number, time.monotonic())
    while True:
        record.attempts += 1
        pause = await _attempt(client, target, case, body, record, patience, rng)
        record.seconds = time.monotonic() - record.started_s
        if pause is None:
            return record
        if record.attempts >= patience.attempts or record.seconds + pause > patience.total_s:
            return record
        await sleep(pause)


async def _attempt(
    client: httpx.AsyncClient,
    target: Target,
    case: Case,
    body: bytes,
    record: Record,
    patience: Patience,
    rng: random.Random,
) -> float | None:
    """One attempt; the seconds to wait before the next one, or None when this was the last."""
    try:
        async with asyncio.timeout(patience.attempt_s):
            response = await client.post(target.path, content=body, headers={"content-type": "application/json"})
        decoded = response.json()
    except TimeoutError:
        record.outcome, record.reason = LOST, f"no answer within {patience.attempt_s:g} s"
        return None
    except (httpx.TransportError, ValueError) as error:
        record.outcome, record.reason = LOST, f"{type(error).__name__}: {error}"
        return None
    if response.status_code == 200:
        try:
            record.answers = target.answers(case, decoded)
        except UnreadableError as error:
            record.outcome, record.reason = LOST, f"unreadable answer: {error}"
            return None
        record.outcome, record.reason = ANSWERED, ""
        return None
    honest, after = retryable(response.status_code, decoded)
    record.reason = f"{response.status_code} {response.text[:200]}"
    if not honest:
        record.outcome = LOST
        return None
    record.outcome = REFUSED
    record.refusals += 1
    return backoff(record.refusals, after, rng)


def backoff(refusals: int, after: float | None, rng: random.Random) -> float:
    """Seconds before the next attempt: what the server asked for and up to a quarter more, else exponential.

    Args:
        refusals: How often this request has been refused so far, from 1 on.
        after: What the server asked for.
        rng: Spreads clients that were refused together.
    """
    if after is not None:
        return max(0.05, after) * rng.uniform(1.0, 1.25)
    return min(10.0, 0.25 * 2.0 ** (refusals - 1)) * rng.uniform(0.5, 1.5)


def compare(record: Record, alone: list[Answer]) -> None:
    """Note on ``record`` whether any number or any choice differs from the same peer's answer computed alone."""
    if record.outcome != ANSWERED:
        return
    pairs = list(zip(record.answers, alone, strict=True))
    record.changed = any(got.numbers != want.numbers for got, want in pairs)
    record.flipped = any(got.choice != want.choice for got, want in pairs)


@dataclass(frozen=True)
class Tally:
    """The outcome of one cell's requests. ``compared`` is how many had an answer computed alone beside them."""

    requests: int
    answered: int
    attempts: int
    refusals: int
    refused: int
    lost: int
    compared: int
    changed: int
    flipped: int

    @property
    def retried(self) -> int:
        """Attempts beyond the first of each request."""
        return self.attempts - self.requests

    @property
    def amplification(self) -> float:
        """Attempts per request."""
        return self.attempts / self.requests if self.requests else 1.0


def tally(records: list[Record]) -> Tally:
    """Count outcomes. Every request is exactly one of answered, refused and lost."""
    compared = [record for record in records if record.changed is not None]
    return Tally(
        requests=len(records),
        answered=sum(record.outcome == ANSWERED for record in records),
        attempts=sum(record.attempts for record in records),
        refusals=sum(record.refusals for record in records),
        refused=sum(record.outcome == REFUSED for record in records),
        lost=sum(record.outcome == LOST for record in records),
        compared=len(compared),
        changed=sum(bool(record.changed) for record in compared),
        flipped=sum(bool(record.flipped) for record in compared),
    )

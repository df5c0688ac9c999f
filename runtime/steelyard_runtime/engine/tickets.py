"""Queued work other than chats, and the callers that wait for its result."""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from steelyard_runtime.engine.embedder import EmbeddingRun
from steelyard_runtime.engine.interface import Logits, Score, Segment
from steelyard_runtime.engine.scorer import ScoreRun

Job = TypeVar("Job")
Result = TypeVar("Result")


class CallerLeftError(Exception):
    """The running work has no caller left."""


@dataclass(slots=True, eq=False)
class Waiter(Generic[Result]):
    """A caller that waits for a result. The future stays cancellable until its result is set."""

    deadline: float
    future: Future[Result] = field(default_factory=Future)
    submitted: float = field(default_factory=time.monotonic)

    def resolve(self, result: Result) -> bool:
        """Hand out the result, unless the caller has left or was answered; whether it was handed out."""
        if taken := self._takes():
            self.future.set_result(result)
        return taken

    def fail(self, problem: Exception) -> None:
        """Hand out a problem, unless the caller has left or was answered."""
        if self._takes():
            self.future.set_exception(problem)

    def _takes(self) -> bool:
        return not self.future.done() and self.future.set_running_or_notify_cancel()


@dataclass(slots=True, eq=False)
class Ticket(Generic[Job, Result]):
    """Queued or running work with its waiters: more than one after an exact duplicate.

    Attributes:
        job: The work.
        caller: Whose line it waits in.
        tokens: Tokens that are still expected to be evaluated for it.
        steps: Questions or texts that are left; the chats have a turn after some of them.
        waiters: The callers that wait; the first one asked first.
        started: When the engine began, ``time.monotonic()``; 0 before.
        submitted: When it was asked for first; that caller may have left.
    """

    job: Job
    caller: str
    tokens: int
    steps: int
    waiters: list[Waiter[Result]]
    started: float = 0.0
    submitted: float = field(default_factory=time.monotonic)

    def start(self) -> None:
        """Note when the engine began, once."""
        self.started = self.started or time.monotonic()

    @property
    def queue_ms(self) -> float:
        """Milliseconds that it waited before the engine began."""
        return max(0.0, self.started - self.submitted) * 1000

    def fail(self, problem: Exception) -> None:
        """Hand out a problem to every waiter."""
        for waiter in self.waiters:
            waiter.fail(problem)


ScoreTicket = Ticket[ScoreRun, list[Score]]
EmbeddingTicket = Ticket[EmbeddingRun, list[Logits]]
WarmTicket = Ticket[tuple[Segment, ...], None]
AnyTicket = ScoreTicket | EmbeddingTicket | WarmTicket
AnyWaiter = Waiter[Any]

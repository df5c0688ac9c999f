"""Delivers results and problems to the callers that still wait, and counts them."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import Any

from steelyard_runtime.engine.generations import Generation
from steelyard_runtime.engine.interface import Score
from steelyard_runtime.engine.lifecycle import RESTART_MS
from steelyard_runtime.engine.llama import LlamaError
from steelyard_runtime.engine.meter import Meter
from steelyard_runtime.engine.scheduler import Scheduler
from steelyard_runtime.engine.scorer import ScoreRun
from steelyard_runtime.engine.tickets import AnyTicket, CallerLeftError, Ticket, Waiter
from steelyard_runtime.errors import Kind, Problem
from steelyard_runtime.legible import reason_of

log = logging.getLogger(__name__)


class Delivery:
    """Hands out results and problems on the engine's thread.

    Args:
        scheduler: Guards the waiters of a ticket, which callers may join.
        meter: Counts cancelled, late and failed requests.
    """

    def __init__(self, scheduler: Scheduler, meter: Meter) -> None:
        self._scheduler = scheduler
        self._meter = meter

    def resolve(self, ticket: Ticket[Any, Any], result: Any) -> None:
        """Hand out a result. The first waiter that is still there gets what was evaluated, the others that nothing was.

        So the answers' counts add up to what the engine did, also when the caller that asked first has left.
        """
        counted = False
        for waiter in ticket.waiters:
            if isinstance(ticket.job, ScoreRun):
                counted = waiter.resolve(_scores_for(waiter, ticket, result, joined=counted)) or counted
            else:
                waiter.resolve(result)

    def check_wanted(self, ticket: AnyTicket) -> None:
        """Drop the waiters that have left and fail those whose deadline has passed.

        Raises:
            CallerLeftError: No caller is left.
        """
        gone, late = self._scheduler.drop_waiters(ticket)
        self._meter.counters.cancelled += len(gone)
        self._meter.counters.rejected += len(late)
        for waiter in late:
            waiter.fail(_late(by_s=time.monotonic() - waiter.deadline))
        if not ticket.waiters and (gone or late):
            raise CallerLeftError

    def fail(self, ticket: AnyTicket, error: Exception) -> None:
        """Tell every waiter of a ticket of the fault that it caused; none is left."""
        ticket.fail(request_failed(error))
        ticket.waiters.clear()

    def count_fault(self, error: Exception) -> None:
        """Count and log a fault."""
        self._meter.counters.faults += 1
        log.error("a request failed in the engine and was given up", exc_info=error)

    def end_if_unwanted(self, generation: Generation) -> bool:
        """End a chat that was cancelled or is late; whether it was."""
        if generation.cancelled:
            self._meter.counters.cancelled += 1
            generation.over = True
        elif time.monotonic() > generation.job.deadline:
            self._meter.counters.rejected += 1
            generation.fail(_late_chat(generation.generated))
        else:
            return False
        return True


def request_failed(error: Exception) -> Problem:
    """Return the problem of the request that a fault belongs to."""
    why = reason_of(error) if isinstance(error, LlamaError) else type(error).__name__
    return Problem(
        Kind.REQUEST_FAILED,
        f"the engine failed while it worked on this request ({why}) and gave it up; do not repeat it as it is: change "
        "it, or report it, the server's log has the reason",
    )


def shared_decode_failed() -> Problem:
    """Return the problem of chats of which only one can have caused a fault, while the engine continues."""
    return Problem(
        Kind.ENGINE_FAILED,
        "a decode that this answer shared with others failed, and the engine continues; try again",
        retry_after_ms=1000,
    )


def engine_failed() -> Problem:
    """Return the problem of requests that were in flight when the engine died."""
    return Problem(
        Kind.ENGINE_FAILED,
        "the engine ended while this request was in progress, for a reason that is not in it; try again",
        retry_after_ms=RESTART_MS,
    )


def _late(*, by_s: float) -> Problem:
    return Problem(
        Kind.DEADLINE,
        f"the request was not answered within its deadline ({by_s:.1f} s late); try again later",
        retry_after_ms=1000,
    )


def _late_chat(generated: int) -> Problem:
    return Problem(
        Kind.DEADLINE,
        f"{generated} tokens were generated when the deadline came; ask for fewer (max_tokens), or stream the answer",
        retry_after_ms=1000,
    )


def _scores_for(waiter: Waiter[Any], ticket: Ticket[Any, Any], scores: list[Score], *, joined: bool) -> list[Score]:
    """The scores as one waiter gets them: with its own time in the queue, and nothing evaluated if it ``joined``."""
    queue_ms = max(0.0, ticket.started - waiter.submitted) * 1000
    return [
        replace(
            score,
            tokens=replace(score.tokens, evaluated=0, reused=score.tokens.prompt) if joined else score.tokens,
            queue_ms=queue_ms,
        )
        for score in scores
    ]

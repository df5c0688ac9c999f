"""Everything that a request costs before the engine takes it: parsing, checking, rendering, tokenizing.

Small bodies are parsed on the event loop. All other work waits in lanes, each with a thread: small work is never behind
large work, and callers take turns. A request is admitted once, when its body has arrived; the time that it may take
counts from its arrival; and what nobody waits for any more is dropped before it begins, and between two chunks of a
text. Tokenizing large texts is the longest work, and releases the interpreter: its thread has a low priority, so that
it does not take the processor from the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal, ParamSpec, TypeVar

from steelyard_runtime.engine.fair_queue import FairQueue
from steelyard_runtime.engine.places import UNNAMED, unnamed_part
from steelyard_runtime.errors import Kind, Problem

INLINE_BYTES = 8 << 10
"""Largest body that is parsed and checked on the event loop: faster than it is handed to a thread and back."""
LARGE_BYTES = 64 << 10
"""A larger body is large work."""
LOW_PRIORITY = 10
"""Niceness of the thread that tokenizes large texts."""
SOONEST_MS = 100
IDLE_S = 10.0
"""Seconds that a thread waits for work before it ends."""

Stage = Literal["small", "chat", "large", "large texts"]
_NICENESS: dict[Stage, int] = {"small": 0, "chat": 0, "large": 0, "large texts": LOW_PRIORITY}

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Work:
    run: Callable[[], Any]
    request: Preparing
    future: Future[Any] = field(default_factory=Future)


class _Lane:
    """A queue with a thread, which is there while there is work and a little longer."""

    def __init__(self, stage: Stage) -> None:
        self._name = f"prepare {stage}"
        self._niceness = _NICENESS[stage]
        self._queue: FairQueue[_Work] = FairQueue()
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self.seconds = 0.0
        """The usual duration of one work."""

    @property
    def waiting(self) -> int:
        """The count of those that wait."""
        return len(self._queue)

    def add(self, work: _Work) -> None:
        """Queue ``work`` in its caller's line."""
        with self._wake:
            self._queue.push(work, caller=work.request.caller)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
                self._thread.start()
            self._wake.notify()

    def _serve(self) -> None:
        if self._niceness:
            with contextlib.suppress(OSError, AttributeError):  # of this thread, where the system has such
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), self._niceness)
        while True:
            with self._wake:
                if not self._wake.wait_for(lambda: bool(self._queue), timeout=IDLE_S):
                    self._thread = None
                    return
                work = self._queue.pop()
            began = time.monotonic()
            if work.future.set_running_or_notify_cancel():
                try:
                    work.request.check()
                    result = work.run()
                except BaseException as error:  # whatever it is belongs to this request
                    work.future.set_exception(error)
                else:
                    work.future.set_result(result)
                    del result
                self.seconds += (time.monotonic() - began - self.seconds) / 8
            del work  # and with it the request's body, while the next one is waited for


class Preparing:
    """One request on its way to the engine. A context manager; what it is waiting for is dropped when it is left.

    Attributes:
        caller: Whose turn it takes.
        size: Bytes of its body.
        arrived: When it arrived, ``time.monotonic()``.
        deadline: Until when the engine must have it.
    """

    def __init__(self, preparation: Preparation, *, caller: str, size: int, arrived: float, deadline: float) -> None:
        self._preparation = preparation
        self.caller = caller
        self.size = size
        self.arrived = arrived
        self.deadline = deadline
        self._over = self._done = False

    def __enter__(self) -> Preparing:
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        self.done()

    def done(self) -> None:
        """Give the place to others: the engine has the request."""
        if not self._done:
            self._done = True
            self._preparation.leave(self)

    def check(self) -> None:
        """Raise if no caller waits for the result. Safe from any thread.

        Raises:
            Problem: DEADLINE.
        """
        if self._over or time.monotonic() > self.deadline:
            raise _too_late()

    async def parse(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of work that holds the interpreter, and takes time in proportion to the body."""
        if self.size <= INLINE_BYTES:
            return work(*args, **kwargs)
        return await self._in("large" if self.size > LARGE_BYTES else "small", lambda: work(*args, **kwargs))

    async def tokenize(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of work that is mostly tokenizing."""
        return await self._in("large texts" if self.size > LARGE_BYTES else "small", lambda: work(*args, **kwargs))

    async def render(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of work that also runs a model's template, or compiles a schema."""
        return await self._in("large texts" if self.size > LARGE_BYTES else "chat", lambda: work(*args, **kwargs))

    async def _in(self, stage: Stage, run: Callable[[], T]) -> T:
        work = _Work(run, self)
        self._preparation.lane(stage).add(work)
        limit = asyncio.timeout(max(0.0, self.deadline - time.monotonic()))
        try:
            async with limit:
                result: T = await asyncio.wrap_future(work.future)
                return result
        except TimeoutError:
            self._over = True
            if not limit.expired():
                raise
        except asyncio.CancelledError:
            self._over = True
            raise
        finally:
            # A problem's traceback has this frame, which must not lead back to the problem, by the future or by the
            # task that the time limit knows: such a circle keeps the body until the collector comes by.
            work.run = _too_late
            del work, run, limit
        raise _too_late()  # out here, so that it does not hold the limit's own error


class Preparation:
    """Admits requests to being prepared, and does their work.

    Args:
        places: Requests that may be prepared at the same time, those that wait for it included.
        large_bytes: Bytes of their bodies, of those that are large; one is always taken.
        unnamed_share: Share of both that callers without a name may have together.
    """

    def __init__(self, *, places: int, large_bytes: int, unnamed_share: float) -> None:
        self._most = {False: places, True: large_bytes}
        self._share = unnamed_share
        self._taken = {False: 0, True: 0}
        self._unnamed = {False: 0, True: 0}
        self._lanes: dict[Stage, _Lane] = {stage: _Lane(stage) for stage in _NICENESS}

    def lane(self, stage: Stage) -> _Lane:
        """Return the lane of a stage."""
        return self._lanes[stage]

    def admit(self, *, caller: str, size: int, arrived: float, deadline_s: float) -> Preparing:
        """Take a request whose body has arrived. For the event loop's thread only.

        Args:
            caller: Who sent it; all without a name are one caller.
            size: Bytes of its body.
            arrived: When it arrived, ``time.monotonic()``.
            deadline_s: Seconds that it may take from then on.

        Raises:
            Problem: BUSY.
        """
        large = size > LARGE_BYTES
        weight = size if large else 1
        full = self._taken[large] + weight > self._most[large] and self._taken[large] > 0
        part = unnamed_part(self._most[large], share=self._share)
        if caller == UNNAMED and self._unnamed[large] + weight > part and self._unnamed[large] > 0:
            full = True
        if full:
            raise self._busy(large=large, size=size)
        self._count(large, caller, weight)
        return Preparing(self, caller=caller, size=size, arrived=arrived, deadline=arrived + deadline_s)

    def leave(self, request: Preparing) -> None:
        """Give the request's place to others."""
        large = request.size > LARGE_BYTES
        self._count(large, request.caller, -(request.size if large else 1))

    def _count(self, large: bool, caller: str, weight: int) -> None:
        self._taken[large] += weight
        if caller == UNNAMED:
            self._unnamed[large] += weight

    def _busy(self, *, large: bool, size: int) -> Problem:
        stages: tuple[Stage, ...] = ("large", "large texts") if large else ("small", "chat")
        seconds = max(self._lanes[stage].seconds * (1 + self._lanes[stage].waiting) for stage in stages)
        occupied = (
            f"large bodies of {self._taken[True]} bytes are waiting to be read and {self._most[True]} may "
            f"(max_waiting_mib); this one has {size}"
            if large
            else f"{self._taken[False]} requests are waiting to be read and {self._most[False]} may (queue_limit)"
        )
        return Problem(
            Kind.BUSY,
            f"{occupied}. Callers without a name have a part of that. Try again later.",
            retry_after_ms=max(SOONEST_MS, math.ceil(seconds * 1000)),
        )


def _too_late() -> Problem:
    return Problem(
        Kind.DEADLINE,
        "The request's deadline came while it was being read and tokenized; try again later, or send less in one "
        "request.",
        retry_after_ms=1000,
    )

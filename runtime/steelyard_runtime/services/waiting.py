"""Waiting for the engine no longer than a caller does.

The engine itself ends a job at its deadline, but only between two steps: while its thread is stuck in one, in a call of
the C library, it can tell nobody. Then the callers hear of it from here, a little later.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future
from typing import TypeVar

from steelyard_runtime.errors import Kind, Problem

GRACE_S = 2.0

T = TypeVar("T")


def patience_s(deadline: float) -> float:
    """Seconds from now on to wait for what the engine should end at ``deadline``, a ``time.monotonic()``."""
    return deadline - time.monotonic() + GRACE_S


def too_late() -> Problem:
    """The error of a caller whose deadline passed without a word from the engine."""
    return Problem(
        Kind.DEADLINE,
        "The engine did not finish by the deadline, nor say why; try again later, or ask another instance.",
        retry_after_ms=1000,
    )


async def answered(future: Future[T], *, deadline: float) -> T:
    """The engine's answer. To stop waiting, here or by cancelling this, cancels ``future``: the engine drops it.

    Raises:
        Problem: DEADLINE, a little after ``deadline``; or whatever the engine failed with.
    """
    limit = asyncio.timeout(patience_s(deadline))
    try:
        async with limit:
            return await asyncio.wrap_future(future)
    except TimeoutError:
        if not limit.expired():  # the engine's own
            raise
    finally:
        # A problem's traceback has this frame, which must not lead back to the problem, by the future or by the task
        # that the time limit knows: such a circle keeps the request until the collector comes by.
        del future, limit
    raise too_late()  # out here, so that it does not hold the limit's own error

"""What the engine has done and how fast: counters, the running decode, the measured rate."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from switchyard_runtime.engine.interface import Counters

WEIGHT = 0.2
MINIMUM_TOKENS = 16


class Meter:
    """Written by the engine's thread; read by any.

    Attributes:
        counters: Totals since start.
        rate: Evaluated tokens per second, smoothed over decodes of at least 16 tokens; 0 before the first.
    """

    def __init__(self) -> None:
        self.counters = Counters()
        self.rate = 0.0
        self._started: float | None = None

    @contextmanager
    def decoding(self, tokens: int) -> Iterator[None]:
        """Account for one decode of ``tokens`` tokens."""
        started = self._started = time.monotonic()
        try:
            yield
        finally:
            self._started = None
        taken = time.monotonic() - started
        self.counters.decodes += 1
        self.counters.decoded_tokens += tokens
        self.counters.busy_seconds += taken
        if tokens >= MINIMUM_TOKENS and taken > 0:
            rate = tokens / taken
            self.rate = rate if not self.rate else (1 - WEIGHT) * self.rate + WEIGHT * rate

    def seconds(self, tokens: int) -> float:
        """How long evaluating ``tokens`` takes at the measured rate; 0 while none was measured."""
        return tokens / self.rate if self.rate else 0.0

    def running_for(self) -> float:
        """Seconds that the decode in progress has been running; 0 between decodes."""
        started = self._started
        return 0.0 if started is None else time.monotonic() - started

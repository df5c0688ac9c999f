"""Measures the engine: counters, the running decode, the measured rates."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from steelyard_runtime.engine.interface import Counters

WEIGHT = 0.2
MINIMUM_TOKENS = 16


def smoothed(average: float, value: float) -> float:
    """The exponential moving average after one more value; the value itself when it is the first."""
    return value if not average else (1 - WEIGHT) * average + WEIGHT * value


@dataclass(slots=True)
class Decode:
    """The seconds that a decode took, without what interrupted it; 0 while it runs."""

    seconds: float = 0.0


class Meter:
    """Written by the engine's thread; read by any.

    Attributes:
        counters: Totals since the self-test. Those of arrivals and of what is held now are 0 here.
        rate: Tokens per second of what is not a chat, smoothed over decodes of at least 16 tokens; 0 before the first.
        chat_rate: Tokens per second of whole prompts of chats, smoothed; 0 before the first.
        decision_s: Seconds that one decision takes in the engine, smoothed; 0 before the first.
        decided_at: When the last decision was finished, ``time.monotonic()``; 0 before the first.
        start_seconds: Seconds that the start took, by stage.
        chat_turn_s: Seconds that a decode of the chats takes that nothing can stop, smoothed; 0 before the first.
    """

    def __init__(self) -> None:
        self.counters = Counters()
        self.rate = 0.0
        self.chat_rate = 0.0
        self.decision_s = 0.0
        self.decided_at = 0.0
        self.chat_turn_s = 0.0
        self.start_seconds: dict[str, float] = {}
        self._started: float | None = None

    def reset_counters(self) -> None:
        """Start the totals anew, without what the self-test counted."""
        self.counters = Counters()

    @contextmanager
    def decoding(self, tokens: int, *, chat: bool = False) -> Iterator[Decode]:
        """Account for one decode of ``tokens`` tokens, of chats or of anything else."""
        decode = Decode()
        self._started = time.monotonic()
        try:
            yield decode
        finally:
            decode.seconds = taken = self.running_for()
            self._started = None
        self.counters.decodes += 1
        self.counters.decoded_tokens += tokens
        self.counters.busy_seconds += taken
        if tokens >= MINIMUM_TOKENS and taken > 0 and not chat:
            self.rate = smoothed(self.rate, tokens / taken)

    @contextmanager
    def interrupted(self) -> Iterator[None]:
        """Stop the clock of the decode in progress, in whose middle others are done."""
        ran = self.running_for()
        self._started = None
        try:
            yield
        finally:
            self._started = time.monotonic() - ran

    def decision_took(self, seconds: float) -> None:
        """Account for one decision that took ``seconds`` in the engine."""
        self.decision_s = smoothed(self.decision_s, seconds)
        self.decided_at = time.monotonic()

    def chat_prompt_took(self, tokens: int, seconds: float) -> None:
        """Account for one chat's prompt, of which ``tokens`` had to be evaluated and took ``seconds``."""
        if tokens >= MINIMUM_TOKENS and seconds > 0:
            self.chat_rate = smoothed(self.chat_rate, tokens / seconds)

    def chat_decode_took(self, seconds: float) -> None:
        """Account for a decode of the chats that nothing could stop."""
        self.chat_turn_s = smoothed(self.chat_turn_s, seconds)

    def seconds(self, tokens: int, *, chat: bool = False) -> float:
        """Estimate the seconds that ``tokens`` take at the measured rate; 0 while none was measured."""
        rate = (self.chat_rate if chat else 0.0) or self.rate
        return tokens / rate if rate else 0.0

    def running_for(self) -> float:
        """Seconds that the decode in progress has been running; 0 between decodes."""
        started = self._started
        return 0.0 if started is None else time.monotonic() - started

"""Admission control: the work ahead, deadlines that can be met, times to try again. Needs a lock."""

from __future__ import annotations

import math
import time

from steelyard_runtime.engine.meter import Meter
from steelyard_runtime.engine.places import UNNAMED, unnamed_part
from steelyard_runtime.engine.turns import IN_A_ROW, OWED_PER_SECOND
from steelyard_runtime.errors import Kind, Problem

SOONEST_S = 0.1
LONGEST_PROMISE_S = 600.0
"""Upper bound of ``retry_after_ms``."""


class Admission:
    """Counts the work that was let in and is not done.

    Chats are before another chat only. A decision goes before them, and waits for their turns.

    Attributes:
        tokens: Tokens that decisions and embeddings are expected to need yet.
        steps: Their questions and texts; the chats have a turn after some of them.
        chat_tokens: Tokens of chats' prompts.
        unnamed_tokens: The part of ``tokens`` that belongs to callers without a name.
        unnamed_chat_tokens: The part of ``chat_tokens`` that belongs to callers without a name.

    Args:
        meter: Knows how fast the machine is.
        queue_limit: Most waiting chats and, counted apart, most waiting decisions and embeddings.
        unnamed_share: Share of the queue that callers without a name may fill.
    """

    def __init__(self, meter: Meter, *, queue_limit: int, unnamed_share: float) -> None:
        self._meter = meter
        self._limit = queue_limit
        self._unnamed_limit = unnamed_part(queue_limit, share=unnamed_share)
        self._promised: dict[tuple[bool, bool], float] = {}  # by chat and named: until when places were promised
        self.tokens = 0
        self.steps = 0
        self.chat_tokens = 0
        self.unnamed_tokens = 0
        self.unnamed_chat_tokens = 0

    def clear(self) -> None:
        """Nothing is left to be done."""
        self.tokens = self.steps = self.chat_tokens = self.unnamed_tokens = self.unnamed_chat_tokens = 0

    def add(self, *, tokens: int, steps: int, caller: str) -> None:
        """Count a caller's decisions and embeddings; negative numbers take off what is done."""
        self.tokens += tokens
        self.steps += steps
        if caller == UNNAMED:
            self.unnamed_tokens += tokens

    def add_chat(self, *, tokens: int, caller: str) -> None:
        """Count tokens of a caller's chat; a negative number takes off what is done."""
        self.chat_tokens += tokens
        if caller == UNNAMED:
            self.unnamed_chat_tokens += tokens

    def check(
        self,
        tokens: int,
        *,
        deadline: float,
        waiting: int,
        beside_chats: bool,
        chat: bool,
        caller: str = UNNAMED,
        unnamed_waiting: int = 0,
    ) -> None:
        """Refuse what cannot be answered in time, before any work is done.

        Args:
            tokens: Of the request, to be evaluated.
            deadline: ``time.monotonic()`` of it.
            waiting: Requests in its line: chats, or all others. Chats do not fill the other line, which goes first.
            beside_chats: Chats are running.
            chat: It is a chat.
            caller: The caller's name.
            unnamed_waiting: The part of ``waiting`` that belongs to callers without a name.

        Raises:
            Problem: BUSY when others are before it, DEADLINE when it takes too long even alone.
        """
        named = caller != UNNAMED
        ahead = self.seconds_ahead(beside_chats=beside_chats, chat=chat, own_tokens=tokens if named else None)
        # Not at the chats' rate: what it learned from one long prompt would refuse the next, and then never change.
        own, left = self._meter.seconds(tokens), deadline - time.monotonic()
        if waiting >= self._limit:
            what = "chats" if chat else "decisions and embeddings"
            raise Problem(
                Kind.BUSY,
                f"{waiting} {what} are waiting and {self._limit} may (queue_limit); try again later",
                retry_after_ms=self._retry_after_ms(ahead / max(1, waiting), own, chat=chat, named=named),
            )
        if not named and unnamed_waiting >= self._unnamed_limit:
            what = "chats" if chat else "decisions and embeddings"
            raise Problem(
                Kind.BUSY,
                f"{unnamed_waiting} {what} of callers without a name are waiting and {self._unnamed_limit} may "
                f"(unnamed_share of queue_limit={self._limit}); try again later, or have the gateway name the caller "
                "(X-Steelyard-Caller)",
                retry_after_ms=self._retry_after_ms(ahead / max(1, unnamed_waiting), own, chat=chat, named=named),
            )
        if own > left:
            raise Problem(
                Kind.DEADLINE,
                f"the request has {tokens} tokens to evaluate, which takes about {own:.1f} s at this machine's present "
                f"speed, and {max(left, 0):.1f} s are left; shorten it, or raise deadline_s on the "
                "server (of a stream: stream_deadline_s)",
                retry_after_ms=max(1000, math.ceil((own - left) * 1000)),
            )
        if ahead + own > left:
            raise Problem(
                Kind.BUSY,
                f"about {ahead:.1f} s of work are ahead and this request needs {own:.1f} s more, "
                f"but its deadline is in {left:.1f} s; try again later",
                retry_after_ms=self._retry_after_ms(ahead + own - left, own, chat=chat, named=named),
            )

    def seconds_ahead(self, *, beside_chats: bool, chat: bool, own_tokens: int | None = None) -> float:
        """Estimate the seconds of work before a new request, by the measured rates.

        Args:
            beside_chats: Chats are running.
            chat: The request is a chat.
            own_tokens: Tokens of a request of a named caller, None of another. Callers take turns, so work of callers
                without a name is before a named caller's only as far as it fits between the turns.
        """
        tokens = _ahead(self.tokens, unnamed=self.unnamed_tokens, own=own_tokens)
        decisions_s = self._meter.seconds(tokens)
        if chat:
            chat_tokens = _ahead(self.chat_tokens, unnamed=self.unnamed_chat_tokens, own=own_tokens)
            return decisions_s + self._meter.seconds(chat_tokens, chat=True)
        if not beside_chats:
            return decisions_s
        steps = self.steps if not self.tokens else math.ceil(self.steps * tokens / self.tokens)
        turns_s = (1 + steps // IN_A_ROW) * self._meter.chat_turn_s
        return decisions_s + max(turns_s, decisions_s * OWED_PER_SECOND)

    def _retry_after_ms(self, free_s: float, own_s: float, *, chat: bool, named: bool) -> int:
        """Stagger retries, so that refused clients do not return together and are refused again.

        Args:
            free_s: Seconds until there is room for one.
            own_s: How long what is refused takes; the next place is free so much later.
            chat: Whose places.
            named: Whose places: of callers with a name or without.
        """
        now = time.monotonic()
        promised = self._promised.get((chat, named), 0.0)
        at = min(max(promised, now + max(SOONEST_S, free_s)), now + LONGEST_PROMISE_S)
        self._promised[chat, named] = max(promised, at + own_s)
        return math.ceil((at - now) * 1000)


def _ahead(tokens: int, *, unnamed: int, own: int | None) -> int:
    if own is None:
        return tokens
    named = tokens - unnamed
    return named + min(unnamed, named + own)

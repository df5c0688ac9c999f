"""Places that callers without a name share, so that callers with a name find room."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

UNNAMED = ""
"""The name of all callers that give none."""
NAMED_LATELY_S = 600.0
"""For how long after a request of a caller with a name chats' places are kept for such callers."""


class ChatPlaces:
    """Divides the chats' places: a part is kept for callers with a name, once there are any.

    A chat's place is a large part of the server (one of three), so nothing is kept for callers that do not exist. The
    first caller with a name after a while may find every place taken: it has the next one that is free.

    Args:
        unnamed_share: Share of the places that callers without a name may hold beside callers with one.
        clock: Gives the present, in seconds.
    """

    def __init__(self, *, unnamed_share: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._share = unnamed_share
        self._clock = clock
        self._named_at = -math.inf

    def note(self, caller: str) -> None:
        """Note a request of any kind, let in or not. Safe from any thread."""
        if caller != UNNAMED:
            self._named_at = self._clock()

    def for_unnamed(self, places: int) -> int:
        """Return how many of ``places`` callers without a name may hold together now."""
        if self._clock() - self._named_at > NAMED_LATELY_S:
            return places
        return unnamed_part(places, share=self._share)


def unnamed_part(places: int, *, share: float) -> int:
    """Return how many of ``places`` callers without a name may hold together: at least one.

    >>> unnamed_part(3, share=0.75), unnamed_part(1, share=0.75), unnamed_part(10, share=0.9), unnamed_part(3, share=1)
    (2, 1, 9, 3)
    """
    return max(1, math.floor(places * share + 1e-9))

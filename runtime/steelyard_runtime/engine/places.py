"""Places that callers without a name share, so that callers with a name always find room."""

from __future__ import annotations

import math

UNNAMED = ""
"""The name of all callers that give none."""


def unnamed_part(places: int, *, share: float) -> int:
    """Return how many of ``places`` callers without a name may hold together: at least one.

    >>> unnamed_part(3, share=0.75), unnamed_part(1, share=0.75), unnamed_part(10, share=0.9), unnamed_part(3, share=1)
    (2, 1, 9, 3)
    """
    return max(1, math.floor(places * share + 1e-9))

"""Prefill chunk size: bounds how long a waiting decision is blocked where it cannot interrupt a decode.

llama.cpp's attention on a CPU works on tiles of 64 tokens; fewer take it another way, which costs up to twice as much a
token once a prompt is long. So a chunk is whole tiles, unless even one would keep a decision waiting too long.
"""

from __future__ import annotations

from dataclasses import dataclass

from steelyard_runtime.engine.segments import TILE

SHORTEST = 16
SMALLER = 2 / 3
"""Share of the time for tiles that a smaller chunk may take: it uses all of that, while whole tiles end below it."""


@dataclass(slots=True)
class Chunks:
    """Sizes for one prompt, learned while it is evaluated: a token costs more the more there are before it.

    Attributes:
        tiled: Tokens per second of the last chunk of whole tiles; 0 before the first.
        small: Of the last smaller chunk; 0 before the first.
        tokens: Of all chunks.
        seconds: Of all chunks.
    """

    tiled: float = 0.0
    small: float = 0.0
    tokens: int = 0
    seconds: float = 0.0

    def next(self, *, budget_s: float, most: int) -> int:
        """Return the number of tokens that may come next.

        Args:
            budget_s: Longest that they may take.
            most: Most of them, whatever they take; at least 1.
        """
        if not self.tiled:
            return min(most, TILE)
        if tiles := int(self.tiled * budget_s / TILE):
            return min(most // TILE, tiles) * TILE or most
        rate = self.small or self.tiled / 2
        return min(most, TILE - 1, max(SHORTEST, int(rate * budget_s * SMALLER)))

    def took(self, tokens: int, seconds: float) -> None:
        """Learn from a chunk."""
        if seconds <= 0:
            return
        self.tokens += tokens
        self.seconds += seconds
        if tokens >= TILE:
            self.tiled = tokens / seconds
        else:
            self.small = tokens / seconds

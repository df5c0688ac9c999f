"""Which evaluated prefixes are kept, and in which sequence. Bookkeeping only: it never touches llama.cpp.

A prefix is a chain of segments. Only whole chains are kept, each in a sequence of its own, because a part of a
sequence cannot be removed on every architecture.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

Segment = tuple[int, ...]
Chain = tuple[Segment, ...]


def length(chain: Chain) -> int:
    """Tokens in ``chain``."""
    return sum(map(len, chain))


class PrefixStore:
    """Kept chains by sequence, least recently used first.

    Args:
        sequences: The sequences this store may use.
    """

    def __init__(self, sequences: Sequence[int]) -> None:
        self._free = list(reversed(sequences))
        self._kept: OrderedDict[Chain, int] = OrderedDict()
        self._pins: dict[Chain, int] = {}
        self.evictions = 0

    def longest(self, chain: Chain) -> tuple[Chain, int] | None:
        """The longest kept beginning of ``chain`` and its sequence; marks it as used."""
        for end in range(len(chain), 0, -1):
            if (sequence := self._kept.get(chain[:end])) is not None:
                self._kept.move_to_end(chain[:end])
                return chain[:end], sequence
        return None

    def claim(self, chain: Chain, *, keep: Chain = ()) -> tuple[int, bool] | None:
        """A sequence for ``chain``, which is not kept yet; evicts the least recently used chain if none is free.

        Args:
            chain: What will be evaluated there; kept from now on.
            keep: A chain that must not be evicted, because it is about to be copied.

        Returns:
            The sequence and whether it must be cleared first, or None when everything is pinned.
        """
        if self._free:
            sequence, dirty = self._free.pop(), False
        else:
            victim = next((kept for kept in self._kept if kept != keep and not self._pins.get(kept)), None)
            if victim is None:
                return None
            sequence, dirty = self._kept.pop(victim), True
            self.evictions += 1
        self._kept[chain] = sequence
        return sequence, dirty

    def forget(self, chain: Chain) -> int | None:
        """Drop ``chain`` (its evaluation failed, or it serves no more); the sequence to clear, if it was kept."""
        sequence = self._kept.pop(chain, None)
        self._pins.pop(chain, None)
        if sequence is not None:
            self._free.append(sequence)
        return sequence

    def pin(self, chain: Chain) -> None:
        """Protect a kept chain from eviction until it is unpinned as often."""
        self._pins[chain] = self._pins.get(chain, 0) + 1

    def unpin(self, chain: Chain) -> None:
        """Undo one ``pin``."""
        if self._pins.get(chain, 0) <= 1:
            self._pins.pop(chain, None)
        else:
            self._pins[chain] -= 1

    def __len__(self) -> int:
        return len(self._kept)

"""The store of evaluated prefixes that are kept between requests. Bookkeeping only: it never touches llama.cpp.

A prefix is a chain of whole segments, kept as a snapshot of the sequence that held it, because a part of a sequence
cannot be taken back on every architecture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from steelyard_runtime.engine.interface import Segment
from steelyard_runtime.engine.llama import Snapshot

Chain = tuple[Segment, ...]
Key = tuple[Literal["decision", "chat"], str, tuple[tuple[int, ...], ...]]


def length(chain: Sequence[Segment]) -> int:
    """Tokens in ``chain``."""
    return sum(len(segment.tokens) for segment in chain)


def key_of(chain: Sequence[Segment], *, caller: str) -> Key:
    """Store key of a chain. Text that came from a caller is found by that caller only."""
    owner = caller if any(segment.private for segment in chain) else ""
    return "decision", owner, tuple(segment.tokens for segment in chain)


def key_of_text(tokens: Sequence[int], *, caller: str) -> Key:
    """Store key of a chat's text; separate from decisions, whose snapshots come from another context and chunking."""
    return "chat", caller, (tuple(tokens),)


@dataclass(slots=True)
class _Kept:
    snapshot: Snapshot
    saves: float
    rank: tuple[float, int] = (0.0, 0)
    pins: int = 0


class PrefixStore:
    """Snapshots by chain, within a number of bytes.

    What leaves first is what was used longest ago, weighed by the tokens that each of its bytes saves (the rule known
    as GreedyDual-Size). Where every token takes the same number of bytes this is plain least recently used; on
    recurrent models, whose state has one size, a long prefix stays longer than a short one.

    Attributes:
        bytes: What is in use, reservations included.
        evictions: How many snapshots had to leave.

    Args:
        capacity_bytes: Most bytes of snapshots; what is pinned or reserved counts.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity = capacity_bytes
        self._kept: dict[Key, _Kept] = {}
        self._clock = 0.0
        self._uses = 0
        self._reserved = 0
        self.bytes = 0
        self.evictions = 0

    def longest(self, chain: Chain, *, caller: str) -> tuple[int, Snapshot] | None:
        """Find the longest kept prefix of ``chain``, and mark it as used: its number of segments, and its snapshot."""
        for end in range(len(chain), 0, -1):
            if (kept := self._kept.get(key_of(chain[:end], caller=caller))) is not None:
                self._touch(kept)
                return end, kept.snapshot
        return None

    def longest_text(self, tokens: Sequence[int], *, caller: str) -> tuple[int, Snapshot] | None:
        """The longest kept text of ``caller`` that ``tokens`` begin with: its tokens, and its snapshot.

        Unlike a decision's segments, a chat's turns are not known by their boundaries, so every kept text is compared.
        """
        wanted = tuple(tokens)
        best: tuple[int, _Kept] | None = None
        for (kind, owner, (first, *_)), kept in self._kept.items():
            if kind != "chat" or owner != caller:
                continue
            size = len(first)
            if size <= len(wanted) and (best is None or size > best[0]) and wanted[:size] == first:
                best = size, kept
        if best is None:
            return None
        self._touch(best[1])
        return best[0], best[1].snapshot

    def missing(self, chain: Chain, *, caller: str) -> int:
        """Tokens of ``chain`` that would have to be evaluated now. Changes nothing; safe from any thread."""
        for end in range(len(chain), 0, -1):
            if key_of(chain[:end], caller=caller) in self._kept:
                return length(chain[end:])
        return length(chain)

    def keep(self, chain: Chain, snapshot: Snapshot, *, caller: str, saves: int, pin: bool = False) -> bool:
        """Keep a snapshot; False when it does not fit beside what is pinned, and when it is kept already.

        Args:
            chain: What the sequence held.
            snapshot: The sequence.
            caller: Whose text is in it, if any.
            saves: Tokens that need not be evaluated when it is found.
            pin: Protect it from eviction.
        """
        return self._put(key_of(chain, caller=caller), snapshot, saves=saves, pin=pin)

    def keep_text(self, tokens: Sequence[int], snapshot: Snapshot, *, caller: str) -> bool:
        """Keep a chat's text for its next turn; False when it does not fit, and when it is kept already."""
        return self._put(key_of_text(tokens, caller=caller), snapshot, saves=len(tokens), pin=False)

    def has_text(self, tokens: Sequence[int], *, caller: str) -> bool:
        """Tell whether exactly this text is kept."""
        return key_of_text(tokens, caller=caller) in self._kept

    def _put(self, key: Key, snapshot: Snapshot, *, saves: int, pin: bool) -> bool:
        if key in self._kept:
            self._kept[key].pins += pin
            return False
        if not self.make_room(len(snapshot)):
            return False
        kept = _Kept(snapshot, saves / len(snapshot), pins=int(pin))
        self._touch(kept)
        self._kept[key] = kept
        self.bytes += len(snapshot)
        return True

    def pin(self, chain: Chain, *, caller: str) -> bool:
        """Protect what is kept of exactly this chain from eviction, once more; False when nothing is."""
        kept = self._kept.get(key_of(chain, caller=caller))
        if kept is not None:
            kept.pins += 1
        return kept is not None

    def unpin(self, chain: Chain, *, caller: str = "") -> None:
        """Undo one ``pin``."""
        kept = self._kept.get(key_of(chain, caller=caller))
        if kept is not None and kept.pins:
            kept.pins -= 1

    def reserve(self, size: int) -> bool:
        """Count a snapshot that someone else holds; False when it does not fit beside what is pinned."""
        if not self.make_room(size):
            return False
        self._reserved += size
        self.bytes += size
        return True

    def release(self, size: int) -> None:
        """Undo one ``reserve``."""
        self._reserved -= size
        self.bytes -= size

    def clear(self) -> None:
        """Forget everything, pinned or not; what is reserved stays so."""
        self._kept.clear()
        self.bytes = self._reserved

    def _touch(self, kept: _Kept) -> None:
        self._uses += 1
        kept.rank = self._clock + kept.saves, self._uses

    def make_room(self, wanted: int) -> bool:
        """Drop what has to leave for so many bytes; False when they do not fit beside what is pinned.

        Called before a snapshot is made, so that it and what it replaces are never in memory at once.
        """
        pinned = sum(len(kept.snapshot) for kept in self._kept.values() if kept.pins)
        if self._reserved + pinned + wanted > self._capacity:
            return False
        while self.bytes + wanted > self._capacity:
            key = min((key for key, kept in self._kept.items() if not kept.pins), key=lambda key: self._kept[key].rank)
            victim = self._kept.pop(key)
            self._clock = victim.rank[0]
            self.bytes -= len(victim.snapshot)
            self.evictions += 1
        return True

    def __len__(self) -> int:
        return len(self._kept)

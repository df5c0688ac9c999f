"""First come, first served within a caller; callers take turns."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """A queue in which one caller's many requests do not keep another's few waiting. Not safe without a lock."""

    def __init__(self) -> None:
        self._lines: OrderedDict[str, deque[Item]] = OrderedDict()

    def push(self, item: Item, *, caller: str) -> None:
        """Add at the end of the caller's line."""
        self._lines.setdefault(caller, deque()).append(item)

    def push_back(self, item: Item, *, caller: str) -> None:
        """Return an item that is not finished to the front of the caller's line; the other callers come first."""
        self._lines.setdefault(caller, deque()).appendleft(item)
        self._lines.move_to_end(caller)

    def push_front(self, item: Item, *, caller: str) -> None:
        """Return an item that is to be the next one."""
        self._lines.setdefault(caller, deque()).appendleft(item)
        self._lines.move_to_end(caller, last=False)

    def remove(self, item: Item, *, caller: str) -> None:
        """Take an item out of the caller's line, if it is there."""
        line = self._lines.get(caller)
        if line is None or item not in line:
            return
        line.remove(item)
        if not line:
            del self._lines[caller]

    def callers(self) -> list[str]:
        """Return the callers in the order of their turns."""
        return list(self._lines)

    def waiting(self, caller: str) -> int:
        """Return how many items the caller has in the queue."""
        return len(self._lines.get(caller, ()))

    def pop(self, caller: str | None = None) -> Item:
        """The first item of the caller whose turn it is, or of the given one.

        Raises:
            IndexError: The queue is empty.
            KeyError: The given caller has nothing in it.
        """
        if not self._lines:
            raise IndexError("pop from an empty queue")
        if caller is None:
            caller = next(iter(self._lines))
        line = self._lines[caller]
        item = line.popleft()
        if line:
            self._lines.move_to_end(caller)
        else:
            del self._lines[caller]
        return item

    def clear(self) -> list[Item]:
        """Empty the queue; what was in it."""
        items = list(self)
        self._lines.clear()
        return items

    def __iter__(self) -> Iterator[Item]:
        for line in self._lines.values():
            yield from line

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def __bool__(self) -> bool:
        return bool(self._lines)

"""The memory of snapshots goes back to the system."""

from __future__ import annotations

import ctypes

import pytest

from steelyard_runtime.engine.llama import OWN_PAGES_FROM, room
from steelyard_runtime.engine.memory import used

COUNT = 32


def own() -> int:
    memory = used()
    assert memory
    return memory.anonymous


def test_long_snapshots_leave_no_holes() -> None:
    """Every second one of many is let go, and one that is larger comes: malloc would keep the holes and grow."""
    (ctypes.c_uint8 * (31 << 20))()  # let go at once; from now on malloc would put all of these sizes into its arena
    sizes = [OWN_PAGES_FROM * (1 + index % 3) for index in range(COUNT)]
    before = own()
    kept = []
    for size in sizes:
        kept.append(room(size))
        ctypes.memset(kept[-1], 1, size)
    full = own()
    del kept[::2]
    larger = room(4 * OWN_PAGES_FROM)
    ctypes.memset(larger, 1, len(larger))
    after = own()
    assert full - before > 0.9 * sum(sizes)
    assert after - before < sum(sizes[1::2]) + len(larger) + 4 * OWN_PAGES_FROM


@pytest.mark.parametrize("size", [1, 4097, OWN_PAGES_FROM - 1, OWN_PAGES_FROM, OWN_PAGES_FROM + 1])
def test_there_is_room_for_every_byte(size: int) -> None:
    found = room(size)
    assert len(found) == size
    found[0], found[size - 1] = 7, 8
    assert bytes(found)[-1] == 8

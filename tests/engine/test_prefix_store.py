"""The store of kept prefixes stays within its bytes, keeps what is pinned, and gives no caller another's text."""

from __future__ import annotations

import ctypes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard_runtime.engine.interface import Segment
from steelyard_runtime.engine.llama import Snapshot
from steelyard_runtime.engine.prefixes import Chain, PrefixStore, length

A, B, C = Segment((1, 2)), Segment((3,)), Segment((4, 5, 6))
SECRET = Segment((7, 8), private=True)


def snapshot(size: int = 10) -> Snapshot:
    return Snapshot((ctypes.c_uint8 * size)())


def keep(store: PrefixStore, *chain: Segment, size: int = 10, caller: str = "", pin: bool = False) -> bool:
    return store.keep(chain, snapshot(size), caller=caller, saves=length(chain), pin=pin)


def found(store: PrefixStore, *chain: Segment, caller: str = "") -> int:
    hit = store.longest(chain, caller=caller)
    return 0 if hit is None else hit[0]


def test_the_longest_kept_beginning_is_found() -> None:
    store = PrefixStore(100)
    assert store.longest((A, B), caller="") is None
    assert keep(store, A)
    assert found(store, A, B) == 1
    assert keep(store, A, B)
    assert found(store, A, B) == found(store, A, B, C) == 2
    assert found(store, A, C) == 1
    assert store.missing((A, B, C), caller="") == 3
    assert store.missing((C, A), caller="") == 5
    assert length((A, B)) == 3


def test_what_was_used_longest_ago_leaves_first() -> None:
    store = PrefixStore(20)
    assert keep(store, A)
    assert keep(store, Segment((9, 9)))
    assert found(store, A) == 1
    assert keep(store, Segment((8, 8)))
    assert found(store, Segment((9, 9))) == 0
    assert found(store, A) == 1
    assert store.evictions == 1


def test_of_two_of_one_size_the_one_that_saves_more_stays() -> None:
    """A recurrent model's state has one size, whatever it took to get there."""
    store = PrefixStore(20)
    long, short, new = (Segment(tuple(range(n, n + count))) for n, count in ((100, 90), (300, 2), (500, 5)))
    assert keep(store, long)
    assert keep(store, short)
    assert keep(store, new)
    assert found(store, long) == 1
    assert found(store, short) == 0


def test_an_old_treasure_leaves_in_the_end() -> None:
    store = PrefixStore(20)
    assert keep(store, Segment(tuple(range(100, 130))))
    for n in range(200, 260):
        assert keep(store, Segment((n, n)))
    assert found(store, Segment(tuple(range(100, 130)))) == 0


def test_what_is_pinned_stays_and_counts() -> None:
    store = PrefixStore(20)
    assert keep(store, A, pin=True)
    assert keep(store, B)
    assert keep(store, C)
    assert found(store, A) == 1
    assert not keep(store, Segment((9,)), size=11)
    store.unpin((A,))
    assert keep(store, Segment((9,)), size=20)
    assert found(store, A) == 0


def test_a_callers_text_serves_that_caller_only() -> None:
    store = PrefixStore(100)
    assert keep(store, A)
    assert keep(store, A, SECRET, caller="ann")
    assert found(store, A, SECRET, caller="ann") == 2
    assert found(store, A, SECRET, caller="bob") == 1
    assert found(store, A, SECRET) == 1
    assert store.missing((A, SECRET), caller="bob") == 2
    assert found(store, A, caller="bob") == 1


def test_a_kept_text_is_found_by_its_tokens() -> None:
    store = PrefixStore(100)
    for size in (3, 5):
        assert store.keep_text((1, 2, 3, 4, 5)[:size], snapshot(10), caller="ann")
    assert not store.keep_text((1, 2, 3), snapshot(10), caller="ann")
    assert store.has_text((1, 2, 3), caller="ann")
    assert not store.has_text((1, 2, 3), caller="bob")
    hit = store.longest_text((1, 2, 3, 4, 5, 6, 7), caller="ann")
    assert hit is not None
    assert hit[0] == 5
    shorter = store.longest_text((1, 2, 3, 4), caller="ann")
    assert shorter is not None
    assert shorter[0] == 3
    assert store.longest_text((1, 2), caller="ann") is None
    assert store.longest_text((1, 2, 3, 4, 5, 6, 7), caller="bob") is None


@pytest.mark.parametrize("private", [True, False])
def test_a_chats_text_is_no_decisions_and_the_other_way_round(private: bool) -> None:
    """They are of different contexts, and a chat's cells were evaluated in other cuts: not the same bits."""
    tokens, store = (1, 2, 3), PrefixStore(100)
    segment = Segment(tokens, private=private)
    store.keep_text(tokens, snapshot(10), caller="")
    assert found(store, segment) == 0
    assert store.missing((segment,), caller="") == 3
    store = PrefixStore(100)
    keep(store, segment, caller="")
    assert store.longest_text((*tokens, 4), caller="") is None
    assert not store.has_text(tokens, caller="")


def test_what_is_reserved_counts() -> None:
    store = PrefixStore(20)
    assert keep(store, A)
    assert keep(store, SECRET, caller="ann")
    assert store.pin((SECRET,), caller="ann")
    assert not store.pin((SECRET,), caller="bob")
    assert store.reserve(10)
    assert found(store, A) == 0
    assert not store.reserve(1)
    assert not keep(store, B, size=1)
    store.unpin((SECRET,), caller="ann")
    assert keep(store, B)
    assert store.bytes == 20
    store.clear()
    assert store.bytes == 10
    store.release(10)
    assert (store.bytes, len(store)) == (0, 0)


CHAINS = st.lists(st.sampled_from([A, B, C, SECRET]), min_size=1, max_size=3).map(tuple)
STEP = st.tuples(
    st.sampled_from(["keep", "pin", "unpin", "longest"]), CHAINS, st.integers(1, 40), st.sampled_from(["", "ann"])
)


@given(st.lists(STEP, max_size=60), st.integers(0, 100))
def test_it_never_holds_more_than_it_may(steps: list[tuple[str, Chain, int, str]], capacity: int) -> None:
    store = PrefixStore(capacity)
    for what, chain, size, caller in steps:
        if what == "longest":
            store.longest(chain, caller=caller)
        elif what == "unpin":
            store.unpin(chain)
        else:
            pin = what == "pin" and not any(segment.private for segment in chain)
            before = store.missing(chain, caller=caller)
            kept = store.keep(chain, snapshot(size), caller=caller, saves=length(chain), pin=pin)
            assert not kept or store.missing(chain, caller=caller) == 0
            assert kept or store.missing(chain, caller=caller) <= before
        assert 0 <= store.bytes <= capacity
        assert store.bytes == sum(len(kept.snapshot) for kept in store._kept.values())


def test_there_is_room_before_a_snapshot_is_made() -> None:
    store = PrefixStore(20)
    keep(store, A)
    keep(store, B, pin=True)
    assert not store.make_room(11)
    assert len(store) == 2
    assert store.make_room(10)
    assert store.bytes == 10
    assert found(store, B) == 1

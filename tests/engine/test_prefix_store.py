"""The store of kept prefixes never hands one sequence out twice and never evicts what is in use."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from switchyard_runtime.engine.prefixes import Chain, PrefixStore, length

A, B, C = (1, 2), (3,), (4, 5, 6)


def test_the_longest_kept_beginning_is_found() -> None:
    store = PrefixStore([5, 6])
    assert store.longest((A, B)) is None
    home = store.claim((A,))
    assert home is not None
    assert store.longest((A, B)) == ((A,), home[0])
    longer = store.claim((A, B), keep=(A,))
    assert longer is not None
    assert store.longest((A, B)) == ((A, B), longer[0])
    assert store.longest((A, C)) == ((A,), home[0])
    assert length((A, B)) == 3


def test_the_least_recently_used_is_evicted_and_its_sequence_is_dirty() -> None:
    store = PrefixStore([5, 6])
    first, second = store.claim((A,)), store.claim((B,))
    assert first is not None
    assert second == (6, False) or second == (5, False)
    store.longest((A,))
    assert store.claim((C,)) == (second[0], True)
    assert store.longest((B,)) is None
    assert store.evictions == 1


def test_what_is_about_to_be_copied_or_pinned_is_not_evicted() -> None:
    store = PrefixStore([5])
    home = store.claim((A,))
    assert store.claim((A, B), keep=(A,)) is None
    store.pin((A,))
    assert store.claim((B,)) is None
    store.unpin((A,))
    assert home is not None
    assert store.claim((B,)) == (home[0], True)


def test_forgetting_frees_the_sequence() -> None:
    store = PrefixStore([5])
    store.claim((A,))
    assert store.forget((A,)) == 5
    assert store.forget((A,)) is None
    assert store.claim((B,)) == (5, False)


STEP = st.tuples(
    st.sampled_from(["claim", "forget", "pin", "unpin", "longest"]), st.sampled_from([(A,), (B,), (C,), (A, B)])
)


@given(st.lists(STEP, max_size=60), st.integers(1, 3))
def test_a_sequence_belongs_to_one_chain_at_a_time(steps: list[tuple[str, Chain]], sequences: int) -> None:
    store, owner = PrefixStore(range(sequences)), dict[Chain, int]()
    pins: dict[Chain, int] = {}
    for what, chain in steps:
        if what == "claim" and chain not in owner:
            claimed = store.claim(chain)
            if claimed is None:
                assert all(pins.get(c) for c in owner)
                assert len(owner) == sequences
                continue
            victims = [c for c, sequence in owner.items() if sequence == claimed[0]]
            assert bool(victims) == claimed[1]
            for victim in victims:
                assert not pins.get(victim)
                del owner[victim]
            owner[chain] = claimed[0]
        elif what == "forget":
            assert store.forget(chain) == owner.pop(chain, None)
            pins.pop(chain, None)
        elif what == "pin" and chain in owner:
            store.pin(chain)
            pins[chain] = pins.get(chain, 0) + 1
        elif what == "unpin" and pins.get(chain):
            store.unpin(chain)
            pins[chain] -= 1
        elif what == "longest":
            kept = [chain[:n] for n in range(len(chain), 0, -1) if chain[:n] in owner]
            assert store.longest(chain) == ((kept[0], owner[kept[0]]) if kept else None)
        assert len(store) == len(owner)
        assert len(set(owner.values())) == len(owner)

"""Callers take turns; within a caller, first come, first served."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard_runtime.engine.fair_queue import FairQueue


def test_one_callers_many_requests_do_not_keep_another_waiting() -> None:
    queue: FairQueue[str] = FairQueue()
    for name in ("a1", "a2", "a3", "b1", "a4", "c1"):
        queue.push(name, caller=name[0])
    assert len(queue) == 6
    assert [queue.pop() for _ in range(6)] == ["a1", "b1", "c1", "a2", "a3", "a4"]
    assert not queue
    with pytest.raises(IndexError):
        queue.pop()


def test_what_is_not_finished_goes_on_after_the_other_callers() -> None:
    queue: FairQueue[str] = FairQueue()
    for name in ("a1", "a2", "b1"):
        queue.push(name, caller=name[0])
    assert queue.pop() == "a1"
    queue.push_back("a1", caller="a")
    assert [queue.pop() for _ in range(3)] == ["b1", "a1", "a2"]


def test_what_keeps_its_turn_is_next() -> None:
    queue: FairQueue[str] = FairQueue()
    for name in ("a1", "a2", "b1"):
        queue.push(name, caller=name[0])
    for caller in ("a", "b"):
        first = queue.pop()
        queue.push_front(first, caller=first[0])
        assert queue.pop() == first == f"{caller}1"
    assert list(queue) == ["a2"]


def test_what_is_taken_out_leaves_the_others_in_order() -> None:
    queue: FairQueue[str] = FairQueue()
    for name in ("a1", "a2", "b1"):
        queue.push(name, caller=name[0])
    queue.remove("a1", caller="a")
    queue.remove("b1", caller="b")
    queue.remove("c1", caller="c")
    queue.remove("a9", caller="a")
    assert (len(queue), queue.pop()) == (1, "a2")
    assert not queue


def test_a_given_caller_is_served_out_of_turn_and_the_others_keep_theirs() -> None:
    queue: FairQueue[str] = FairQueue()
    for name in ("a1", "b1", "b2", "c1"):
        queue.push(name, caller=name[0])
    assert queue.callers() == ["a", "b", "c"]
    assert [queue.waiting(caller) for caller in "abcd"] == [1, 2, 1, 0]
    assert queue.pop("b") == "b1"
    assert [queue.pop() for _ in range(3)] == ["a1", "c1", "b2"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=40))
def test_nothing_is_lost_and_a_line_keeps_its_order(steps: list[tuple[str, bool]]) -> None:
    queue: FairQueue[tuple[str, int]] = FairQueue()
    given_, taken = [], []
    for number, (caller, take) in enumerate(steps):
        queue.push((caller, number), caller=caller)
        given_.append((caller, number))
        if take:
            taken.append(queue.pop())
    taken += [queue.pop() for _ in range(len(queue))]
    assert sorted(taken) == sorted(given_)
    for caller in "abc":
        line = [number for who, number in taken if who == caller]
        assert line == sorted(line)

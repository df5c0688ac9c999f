"""Decisions go first, and chats get their share."""

from __future__ import annotations

from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard_runtime.engine.turns import CHATS_SHARE, IN_A_ROW, Turns

seconds = st.floats(min_value=1e-3, max_value=10)


def played(turns: Turns, *, decision_s: float, chat_s: float, turns_taken: int) -> list[tuple[str, float]]:
    """Who had the engine and how long, while decisions and chats wait all the time."""
    order = []
    for _ in range(turns_taken):
        if turns.decision_goes_first:
            turns.charge_decision(decision_s, usual_s=decision_s)
            order.append(("decision", decision_s))
        else:
            turns.charge_chats(chat_s)
            order.append(("chat", chat_s))
    return order


@given(decision_s=seconds, chat_s=seconds)
def test_chats_get_their_share_and_no_more_than_a_turn_above_it(decision_s: float, chat_s: float) -> None:
    turns = Turns()
    order = played(turns, decision_s=decision_s, chat_s=chat_s, turns_taken=2000)
    chats = sum(taken for who, taken in order if who == "chat")
    total = sum(taken for _, taken in order)
    # Decisions are ahead by a few of them at most. What a long turn of the chats had above their share is forgotten.
    assert chats >= CHATS_SHARE * (total - (IN_A_ROW + 1) * decision_s)
    if chat_s <= decision_s / 2:
        assert chats <= CHATS_SHARE * total + chat_s


@given(decision_s=seconds, alone_s=st.floats(min_value=0, max_value=1e6))
def test_no_more_than_a_few_decisions_run_in_a_row(decision_s: float, alone_s: float) -> None:
    turns = Turns()
    turns.charge_chats(alone_s)
    order = played(turns, decision_s=decision_s, chat_s=4 * decision_s, turns_taken=100)
    rows = [len(list(group)) for who, group in groupby(who for who, _ in order) if who == "decision"]
    assert set(rows[:-1]) == {IN_A_ROW}


@given(seconds=seconds)
def test_chats_get_their_share_before_the_first_decision_too(seconds: float) -> None:
    """Embeddings alone: nobody knows how long a decision takes."""
    turns, chats = Turns(), 0.0
    for _ in range(100):
        if turns.decision_goes_first:
            turns.charge_decision(seconds, usual_s=0.0)
        else:
            turns.charge_chats(seconds / 4)
            chats += seconds / 4
    assert chats >= CHATS_SHARE * (100 - 2 * IN_A_ROW) * seconds / 4


def test_a_decision_that_comes_alone_goes_first_when_the_chats_were_paid() -> None:
    turns = Turns()
    for _ in range(100):
        assert turns.decision_goes_first
        turns.charge_decision(0.2, usual_s=0.2)
        turns.charge_chats(0.05)


def test_one_long_job_does_not_keep_decisions_away_for_long() -> None:
    turns = Turns()
    turns.charge_decision(60, usual_s=0.2)
    turns.charge_chats(0.2)
    assert turns.decision_goes_first


@pytest.mark.parametrize("taken", [0.5, 60])
def test_nothing_is_owed_when_nobody_chats(taken: float) -> None:
    turns = Turns()
    turns.charge_decision(taken, usual_s=0.1)
    assert not turns.decision_goes_first
    turns.reset()
    assert turns.decision_goes_first

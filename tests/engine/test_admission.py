"""How long a new request waits: for the decisions before it, and for the chats' share."""

from __future__ import annotations

import time

import pytest

from steelyard_runtime.engine.admission import Admission
from steelyard_runtime.engine.meter import Meter
from steelyard_runtime.errors import Kind, Problem


@pytest.mark.parametrize("chat", [True, False])
def test_a_full_line_says_which_one_and_which_setting(chat: bool) -> None:
    admission = Admission(Meter(), queue_limit=3)
    asked = {"deadline": time.monotonic() + 60, "beside_chats": False, "chat": chat}
    admission.check(10, waiting=2, **asked)
    with pytest.raises(Problem, match="3 chats are" if chat else "3 decisions and embeddings are") as caught:
        admission.check(10, waiting=3, **asked)
    assert caught.value.kind is Kind.BUSY
    assert "queue_limit" in caught.value.message


@pytest.mark.parametrize(
    ("turn_s", "beside_chats", "ahead_s"),
    [
        (0.01, False, 10),
        (0.01, True, 12.5),  # decisions can interrupt chats, which have a fifth of the time
        (1.0, True, 21),  # a decode that nothing stops takes longer than that share
        (0.0, True, 12.5),
    ],
)
def test_a_decision_waits_for_those_before_it_and_the_chats_share(
    turn_s: float, beside_chats: bool, ahead_s: float
) -> None:
    meter = Meter()
    meter.rate, meter.chat_rate, meter.chat_turn_s = 100.0, 50.0, turn_s
    admission = Admission(meter, queue_limit=100)
    admission.tokens, admission.steps, admission.chat_tokens = 1000, 40, 200
    assert admission.seconds_ahead(beside_chats=beside_chats, chat=False) == ahead_s
    assert admission.seconds_ahead(beside_chats=beside_chats, chat=True) == 10 + 4

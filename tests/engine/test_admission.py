"""How long a new request waits: for the decisions before it, and for the chats' share."""

from __future__ import annotations

import time

import pytest

from steelyard_runtime.engine.admission import Admission
from steelyard_runtime.engine.meter import Meter
from steelyard_runtime.errors import Kind, Problem


@pytest.mark.parametrize("chat", [True, False])
def test_a_full_line_says_which_one_and_which_setting(chat: bool) -> None:
    admission = Admission(Meter(), queue_limit=3, unnamed_share=1)
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
    admission = Admission(meter, queue_limit=100, unnamed_share=1)
    admission.tokens, admission.steps, admission.chat_tokens = 1000, 40, 200
    assert admission.seconds_ahead(beside_chats=beside_chats, chat=False) == ahead_s
    assert admission.seconds_ahead(beside_chats=beside_chats, chat=True) == 10 + 4


def test_callers_without_a_name_leave_room_in_the_queue_to_those_with_one() -> None:
    admission = Admission(Meter(), queue_limit=8, unnamed_share=0.75)
    asked = {"deadline": time.monotonic() + 60, "beside_chats": False, "chat": False}
    admission.check(10, waiting=5, unnamed_waiting=5, **asked)
    with pytest.raises(Problem, match=r"6 decisions .* without a name .* 6 may \(unnamed_share") as caught:
        admission.check(10, waiting=6, unnamed_waiting=6, **asked)
    assert caught.value.kind is Kind.BUSY
    admission.check(10, waiting=6, unnamed_waiting=6, caller="ann", **asked)


@pytest.mark.parametrize("chat", [True, False])
def test_work_without_a_name_does_not_refuse_a_named_caller_whose_turn_comes_earlier(chat: bool) -> None:
    """Callers take turns, so of 50 s of work of callers without a name little comes before a short named request."""
    meter = Meter()
    meter.rate = 100.0
    admission = Admission(meter, queue_limit=100, unnamed_share=0.75)
    if chat:
        admission.add_chat(tokens=5000, caller="")
    else:
        admission.add(tokens=5000, steps=10, caller="")
    asked = {"deadline": time.monotonic() + 20, "waiting": 1, "beside_chats": True, "chat": chat}
    with pytest.raises(Problem, match=r"50\.0 s of work are ahead|6[0-9]\.[0-9] s of work are ahead"):
        admission.check(100, **asked)
    admission.check(100, caller="ann", **asked)
    told = [caught.value.retry_after_ms for caught in (refused(admission, asked) for _ in range(50))]
    assert told == sorted(told)
    asked["deadline"] = time.monotonic() + 1.5
    with pytest.raises(Problem) as named:
        admission.check(100, caller="ann", **asked)
    assert named.value.retry_after_ms < told[0], "refusals of others do not put a named caller off"
    admission.clear()
    assert admission.seconds_ahead(beside_chats=False, chat=chat) == 0


def refused(admission: Admission, asked: dict[str, object]) -> pytest.ExceptionInfo[Problem]:
    with pytest.raises(Problem) as caught:
        admission.check(100, **asked)
    return caught

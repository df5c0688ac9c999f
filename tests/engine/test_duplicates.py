"""Exact duplicates in flight share one evaluation."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from engine_requests import (
    WAIT_S,
    Gate,
    job,
)
from steelyard_runtime.engine.core import LlamaEngine
from steelyard_runtime.engine.tickets import Waiter
from steelyard_runtime.errors import Kind, Problem


def test_exact_duplicates_in_flight_share_one_evaluation(engine: LlamaEngine, gate: Gate) -> None:
    running = engine.submit_score(job(engine))
    assert gate.reached.wait(WAIT_S)
    same = [engine.submit_score(job(engine, "the same")) for _ in range(10)]
    other = engine.submit_score(job(engine, "the same", caller="someone else"))
    gate.open()
    running.result(WAIT_S)
    before = engine.counters.decisions
    first, *joined = [future.result(WAIT_S)[0] for future in same]
    assert first.tokens.evaluated > 0
    assert all(np.array_equal(score.logits, first.logits) for score in joined)
    assert all(score.tokens.evaluated == 0 for score in joined)
    assert all(score.tokens.prompt == first.tokens.prompt for score in joined)
    assert other.result(WAIT_S)[0].tokens.evaluated > 0
    assert engine.counters.joined == 9
    assert engine.counters.decisions <= before + 2


def test_a_duplicate_goes_on_when_the_first_caller_leaves(engine: LlamaEngine, gate: Gate) -> None:
    running = engine.submit_score(job(engine))
    assert gate.reached.wait(WAIT_S)
    first, second = (engine.submit_score(job(engine, "the same")) for _ in range(2))
    assert first.cancel()
    gate.open()
    running.result(WAIT_S)
    assert len(second.result(WAIT_S)) == 1
    assert engine.counters.cancelled == 1


def test_a_duplicate_with_an_earlier_deadline_fails_alone(engine: LlamaEngine, gate: Gate) -> None:
    running = engine.submit_score(job(engine))
    assert gate.reached.wait(WAIT_S)
    patient = engine.submit_score(job(engine, "the same"))
    hasty = engine.submit_score(job(engine, "the same", within_s=0.01))
    time.sleep(0.05)
    gate.open()
    running.result(WAIT_S)
    with pytest.raises(Problem) as caught:
        hasty.result(WAIT_S)
    assert caught.value.kind is Kind.DEADLINE
    assert len(patient.result(WAIT_S)) == 1


def test_whoever_is_left_when_the_first_leaves_is_told_what_was_evaluated(engine: LlamaEngine, gate: Gate) -> None:
    """Once: the answers' counts add up to what the engine did. Nobody waited for less than no time."""
    asked = job(engine, tails=3)
    first = engine.submit_score(asked)
    assert gate.reached.wait(WAIT_S)
    joined = [engine.submit_score(asked) for _ in range(2)]
    assert first.cancel()
    gate.open()
    second, third = (future.result(WAIT_S) for future in joined)
    length = len(asked.prompts[0]) - len(asked.prompts[0].tail)
    assert sum(score.tokens.evaluated for score in second) == length + sum(len(p.tail) for p in asked.prompts)
    assert [score.tokens.evaluated for score in third] == [0, 0, 0]
    assert [score.queue_ms for score in (*second, *third)] == [0.0] * 6


def test_who_asked_first_is_told_how_long_they_waited(engine: LlamaEngine, gate: Gate) -> None:
    running = engine.submit_score(job(engine))
    assert gate.reached.wait(WAIT_S)
    first, joined = (engine.submit_score(job(engine, "the same", tails=2)) for _ in range(2))
    time.sleep(0.02)
    gate.open()
    running.result(WAIT_S)
    for score in (*first.result(WAIT_S), *joined.result(WAIT_S)):
        assert score.queue_ms >= 20


def test_a_waiter_is_answered_once() -> None:
    answered: Waiter[int] = Waiter(math.inf)
    assert answered.resolve(1)
    assert not answered.resolve(2)
    answered.fail(ValueError())
    assert answered.future.result(0) == 1
    left: Waiter[int] = Waiter(math.inf)
    assert left.future.cancel()
    assert not left.resolve(1)
    left.fail(ValueError())
    left.fail(ValueError())

"""Turns, refusals and deadlines in the queue, and callers that leave it."""

from __future__ import annotations

import time
from concurrent.futures import CancelledError
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from engine_requests import (
    WAIT_S,
    Collector,
    Gate,
    job,
    problem_of,
    started,
)
from steelyard_runtime.engine.admission import LONGEST_PROMISE_S
from steelyard_runtime.engine.core import LlamaEngine
from steelyard_runtime.engine.interface import (
    Done,
    Piece,
    ScoreJob,
    ScorePrompt,
    Segment,
)
from steelyard_runtime.errors import Kind, Problem


def test_a_long_request_of_one_caller_does_not_keep_another_waiting(engine: LlamaEngine, gate: Gate) -> None:
    long = engine.submit_score(job(engine, "many questions", tails=30, caller="ann"))
    assert gate.reached.wait(WAIT_S)
    short = engine.submit_score(job(engine, "one question", caller="bob"))
    done: list[str] = []
    long.add_done_callback(lambda _: done.append("long"))
    short.add_done_callback(lambda _: done.append("short"))
    gate.open()
    assert len(long.result(WAIT_S)) == 30
    short.result(WAIT_S)
    assert done == ["short", "long"]


def test_a_full_queue_refuses_with_a_time_to_come_back(engine: LlamaEngine, gate: Gate) -> None:
    running = engine.submit_score(job(engine))
    assert gate.reached.wait(WAIT_S)
    waiting = [engine.submit_score(job(engine, f"state {n}")) for n in range(4)]
    problem = problem_of(lambda: engine.submit_score(job(engine, "one too many")))
    assert problem.kind is Kind.BUSY
    assert problem.retry_after_ms is not None
    assert problem.retry_after_ms >= 100
    assert "4" in problem.message
    assert engine.counters.rejected == 1
    gate.open()
    for future in [running, *waiting]:
        assert len(future.result(WAIT_S)) == 1
    assert len(engine.submit_score(job(engine)).result(WAIT_S)) == 1


def test_waiting_chats_do_not_refuse_decisions_nor_the_other_way_round(engine: LlamaEngine, gate: Gate) -> None:
    running = engine.submit_score(job(engine))
    assert gate.reached.wait(WAIT_S)
    chats = [Collector(engine, f"chat {n}", max_tokens=2) for n in range(4)]
    assert "4 chats" in problem_of(lambda: Collector(engine, "one too many", max_tokens=2)).message
    decisions = [engine.submit_score(job(engine, f"state {n}")) for n in range(4)]
    assert "4 decisions" in problem_of(lambda: engine.submit_score(job(engine, "one too many"))).message
    assert engine.counters.queue_depth == 8
    gate.open()
    running.result(WAIT_S)
    assert all(len(decision.result(WAIT_S)) == 1 for decision in decisions)
    assert all(chat.finished() for chat in chats)


def test_callers_take_turns_with_their_chats(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = started(model, chats=1, queue_limit=64)
    gate = Gate(engine, monkeypatch)
    try:
        running = engine.submit_score(job(engine))
        assert gate.reached.wait(WAIT_S)
        add, order = engine._executor.chats.add, []

        def added(generation: Any) -> None:
            order.append(generation.job.caller)
            add(generation)

        monkeypatch.setattr(engine._executor.chats, "add", added)
        chats = [Collector(engine, "a chat", max_tokens=2, caller=caller) for caller in ("ann",) * 5 + ("bob", "cid")]
        chats[1].cancel()
        gate.open()
        running.result(WAIT_S)
        assert all(chat.finished() for chat in (chats[0], *chats[2:]))
        assert order == ["ann", "bob", "cid", "ann", "ann", "ann"]
    finally:
        gate.open()
        engine.close(timeout_s=0)


def test_work_ahead_that_outlasts_the_deadline_is_a_refusal(engine: LlamaEngine, gate: Gate) -> None:
    running = engine.submit_score(job(engine, "word " * 80))
    assert gate.reached.wait(WAIT_S)
    engine._meter.rate = 50.0
    problem = problem_of(lambda: engine.submit_score(job(engine, "too late", within_s=1)))
    assert problem.kind is Kind.BUSY
    assert problem.retry_after_ms is not None
    gate.open()
    running.result(WAIT_S)


def test_those_who_are_refused_are_told_to_come_back_one_after_another(engine: LlamaEngine, gate: Gate) -> None:
    """Or they would all come back at once, and be refused again."""
    running = engine.submit_score(job(engine, "word " * 80))
    assert gate.reached.wait(WAIT_S)
    engine._meter.rate = 50.0
    own_ms = 1000 * engine._meter.seconds(engine._expected_tokens(job(engine, "too late")))
    before = time.monotonic()
    told = []
    for _ in range(20):
        problem = problem_of(lambda: engine.submit_score(job(engine, "too late", within_s=1)))
        assert problem.kind is Kind.BUSY
        assert problem.retry_after_ms is not None
        told.append(problem.retry_after_ms)
    taken_ms = 1000 * (time.monotonic() - before)  # their clocks started at different times
    gaps = [later - earlier for earlier, later in pairwise(told)]
    assert all(own_ms - taken_ms - 1 <= gap <= own_ms + 1 for gap in gaps), (own_ms, taken_ms, gaps)
    engine._meter.rate = 0.001
    problem = problem_of(lambda: engine.submit_score(job(engine, "never", within_s=5e4)))
    assert problem.retry_after_ms == 1000 * LONGEST_PROMISE_S
    gate.open()
    running.result(WAIT_S)


def test_a_full_queue_tells_everyone_another_time(engine: LlamaEngine, gate: Gate) -> None:
    running = engine.submit_score(job(engine))
    assert gate.reached.wait(WAIT_S)
    waiting = [engine.submit_score(job(engine, f"state {n}")) for n in range(4)]
    engine._meter.rate = 50.0
    told = [
        problem_of(lambda n=n: engine.submit_score(job(engine, f"refused {n}"))).retry_after_ms or 0 for n in range(3)
    ]
    assert told == sorted(set(told))
    gate.open()
    for future in [running, *waiting]:
        future.result(WAIT_S)


def test_a_chats_backlog_does_not_refuse_a_decision_which_goes_before_it(engine: LlamaEngine, gate: Gate) -> None:
    chat = Collector(engine, "word " * 80, max_tokens=2)
    assert gate.reached.wait(WAIT_S)
    engine._meter.rate, engine._meter.chat_rate = 1000.0, 2.0  # the chat's prompt alone would take most of a minute
    decision = engine.submit_score(job(engine, within_s=20))
    problem = problem_of(lambda: Collector(engine, "another chat", max_tokens=2, within_s=20))
    assert problem.kind is Kind.BUSY
    gate.open()
    assert len(decision.result(WAIT_S)) == 1
    chat.wait()
    left = engine._scheduler.admission
    assert left.tokens == left.chat_tokens == left.steps == 0


def test_a_slow_chat_does_not_refuse_the_next_one_for_ever(engine: LlamaEngine) -> None:
    engine._meter.chat_rate = 0.001
    Collector(engine, "word " * 80, max_tokens=2).wait()
    assert engine._meter.chat_rate > 1
    assert engine.counters.rejected == 0


def test_a_request_too_long_for_its_own_deadline_says_how_long_it_takes(engine: LlamaEngine) -> None:
    """The machine may only be slow at present, so this is a refusal for now, not a fault of the request."""
    engine._meter.rate = 10.0
    problem = problem_of(lambda: engine.submit_score(job(engine, "word " * 80, within_s=2)))
    assert problem.kind is Kind.DEADLINE
    assert problem.row.retryable
    assert problem.retry_after_ms is not None
    assert engine.counters.rejected == 1


def test_a_deadline_that_passes_in_the_queue_fails_the_request_alone(engine: LlamaEngine, gate: Gate) -> None:
    running = engine.submit_score(job(engine))
    assert gate.reached.wait(WAIT_S)
    engine._meter.rate = 0.0
    late = engine.submit_score(job(engine, "late", within_s=0.05))
    time.sleep(0.1)
    gate.open()
    with pytest.raises(Problem) as caught:
        late.result(WAIT_S)
    assert caught.value.kind is Kind.DEADLINE
    assert len(running.result(WAIT_S)) == 1


@pytest.mark.parametrize("over", [0, 1])
def test_the_budget_is_exact_to_the_token(shared_engine: LlamaEngine, over: int) -> None:
    allowed = shared_engine.identity.model.context_tokens
    word = shared_engine.encode([Piece("the")], start=False)[0]
    prompt = ScorePrompt(shared=(Segment((word,) * 100),), tail=(word,) * (allowed - 100 + over))
    asked = ScoreJob(prompts=(prompt,), deadline=time.monotonic() + WAIT_S)
    if not over:
        assert shared_engine.submit_score(asked).result(WAIT_S)[0].tokens.prompt == allowed
        return
    problem = problem_of(lambda: shared_engine.submit_score(asked))
    assert problem.kind is Kind.OVER_BUDGET
    assert problem.counts == {"counted_tokens": allowed + 1, "allowed_tokens": allowed}
    assert str(allowed + 1) in problem.message
    assert str(allowed) in problem.message


def test_a_cancelled_request_in_the_queue_is_never_evaluated(engine: LlamaEngine, gate: Gate) -> None:
    running = engine.submit_score(job(engine))
    assert gate.reached.wait(WAIT_S)
    left = engine.submit_score(job(engine, "a caller who leaves"))
    assert left.cancel()
    gate.open()
    running.result(WAIT_S)
    decoded = engine.counters.decoded_tokens
    assert len(engine.submit_score(job(engine)).result(WAIT_S)) == 1
    assert engine.counters.cancelled == 1
    assert engine.counters.decoded_tokens - decoded < 20
    with pytest.raises(CancelledError):
        left.result()


def test_a_running_request_stops_at_the_next_decode_when_its_caller_leaves(engine: LlamaEngine, gate: Gate) -> None:
    running = engine.submit_score(job(engine, tails=40))
    assert gate.reached.wait(WAIT_S)
    assert running.cancel()
    gate.open()
    assert len(engine.submit_score(job(engine, "next")).result(WAIT_S)) == 1
    assert engine.counters.decodes < 20
    assert engine.counters.cancelled == 1


def test_a_cancelled_generation_frees_its_place(shared_engine: LlamaEngine) -> None:
    before = shared_engine.counters.cancelled
    left = [Collector(shared_engine, "count the", max_tokens=400, temperature=1.0) for _ in range(2)]
    for collector in left:
        collector.cancel()
        collector.cancel()
    assert Collector(shared_engine, "the").finished()[0].generated_tokens <= 12
    assert shared_engine.counters.cancelled <= before + 2
    assert not any(isinstance(e, Done) and e.generated_tokens == 400 for c in left for e in c.events)

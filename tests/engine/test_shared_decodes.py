"""Several decisions in one decode."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine_requests import (
    WAIT_S,
    Gate,
    job,
    started,
)
from steelyard_runtime.engine.core import LlamaEngine
from steelyard_runtime.engine.interface import (
    Piece,
    ScoreJob,
    ScorePrompt,
    Segment,
)
from steelyard_runtime.engine.llama import LlamaError
from steelyard_runtime.errors import Kind, Problem


def test_decisions_share_decodes_where_that_is_asked_for(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = started(model, queue_limit=64)
    together = started(model, queue_limit=64, decisions_together=4)
    gate = Gate(together, monkeypatch)
    try:
        assert alone.identity.probe.exact
        assert not together.identity.probe.exact
        assert together.identity.probe.noise_floor < 0.1
        assert "company" in together.identity.probe.note
        first = together.submit_score(job(together))
        assert gate.reached.wait(WAIT_S)
        asked = [job(together, f"state number {n}", tails=1 + n % 3) for n in range(12)]
        futures = [together.submit_score(each) for each in asked]
        gate.open()
        first.result(WAIT_S)
        before = together.counters.decodes
        for each, future in zip(asked, futures, strict=True):
            expected = alone.submit_score(each).result(WAIT_S)
            for score, other in zip(future.result(WAIT_S), expected, strict=True):
                assert score.tokens.prompt == other.tokens.prompt
                assert np.abs(score.logits - other.logits).max() < 0.1
        # 24 questions; each of 12 states takes a decode of its own, the tails at most a quarter of theirs and a few.
        assert together.counters.decodes - before <= 12 + 24 // 4 + 6
        assert together.counters.decisions == 1 + 24
    finally:
        gate.open()
        together.close(timeout_s=0)
        alone.close(timeout_s=0)


def test_a_caller_who_leaves_does_not_take_the_others_along(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = started(model, queue_limit=64, decisions_together=4)
    gate = Gate(engine, monkeypatch)
    try:
        first = engine.submit_score(job(engine))
        assert gate.reached.wait(WAIT_S)
        futures = [engine.submit_score(job(engine, f"state {n}")) for n in range(6)]
        assert futures[1].cancel()
        assert futures[4].cancel()
        gate.open()
        first.result(WAIT_S)
        assert [len(futures[n].result(WAIT_S)) for n in (0, 2, 3, 5)] == [1] * 4
        assert engine.counters.cancelled == 2
    finally:
        gate.open()
        engine.close(timeout_s=0)


def tailed(engine: LlamaEngine, *tails: int, caller: str = "") -> ScoreJob:
    """A job whose questions have so many tokens."""
    token = engine.encode([Piece("word")], start=False)[0]
    shared = job(engine, f"a state of {caller}").prompts[0].shared
    prompts = tuple(ScorePrompt(shared=shared, tail=(token,) * tail) for tail in tails)
    return ScoreJob(prompts=prompts, deadline=time.monotonic() + WAIT_S, caller=caller)


@pytest.fixture
def together(model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[LlamaEngine, Gate]]:
    """Four decisions in a decode, and all held until opened."""
    engine = started(model, queue_limit=64, decisions_together=4)
    gate = Gate(engine, monkeypatch)
    yield engine, gate
    gate.open()
    engine.close(timeout_s=0)


def on_prepared(
    engine: LlamaEngine, monkeypatch: pytest.MonkeyPatch, caller: str, number: int, call: Callable[[], object]
) -> None:
    """Have something happen when so many questions of a caller were prepared."""
    prepare, seen = engine._executor.scorer.prepare, []

    def prepared(run: Any, **more: Any) -> Any:
        ready = prepare(run, **more)
        seen.append(run.job.caller)
        if run.job.caller == caller and seen.count(caller) == number:
            call()
        return ready

    monkeypatch.setattr(engine._executor.scorer, "prepare", prepared)


@pytest.mark.parametrize("prepared", [1, 2, 3])
@pytest.mark.parametrize("leaving", ["cancelled", "too late"])
def test_who_leaves_with_a_question_prepared_does_not_take_the_others_along(
    together: tuple[LlamaEngine, Gate], monkeypatch: pytest.MonkeyPatch, leaving: str, prepared: int
) -> None:
    engine, gate = together
    running = engine.submit_score(job(engine))
    assert gate.reached.wait(WAIT_S)
    leaver = engine.submit_score(job(engine, "a state", tails=6, caller="ann"))
    (ticket,) = (ticket for ticket in engine._scheduler._tickets if ticket.caller == "ann")
    (waiter,) = ticket.waiters
    leave = leaver.cancel if leaving == "cancelled" else lambda: setattr(waiter, "deadline", 0.0)
    on_prepared(engine, monkeypatch, "ann", prepared, leave)
    others = [engine.submit_score(job(engine, f"state {n}", tails=2, caller="bob")) for n in range(3)]
    gate.open()
    running.result(WAIT_S)
    assert [len(other.result(WAIT_S)) for other in others] == [2, 2, 2]
    with pytest.raises(CancelledError if leaving == "cancelled" else Problem):
        leaver.result(WAIT_S)
    engine.close(timeout_s=WAIT_S)
    assert engine._lifecycle.failure is None
    assert (engine.counters.cancelled, engine.counters.rejected) == ((1, 0) if leaving == "cancelled" else (0, 1))
    assert engine._scheduler.admission.tokens == engine._scheduler.admission.steps == 0
    assert not engine._scheduler._duplicates


@pytest.mark.parametrize("broken", ["prepare", "decode", "hand out"])
def test_a_fault_in_a_shared_decode_fails_those_alone_who_meet_it(
    together: tuple[LlamaEngine, Gate], monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    """Those in the batch, the one who did not fit into it, and those who still wait: each for itself."""
    engine, gate = together

    def fail(*_: Any, **__: Any) -> Any:
        raise LlamaError("llama_decode returned -3")

    running = engine.submit_score(job(engine))
    assert gate.reached.wait(WAIT_S)
    futures = [
        engine.submit_score(tailed(engine, *tails, caller=caller))
        for caller, tails in (("ann", [5]), ("bob", [5, 5]), ("cid", [450, 5]), ("dan", [5]))
    ]
    if broken == "decode":
        monkeypatch.setattr(engine._executor.scorer, "score_batch", fail)
    elif broken == "hand out":
        on_prepared(
            engine, monkeypatch, "bob", 2, lambda: monkeypatch.setattr(engine._executor, "_resolve_or_requeue", fail)
        )
    else:
        on_prepared(
            engine, monkeypatch, "bob", 1, lambda: monkeypatch.setattr(engine._executor.scorer, "prepare", fail)
        )
    engine._meter.rate = 0.0  # whatever fits into a decode may share one
    gate.open()
    ends = [future.exception(WAIT_S) for future in (running, *futures)]
    if broken == "decode":  # of each alone there is no fault
        assert ends == [None] * 5
    else:
        failed = [end for end in ends if end is not None]
        assert len(failed) >= 3
        assert all(isinstance(end, Problem) and end.kind is Kind.REQUEST_FAILED for end in failed)
        assert engine.counters.faults == len(failed)
    assert engine.health().ready
    monkeypatch.undo()
    assert len(engine.submit_score(job(engine, "afterwards")).result(WAIT_S)) == 1
    engine.close(timeout_s=WAIT_S)
    assert engine._scheduler.admission.tokens == engine._scheduler.admission.steps == 0
    assert not engine._scheduler._duplicates


def test_what_does_not_fit_for_good_is_the_askers_problem(engine: LlamaEngine) -> None:
    engine._executor.prefixes._capacity = 10
    with pytest.raises(Problem, match="prefix_cache_mib"):
        engine.keep_warm((Segment(tuple(engine.encode([Piece("a question")], start=False))),)).result(WAIT_S)
    assert len(engine.submit_score(job(engine)).result(WAIT_S)) == 1

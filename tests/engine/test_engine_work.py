"""The engine's queue, deadlines, generations and end, on a tiny model."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from functools import partial
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import tiny_models
from steelyard_runtime.engine import chats
from steelyard_runtime.engine.admission import LONGEST_PROMISE_S
from steelyard_runtime.engine.core import LlamaEngine
from steelyard_runtime.engine.interface import (
    Delta,
    Done,
    EmbeddingJob,
    Event,
    Failed,
    Finished,
    GenerationJob,
    Piece,
    Sampling,
    ScoreJob,
    ScorePrompt,
    Segment,
)
from steelyard_runtime.engine.llama import Context, LlamaError, Model
from steelyard_runtime.engine.segments import ROWS, TILE
from steelyard_runtime.engine.start import start_engine
from steelyard_runtime.engine.tickets import Waiter
from steelyard_runtime.engine.turns import Turns
from steelyard_runtime.errors import Kind, Problem
from steelyard_runtime.settings import load_settings

WAIT_S = 60


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.write("llama", tmp_path_factory.mktemp("tiny") / "llama.gguf")


def started(model: Path, *, turns: Turns | None = None, **changes: object) -> LlamaEngine:
    values = {
        "threads": 1,
        "context_tokens": 512,
        "chats": 2,
        "queue_limit": 4,
        "decode_timeout_s": 20,
        "unnamed_share": 1,
    }
    return start_engine(load_settings(model=str(model), **(values | changes)), turns=turns)


@pytest.fixture(scope="module")
def shared_engine(model: Path) -> Iterator[LlamaEngine]:
    engine = started(model, queue_limit=64)
    yield engine
    engine.close(timeout_s=0)


@pytest.fixture
def engine(model: Path) -> Iterator[LlamaEngine]:
    """An engine that a test may overload, stop or break."""
    engine = started(model)
    yield engine
    engine.close(timeout_s=0)


def job(
    engine: LlamaEngine, text: str = "a question", *, tails: int = 1, within_s: float = WAIT_S, caller: str = ""
) -> ScoreJob:
    def encode(value: str, *, start: bool = False) -> tuple[int, ...]:
        return tuple(engine.encode([Piece(value)], start=start))

    shared = (Segment(encode("instructions", start=True)), Segment(encode(text), private=True))
    return ScoreJob(
        prompts=tuple(ScorePrompt(shared=shared, tail=encode(f"tail {n}")) for n in range(tails)),
        deadline=time.monotonic() + within_s,
        caller=caller,
    )


class Collector:
    """Events of one generation."""

    def __init__(
        self,
        engine: LlamaEngine,
        prompt: str | list[int],
        *,
        n: int = 1,
        within_s: float = WAIT_S,
        caller: str = "",
        **sampling: Any,
    ) -> None:
        self.events: list[Event] = []
        self.begun = threading.Event()
        self._over = threading.Event()
        values = {"max_tokens": 12, "temperature": 0.0} | sampling
        self.cancel = engine.submit_generation(
            GenerationJob(
                prompt=tuple(engine.encode([Piece(prompt)], start=True) if isinstance(prompt, str) else prompt),
                sampling=Sampling(**values),
                deadline=time.monotonic() + within_s,
                n=n,
                caller=caller,
            ),
            self._take,
        )

    def _take(self, event: Event) -> None:
        self.events.append(event)
        self.begun.set()
        if isinstance(event, Done | Failed):
            self._over.set()

    def wait(self) -> list[Event]:
        assert self._over.wait(WAIT_S)
        return self.events

    def text(self, index: int = 0) -> str:
        return "".join(e.text for e in self.wait() if isinstance(e, Delta) and e.index == index)

    def finished(self) -> dict[int, Finished]:
        return {e.index: e for e in self.wait() if isinstance(e, Finished)}

    def problem(self) -> Problem:
        last = self.wait()[-1]
        assert isinstance(last, Failed)
        assert isinstance(last.problem, Problem)
        return last.problem


def patch_decodes(engine: LlamaEngine, monkeypatch: pytest.MonkeyPatch, wrap: Callable[..., Any]) -> None:
    """Have ``wrap(context, decode, runs, **more)`` called for every decode."""
    for context in (engine._executor.contexts.decisions, engine._executor.contexts.chats):
        monkeypatch.setattr(context, "decode", partial(wrap, context, context.decode))


class Door:
    """Holds the engine's thread where it comes by, until opened."""

    def __init__(self) -> None:
        self.reached, self._open = threading.Event(), threading.Event()

    def pass_through(self) -> None:
        self.reached.set()
        assert self._open.wait(WAIT_S)

    def open(self) -> None:
        self._open.set()


class Gate(Door):
    """Holds the engine's next decode until opened."""

    def __init__(self, engine: LlamaEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()

        def held(_: Context, decode: Callable[..., Any], runs: Any, **more: Any) -> Any:
            self.pass_through()
            return decode(runs, **more)

        patch_decodes(engine, monkeypatch, held)


@pytest.fixture
def gate(engine: LlamaEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(engine, monkeypatch)
    yield gate
    gate.open()


def problem_of(call: Callable[[], Any]) -> Problem:
    with pytest.raises(Problem) as caught:
        call()
    return caught.value


# --- counting


def test_evaluated_tokens_are_the_engines_own_count(shared_engine: LlamaEngine) -> None:
    before = shared_engine.counters.decoded_tokens, shared_engine.counters.reused_tokens
    jobs = [job(shared_engine, text, tails=n) for text, n in (("one state", 3), ("another state", 1), ("one state", 2))]
    scores = [score for asked in jobs for score in shared_engine.submit_score(asked).result(WAIT_S)]
    missing = [-len(prompt.tail) % ROWS for asked in jobs for prompt in asked.prompts]
    filled = sum(count for count in missing if count <= ROWS // 2)
    assert shared_engine.counters.decoded_tokens - before[0] == sum(s.tokens.evaluated for s in scores) + filled
    assert shared_engine.counters.reused_tokens - before[1] == sum(s.tokens.reused for s in scores)
    assert all(s.tokens.prompt == s.tokens.evaluated + s.tokens.reused for s in scores)


def test_three_questions_evaluate_their_state_once(shared_engine: LlamaEngine) -> None:
    asked = job(shared_engine, "a state that nobody has asked about before", tails=3)
    scores = shared_engine.submit_score(asked).result(WAIT_S)
    first, *others = asked.prompts
    assert scores[0].tokens.evaluated >= len(first.shared[1].tokens) + len(first.tail)
    assert [s.tokens.evaluated for s in scores[1:]] == [len(prompt.tail) for prompt in others]
    assert [s.tokens.prompt for s in scores] == [len(prompt) for prompt in asked.prompts]


def test_without_reuse_nothing_is_kept_between_requests(model: Path) -> None:
    engine = started(model, reuse_prefixes=False)
    try:
        for _ in range(2):
            asked = job(engine, tails=2)
            first, second = engine.submit_score(asked).result(WAIT_S)
            assert first.tokens.reused == 0
            assert second.tokens.evaluated == len(asked.prompts[1].tail)
    finally:
        engine.close(timeout_s=0)


def test_a_question_is_kept_for_all_and_a_state_for_its_caller(model: Path) -> None:
    engine = started(model)
    try:

        def ask(*, caller: str, state: str) -> int:
            asked = job(engine, state, caller=caller)
            return engine.submit_score(asked).result(WAIT_S)[0].tokens.reused

        instructions = len(job(engine).prompts[0].shared[0].tokens)
        assert ask(caller="ann", state="ann's state") == 0
        assert ask(caller="bob", state="ann's state") == instructions
        assert ask(caller="ann", state="ann's state") > instructions
        assert ask(caller="", state="ann's state") == instructions
    finally:
        engine.close(timeout_s=0)


def test_states_are_not_kept_when_that_is_switched_off(model: Path) -> None:
    engine = started(model, reuse_states=False)
    try:
        asked = job(engine, "a state", tails=2)
        instructions = len(asked.prompts[0].shared[0].tokens)
        for _ in range(2):
            first, second = engine.submit_score(asked).result(WAIT_S)
            assert first.tokens.reused <= instructions
            assert second.tokens.evaluated == len(asked.prompts[1].tail)
        assert first.tokens.reused == instructions
        assert engine.counters.prefixes == 1
    finally:
        engine.close(timeout_s=0)


def test_what_is_kept_warm_costs_its_tail_only_and_stays(engine: LlamaEngine) -> None:
    def segment(text: str) -> Segment:
        return Segment(tuple(engine.encode([Piece(text)], start=False)))

    question = (segment("instructions"), segment("a registered question with its options"))
    engine.keep_warm(question).result(WAIT_S)
    tail = tuple(engine.encode([Piece("a state")], start=False))
    asked = ScoreJob(prompts=(ScorePrompt(shared=question, tail=tail),), deadline=time.monotonic() + WAIT_S)
    [score] = engine.submit_score(asked).result(WAIT_S)
    assert score.tokens.evaluated == len(tail)
    engine._executor.prefixes._capacity = engine._executor.prefixes.bytes  # full: whatever else comes must go
    for n in range(5):
        engine.submit_score(job(engine, f"another state, number {n}")).result(WAIT_S)
    [again] = engine.submit_score(asked).result(WAIT_S)
    assert again.tokens.evaluated == len(tail)
    assert np.array_equal(again.logits, score.logits)


def test_a_callers_text_is_never_kept_for_good(shared_engine: LlamaEngine) -> None:
    with pytest.raises(ValueError, match="never kept for good"):
        shared_engine.keep_warm((Segment((1, 2), private=True),))


# --- exact duplicates


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


# --- several decisions in one decode


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
        monkeypatch.setattr(engine._executor.scorer, "together", fail)
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


# --- turns


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


# --- admission


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


# --- callers who leave


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


# --- generation


def test_greedy_generations_repeat_and_seeds_decide_the_others(shared_engine: LlamaEngine) -> None:
    assert Collector(shared_engine, "once").text() == Collector(shared_engine, "once").text()

    def drawn(seed: int) -> str:
        return Collector(shared_engine, "once", temperature=1.5, seed=seed, max_tokens=30).text()

    assert drawn(1) == drawn(1)
    assert len({drawn(seed) for seed in range(4)}) > 1


def turn(engine: LlamaEngine, prompt: list[int], **sampling: Any) -> tuple[Done, str]:
    """One turn of a chat."""
    collector = Collector(engine, prompt, **sampling)
    text = collector.text()
    done = collector.events[-1]
    assert isinstance(done, Done)
    return done, text


def test_a_chats_next_turn_goes_on_from_the_last_one(shared_engine: LlamaEngine) -> None:
    first = shared_engine.encode([Piece("a chat that begins with quite a lot of words " * 4)], start=True)
    done, text = turn(shared_engine, first, max_tokens=6)
    assert done.tokens.reused == 0
    more = shared_engine.encode([Piece(text + " and a second message")], start=False)
    again, _ = turn(shared_engine, first + more, max_tokens=6)
    assert again.tokens.reused >= len(first)
    assert again.tokens.evaluated == again.tokens.prompt - again.tokens.reused


def test_a_chat_that_goes_on_says_what_a_chat_from_nothing_says(model: Path) -> None:
    """Greedy, with the prompt's chunks cut at the same places."""
    texts = []
    for reuse in (True, False):
        engine = started(model, reuse_states=reuse)
        try:
            first = engine.encode([Piece("a chat that begins with quite a lot of words " * 4)], start=True)
            turn(engine, first, max_tokens=1)
            more = engine.encode([Piece(" and a second message")], start=False)
            done, text = turn(engine, first + more, max_tokens=10)
            assert (done.tokens.reused > 0) is reuse
            texts.append(text)
        finally:
            engine.close(timeout_s=0)
    assert texts[0] == texts[1]


@pytest.mark.parametrize("n", [2, 3, 5])
def test_several_choices_evaluate_their_prompt_once(shared_engine: LlamaEngine, n: int) -> None:
    """Also more choices than may run at the same time (two)."""
    before = shared_engine.counters.decoded_tokens
    collector = Collector(shared_engine, "several choices of one prompt", n=n, temperature=1.5, seed=4, max_tokens=20)
    finished = collector.finished()
    done = collector.events[-1]
    assert isinstance(done, Done)
    assert sorted(finished) == list(range(n))
    assert done.tokens.evaluated == done.tokens.prompt
    assert done.generated_tokens == sum(f.generated_tokens for f in finished.values())
    decoded = shared_engine.counters.decoded_tokens - before
    assert decoded <= done.tokens.prompt + done.generated_tokens
    assert len({collector.text(i) for i in range(n)}) > 1


def test_a_stop_string_ends_the_text_before_itself(shared_engine: LlamaEngine) -> None:
    free = Collector(shared_engine, "stop here", max_tokens=30).text()
    stop = free[len(free) // 2 : len(free) // 2 + 3]
    collector = Collector(shared_engine, "stop here", max_tokens=30, stop=(stop,))
    assert collector.text() == free[: free.index(stop)]
    assert collector.finished()[0].reason == "stop"


def test_max_tokens_end_a_generation_with_reason_length(shared_engine: LlamaEngine) -> None:
    collector = Collector(shared_engine, "go on", max_tokens=3)
    assert collector.finished()[0].reason in ("length", "stop")
    assert collector.finished()[0].generated_tokens <= 3


def test_logprobs_belong_to_the_text_and_are_sorted(shared_engine: LlamaEngine) -> None:
    collector = Collector(shared_engine, "probable", top_logprobs=4, max_tokens=10)
    items = [item for e in collector.wait() if isinstance(e, Delta) for item in e.logprobs]
    assert len(items) == collector.finished()[0].generated_tokens
    assert b"".join(chosen.bytes for chosen, _ in items).decode("utf-8", "replace") == collector.text()
    for chosen, alternatives in items:
        assert len(alternatives) == 4
        values = [a.logprob for a in alternatives]
        assert values == sorted(values, reverse=True)
        assert chosen.logprob <= values[0] + 1e-9
        assert sum(map(math.exp, values)) <= 1 + 1e-9


def test_logit_bias_forbids_a_token(shared_engine: LlamaEngine) -> None:
    def first(**sampling: Any) -> int:
        events = Collector(shared_engine, "bias", max_tokens=1, top_logprobs=0, **sampling).wait()
        return next(e.logprobs[0][0].token_id for e in events if isinstance(e, Delta) and e.logprobs)

    favourite = first()
    assert first(logit_bias=((favourite, -100.0),)) != favourite


@pytest.mark.parametrize("penalty", ["frequency_penalty", "presence_penalty"])
def test_a_penalty_keeps_a_chat_from_repeating_itself(shared_engine: LlamaEngine, penalty: str) -> None:
    def tokens(**sampling: Any) -> list[int]:
        events = Collector(shared_engine, "again", max_tokens=24, top_logprobs=0, **sampling).wait()
        return [item[0].token_id for e in events if isinstance(e, Delta) for item in e.logprobs]

    assert len(set(tokens())) < len(set(tokens(**{penalty: 2.0})))


def test_a_grammar_makes_even_a_random_model_write_json(shared_engine: LlamaEngine) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}, "kind": {"enum": ["a", "b"]}},
        "required": ["ok", "kind"],
        "additionalProperties": False,
    }
    grammar = shared_engine.grammar(schema)
    for seed in range(3):
        collector = Collector(shared_engine, "json", grammar=grammar, temperature=1.0, seed=seed, max_tokens=200)
        value = json.loads(collector.text())
        assert set(value) == {"ok", "kind"}
        assert isinstance(value["ok"], bool)
        assert value["kind"] in ("a", "b")


def test_a_schema_that_no_grammar_can_express_is_the_callers_problem(shared_engine: LlamaEngine) -> None:
    problem = problem_of(lambda: shared_engine.grammar({"$ref": "#/nowhere"}))
    assert problem.kind is Kind.INVALID


def test_prompt_and_max_tokens_must_fit_together(shared_engine: LlamaEngine) -> None:
    problem = problem_of(lambda: Collector(shared_engine, "fit", max_tokens=512))
    assert problem.kind is Kind.OVER_BUDGET
    assert problem.counts["allowed_tokens"] == 512


def test_a_generation_that_misses_its_deadline_says_how_far_it_came(engine: LlamaEngine, gate: Gate) -> None:
    collector = Collector(engine, "late", within_s=0.1, max_tokens=100)
    assert gate.reached.wait(WAIT_S)
    time.sleep(0.15)
    gate.open()
    problem = collector.problem()
    assert problem.kind is Kind.DEADLINE
    assert "tokens" in problem.message


def test_a_caller_whose_callback_fails_is_one_who_left(shared_engine: LlamaEngine) -> None:
    def broken(_: Event) -> None:
        raise RuntimeError("the caller's code failed")

    prompt = tuple(shared_engine.encode([Piece("x")], start=True))
    sampling = Sampling(max_tokens=50, temperature=0)
    shared_engine.submit_generation(
        GenerationJob(prompt=prompt, sampling=sampling, deadline=time.monotonic() + WAIT_S), broken
    )
    assert Collector(shared_engine, "still here").finished()
    assert shared_engine.health().ready


def noted(engine: LlamaEngine, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the engine's decodes are for, from now on: chats, and questions of decisions."""
    order: list[str] = []

    def note(context: Context, decode: Callable[..., Any], runs: Any, **more: Any) -> Any:
        if context is engine._executor.contexts.chats:
            order.append("chat")
            rows = decode(runs, **more)
            order.append("chat over")
            return rows
        if runs[0].output:
            order.append("decision")
        return decode(runs, **more)

    patch_decodes(engine, monkeypatch, note)
    return order


class Middle(Door):
    """Holds a chat's decode at its first stop until opened."""

    def __init__(self, engine: LlamaEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        between = engine._loop._run_tickets_inside_chats

        def held() -> None:
            self.pass_through()
            between()

        monkeypatch.setattr(engine._loop, "_run_tickets_inside_chats", held)


@pytest.fixture
def middle(engine: LlamaEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Middle]:
    middle = Middle(engine, monkeypatch)
    yield middle
    middle.open()


def test_a_decision_goes_first_in_the_middle_of_a_chats_prompt(
    engine: LlamaEngine, middle: Middle, monkeypatch: pytest.MonkeyPatch
) -> None:
    (alone,) = engine.submit_score(job(engine)).result(WAIT_S)
    order = noted(engine, monkeypatch)
    said = Collector(engine, "word " * 80, max_tokens=4)
    assert middle.reached.wait(WAIT_S)
    decision = engine.submit_score(job(engine, caller="someone else"))
    middle.open()
    (score,) = decision.result(WAIT_S)
    assert np.array_equal(score.logits, alone.logits)
    said.wait()
    assert order[:3] == ["chat", "decision", "chat over"]
    assert engine.counters.interruptions == 1
    assert Collector(engine, "word " * 80, max_tokens=4).text() == said.text()


def test_a_burst_of_decisions_leaves_the_chat_its_turn(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many decisions that come in the middle of a prompt, some are left when the chat has its next token."""
    engine = started(model, queue_limit=512)
    try:
        middle = Middle(engine, monkeypatch)
        order = noted(engine, monkeypatch)
        chat = Collector(engine, "word " * 80, max_tokens=40)
        assert middle.reached.wait(WAIT_S)
        futures = [engine.submit_score(job(engine, f"decision {index}")) for index in range(200)]
        middle.open()
        for future in futures:
            future.result(WAIT_S)
        chat.wait()
        last = len(order) - 1 - order[::-1].index("decision")
        assert "chat over" in order[:last]
    finally:
        middle.open()
        engine.close(timeout_s=0)


def test_no_decision_is_begun_in_the_middle_of_a_chat_when_the_end_has_come(
    engine: LlamaEngine, middle: Middle
) -> None:
    Collector(engine, "word " * 80, max_tokens=4)
    assert middle.reached.wait(WAIT_S)
    decision = engine.submit_score(job(engine))
    closer = threading.Thread(target=lambda: engine.close(timeout_s=0))
    closer.start()
    while engine._lifecycle.stop_at is None:
        time.sleep(0.001)
    middle.open()
    closer.join(WAIT_S)
    with pytest.raises(Problem) as caught:
        decision.result(WAIT_S)
    assert caught.value.kind is Kind.DRAINING


def generating(engine: LlamaEngine) -> Collector:
    """A chat that does not end by itself and has begun to answer."""
    token = engine.encode([Piece("word")], start=False)[0]
    chat = Collector(engine, "word", max_tokens=480, logit_bias=((token, 100.0),))
    assert chat.begun.wait(WAIT_S)
    return chat


class AfterThree(Turns):
    """A decision may go first when the chats had three turns after the last one."""

    def __init__(self) -> None:
        self.left = 0

    @property
    def decision_goes_first(self) -> bool:
        return not self.left

    def charge_decision(self, seconds: float, *, usual_s: float) -> None:
        self.left = 3

    def charge_chats(self, seconds: float) -> None:
        self.left = max(0, self.left - 1)

    def reset(self) -> None:
        self.left = 0


def test_decisions_wait_for_their_turn_beside_a_chat_that_generates(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = started(model, turns=AfterThree(), queue_limit=64)
    try:
        chat = generating(engine)
        gate, order = Gate(engine, monkeypatch), noted(engine, monkeypatch)
        assert gate.reached.wait(WAIT_S)
        futures = [engine.submit_score(job(engine, f"decision {index}")) for index in range(10)]
        gate.open()
        for future in futures:
            future.result(WAIT_S)
        chat.cancel()
        first, last = order.index("decision"), len(order) - 1 - order[::-1].index("decision")
        between = [list(group) for kind, group in groupby(order[first:last], lambda what: what == "decision")]
        assert between == [["decision"] if index % 2 == 0 else ["chat", "chat over"] * 3 for index in range(18)]
    finally:
        engine.close(timeout_s=0)


def test_a_prompts_chunks_are_shorter_while_other_chats_wait_for_their_tokens(
    engine: LlamaEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chats, "CHUNK_BESIDE_CHATS_S", 1e-9)
    sizes: list[tuple[int, int]] = []

    def note(context: Context, decode: Callable[..., Any], runs: Any, **more: Any) -> Any:
        sizes.append((len(runs), len(runs[-1].tokens)))
        return decode(runs, **more)

    patch_decodes(engine, monkeypatch, note)
    Collector(engine, "word " * 80, max_tokens=1).wait()
    assert sizes[0] == (1, 256)
    first = generating(engine)
    sizes.clear()
    Collector(engine, "other " * 80, max_tokens=1).wait()
    first.cancel()
    assert [tokens for runs, tokens in sizes if runs == 2][:2] == [1 + TILE, 1 + TILE]


def test_a_decision_waits_for_one_chunk_where_nothing_can_be_stopped(
    engine: LlamaEngine, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the first decode is held, a chat of many chunks and a decision arrive: the decision is next."""
    engine._executor.contexts.chats.interruptible = False
    engine._meter.decision_took(0.001)
    chat = Collector(engine, "word " * 80, max_tokens=2)
    assert gate.reached.wait(WAIT_S)
    order = noted(engine, monkeypatch)
    decision = engine.submit_score(job(engine))
    gate.open()
    decision.result(WAIT_S)
    chat.wait()
    assert order[:2] == ["decision", "chat"]
    assert engine.counters.interruptions == 0


def test_a_decision_that_fails_in_the_middle_of_a_chat_fails_everyone_honestly(
    engine: LlamaEngine, middle: Middle, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = Collector(engine, "word " * 80, max_tokens=4)
    assert middle.reached.wait(WAIT_S)
    decision = engine.submit_score(job(engine))

    def broken(_: Any) -> Any:
        raise LlamaError("llama_decode returned -3")

    monkeypatch.setattr(engine._executor.contexts.decisions, "decode", broken)
    middle.open()
    with pytest.raises(Problem) as caught:
        decision.result(WAIT_S)
    assert caught.value.kind is Kind.REQUEST_FAILED
    assert chat.problem().kind is Kind.ENGINE_FAILED
    assert "-3" in engine.health().reason


# --- embeddings


def test_embeddings_are_unit_vectors_that_depend_on_the_text(tmp_path: Path) -> None:
    engine = started(tiny_models.write("llama-pooling", tmp_path / "pooling.gguf"))
    try:
        inputs = tuple(tuple(engine.encode([Piece(t)], start=True)) for t in ("a refund", "a parcel", "a refund"))
        rows = engine.submit_embedding(EmbeddingJob(inputs=inputs, deadline=time.monotonic() + WAIT_S)).result(WAIT_S)
        assert all(row.shape == (engine.identity.model.embedding_size,) for row in rows)
        assert all(abs(float(np.linalg.norm(row)) - 1) < 1e-5 for row in rows)
        assert np.array_equal(rows[0], rows[2])
        assert not np.array_equal(rows[0], rows[1])
        assert len(engine.submit_score(job(engine)).result(WAIT_S)) == 1
    finally:
        engine.close(timeout_s=0)


@pytest.fixture(scope="module", params=["MEAN", "CLS", "LAST"])
def pooling(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        spec = replace(tiny_models._SPECS["llama-pooling"], pooling=gguf.PoolingType[request.param])
        patch.setitem(tiny_models._SPECS, "llama-pooling", spec)
        return tiny_models.write("llama-pooling", tmp_path_factory.mktemp("tiny") / "pooling.gguf")


def embed(engine: LlamaEngine, *texts: str, caller: str = "") -> Future[list[Any]]:
    inputs = tuple(tuple(engine.encode([Piece(text)], start=True)) for text in texts)
    return engine.submit_embedding(EmbeddingJob(inputs=inputs, deadline=time.monotonic() + WAIT_S, caller=caller))


def test_a_long_text_is_embedded_in_pieces(pooling: Path) -> None:
    """llama.cpp has logits of every token of a batch that it pools."""
    texts = ["short", "refund the order " * 10 + "billing " * 40 + "A B C D " * 12]
    rows = []
    for batch in (512, 32):
        engine = started(pooling, batch_tokens=batch)
        try:
            before = engine.counters.decodes
            rows.append(embed(engine, *texts).result(WAIT_S))
            pieces = [-(-len(engine.encode([Piece(text)], start=True)) // batch) for text in texts]
            assert engine.counters.decodes - before == sum(pieces)
            assert engine._executor.contexts.embeddings is not None
            assert engine._executor.contexts.embeddings.shape.batch_tokens == batch
        finally:
            engine.close(timeout_s=0)
    assert pieces[1] > 3
    assert np.array_equal(rows[0][0], rows[1][0])
    assert float(rows[0][1] @ rows[1][1]) > 0.9995


def test_a_text_that_is_read_in_both_directions_is_embedded_whole(
    pooling: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Model, "causal", False)
    engine = started(pooling, batch_tokens=32)
    try:
        assert engine._executor.contexts.embeddings is not None
        assert engine._executor.contexts.embeddings.shape.batch_tokens == 512
    finally:
        engine.close(timeout_s=0)


def test_many_texts_of_one_caller_keep_neither_decisions_nor_chats_waiting(
    pooling: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has decided yet, so that no one knows how long a decision takes. Every text is a turn."""
    engine = started(pooling, queue_limit=64)
    gate = Gate(engine, monkeypatch)
    order: list[str] = []
    try:
        first = embed(engine, "the first text", caller="ann")
        chat = Collector(engine, "word " * 20, max_tokens=30)
        for holder, name, kind in ((engine._executor, "run", "text"), (engine._loop, "_charge_chats", "chat")):
            call = getattr(holder, name)
            monkeypatch.setattr(holder, name, lambda *a, call=call, kind=kind: (order.append(kind), call(*a))[1])
        long = embed(engine, *(f"text number {n}" for n in range(60)), caller="ann")
        others = embed(engine, "a text of someone else", caller="bob")
        decision = engine.submit_score(job(engine, caller="cid"))
        done: list[str] = []
        for name, future in (("long", long), ("others", others), ("decision", decision)):
            future.add_done_callback(lambda _, name=name: done.append(name))
        gate.open()
        assert len(long.result(WAIT_S)) == 60
        assert len(first.result(WAIT_S)) == len(others.result(WAIT_S)) == len(decision.result(WAIT_S)) == 1
        chat.wait()
        assert done == ["others", "decision", "long"]
        assert "chat" in order[: order.index("text") + 20]
        assert engine.counters.embeddings == 62
        engine.close(timeout_s=WAIT_S)
        assert engine._scheduler.admission.tokens == engine._scheduler.admission.steps == 0
    finally:
        gate.open()
        engine.close(timeout_s=0)


def test_a_job_of_texts_ends_when_its_caller_leaves(pooling: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = started(pooling, batch_tokens=32)
    try:
        assert engine._executor.contexts.embeddings is not None
        held, go = engine._executor.contexts.embeddings.embed, threading.Event()
        reached = threading.Event()

        def embedded(tokens: Any, *, position: int = 0) -> Any:
            reached.set()
            assert go.wait(WAIT_S)
            return held(tokens, position=position)

        monkeypatch.setattr(engine._executor.contexts.embeddings, "embed", embedded)
        left = embed(engine, *("refund the order " * 20 for _ in range(5)))
        assert reached.wait(WAIT_S)
        assert left.cancel()
        go.set()
        assert len(embed(engine, "another").result(WAIT_S)) == 1
        assert engine.counters.embeddings == engine.counters.cancelled == 1
        engine.close(timeout_s=WAIT_S)
        assert engine._scheduler.admission.tokens == engine._scheduler.admission.steps == 0
    finally:
        engine.close(timeout_s=0)


def test_a_model_without_pooling_gives_no_embeddings(shared_engine: LlamaEngine) -> None:
    asked = EmbeddingJob(inputs=((1, 2),), deadline=time.monotonic() + WAIT_S)
    assert problem_of(lambda: shared_engine.submit_embedding(asked)).kind is Kind.UNSUPPORTED


# --- health and the end


def test_a_decode_that_hangs_is_reported(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = started(model, decode_timeout_s=0.05)
    gate = Gate(engine, monkeypatch)
    try:
        assert engine.health().ready
        future = engine.submit_score(job(engine))
        assert gate.reached.wait(WAIT_S)
        time.sleep(0.1)
        health = engine.health()
        assert not health.ready
        assert not health.dead
        assert "decode" in health.reason
        gate.open()
        future.result(WAIT_S)
        assert engine.health().ready
    finally:
        gate.open()
        engine.close(timeout_s=0)


def test_a_failing_decode_kills_the_engine_and_fails_everyone_honestly(
    engine: LlamaEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(engine, monkeypatch)
    running = engine.submit_score(job(engine))
    assert gate.reached.wait(WAIT_S)
    waiting, chat = engine.submit_score(job(engine, "waiting")), Collector(engine, "chat")

    def broken(*_: Any, **__: Any) -> Any:
        raise LlamaError("llama_decode returned -3")

    patch_decodes(engine, monkeypatch, broken)
    gate.open()
    for future, kind in ((running, Kind.REQUEST_FAILED), (waiting, Kind.ENGINE_FAILED)):
        with pytest.raises(Problem) as caught:
            future.result(WAIT_S)
        assert caught.value.kind is kind
        assert (caught.value.retry_after_ms is not None) == (kind is Kind.ENGINE_FAILED)
    assert chat.problem().kind is Kind.ENGINE_FAILED
    health = engine.health()
    assert health.dead
    assert "-3" in health.reason
    assert problem_of(lambda: engine.submit_score(job(engine))).kind is Kind.ENGINE_FAILED


def test_draining_finishes_what_was_accepted_and_refuses_the_rest(engine: LlamaEngine, gate: Gate) -> None:
    running = engine.submit_score(job(engine))
    assert gate.reached.wait(WAIT_S)
    chat = Collector(engine, "accepted")
    engine.start_draining()
    assert problem_of(lambda: engine.submit_score(job(engine))).kind is Kind.DRAINING
    assert not engine.health().ready
    gate.open()
    assert len(running.result(WAIT_S)) == 1
    assert chat.finished()


def test_closing_fails_what_is_left(engine: LlamaEngine, gate: Gate) -> None:
    running = engine.submit_score(job(engine))
    assert gate.reached.wait(WAIT_S)
    left = engine.submit_score(job(engine, "left"))
    chat = Collector(engine, "left too")
    closer = threading.Thread(target=lambda: engine.close(timeout_s=0))
    closer.start()
    time.sleep(0.05)
    gate.open()
    closer.join(WAIT_S)
    running.result(WAIT_S)
    with pytest.raises(Problem) as caught:
        left.result(WAIT_S)
    assert caught.value.kind is Kind.DRAINING
    assert chat.problem().kind is Kind.DRAINING

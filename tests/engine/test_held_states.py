"""What a job of several questions holds while callers take turns: evaluated once, and within a limit of bytes."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import tiny_models
from steelyard_runtime.engine.core import LlamaEngine
from steelyard_runtime.engine.interface import Piece, Score, ScoreJob, ScorePrompt, Segment
from steelyard_runtime.engine.llama import Snapshot
from steelyard_runtime.engine.start import start_engine
from steelyard_runtime.settings import load_settings

WAIT_S = 120
KINDS = ("llama", "gemma3", "qwen35", "mamba2")
STATE, QUESTION, QUESTIONS = 120, 4, 20
INSTRUCTIONS = 8


@pytest.fixture(scope="module", params=KINDS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.write(request.param, tmp_path_factory.mktemp("tiny") / f"{request.param}.gguf")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.write("llama", tmp_path_factory.mktemp("tiny") / "llama.gguf")


class Watched:
    """An engine that is held until everyone has asked, and whose snapshots are counted as they live and die."""

    def __init__(self, model: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
        values = {"threads": 1, "context_tokens": 512, "queue_limit": 64, "model": str(model)}
        self.engine = start_engine(load_settings(**(values | changes)))
        self.words = self.engine.encode([Piece(" ".join(tiny_models.LABELS[:8]) + " the order")], start=False)
        self.order: list[str] = []
        self.largest = self.peak = 0
        self._alive: dict[int, int] = {}
        self._asked = threading.Event()
        context = self.engine._executor.contexts.decisions
        save, decode, prepare = context.save, context.decode, self.engine._executor.scorer.prepare

        def saved(sequence: int) -> Snapshot:
            snapshot = save(sequence)
            name, size = id(snapshot.data), len(snapshot)
            self._alive[name] = size
            self.largest = max(self.largest, size)
            weakref.finalize(snapshot.data, self._alive.pop, name, None)
            return snapshot

        def decoded(runs: Any, **more: Any) -> Any:
            assert self._asked.wait(WAIT_S)
            self.peak = max(self.peak, sum(self._alive.values()))
            scorer, store = self.engine._executor.scorer, self.engine._executor.prefixes
            assert sum(self._alive.values()) == store.bytes + scorer.spare_bytes == self.engine.counters.prefix_bytes
            return decode(runs, **more)

        def prepared(run: Any, **more: Any) -> Any:
            self.order.append(run.job.caller)
            return prepare(run, **more)

        monkeypatch.setattr(context, "save", saved)
        monkeypatch.setattr(context, "decode", decoded)
        monkeypatch.setattr(self.engine._executor.scorer, "prepare", prepared)

    def job(self, caller: str, *, state: int = STATE, question: int = QUESTION, questions: int = QUESTIONS) -> ScoreJob:
        """A state of the caller's own, and questions on it, of so many tokens each."""

        def tokens(count: int, seed: int) -> tuple[int, ...]:
            return tuple(self.words[(seed * (n + 1) + n // 7) % len(self.words)] for n in range(count))

        shared = (Segment(tokens(INSTRUCTIONS, 1)), Segment(tokens(state, 3 + ord(caller[0])), private=True))
        prompts = tuple(ScorePrompt(shared=shared, tail=tokens(question, 50 + n)) for n in range(questions))
        return ScoreJob(prompts=prompts, deadline=time.monotonic() + WAIT_S, caller=caller)

    def go(self) -> None:
        self._asked.set()

    def ask(self, jobs: list[ScoreJob]) -> list[list[Score]]:
        futures = [self.engine.submit_score(job) for job in jobs]
        self.go()
        return [future.result(WAIT_S) for future in futures]

    def nothing_is_held(self) -> None:
        self.go()
        self.engine.close(timeout_s=WAIT_S)
        store, left = self.engine._executor.prefixes, self.engine._scheduler.admission
        assert not any(kept.pins for kept in store._kept.values())
        assert store.bytes == sum(len(kept.snapshot) for kept in store._kept.values())
        assert self.engine._executor.scorer.spare_bytes == 0
        assert left.tokens == left.steps == 0


@contextmanager
def watched(model: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Iterator[Watched]:
    watch = Watched(model, monkeypatch, **changes)
    try:
        yield watch
    finally:
        watch.nothing_is_held()


def evaluated(scores: list[Score]) -> int:
    return sum(score.tokens.evaluated for score in scores)


@cache
def size_of_a_state(model: Path) -> int:
    with pytest.MonkeyPatch.context() as patch, watched(model, patch) as watch:
        watch.ask([watch.job("ann", questions=2)])
        return watch.largest


@pytest.mark.parametrize("reuse", [{}, {"reuse_states": False}, {"reuse_prefixes": False}], ids=str)
@pytest.mark.parametrize("together", [1, 4])
@pytest.mark.parametrize("states_that_fit", [0, 1, 1.5, 100])
def test_callers_who_take_turns_have_their_states_evaluated_once(
    model: Path, monkeypatch: pytest.MonkeyPatch, states_that_fit: float, together: int, reuse: dict[str, bool]
) -> None:
    one = size_of_a_state(model)
    with watched(model, monkeypatch, decisions_together=together, **reuse) as watch:
        capacity = watch.engine._executor.prefixes._capacity = int(states_that_fit * one)
        for callers in (["ann", "bob"], ["cid", "dan", "eve"]):
            jobs = [watch.job(caller) for caller in callers]
            for job, scores in zip(jobs, watch.ask(jobs), strict=True):
                least = STATE + QUESTIONS * QUESTION
                assert least <= evaluated(scores) <= least + INSTRUCTIONS
                assert [len(prompt) for prompt in job.prompts] == [score.tokens.prompt for score in scores]
        assert watch.peak <= capacity + watch.largest


@pytest.mark.parametrize("together", [1, 4])
def test_whoever_holds_a_state_beside_the_store_lets_others_have_their_turn(
    llama: Path, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    """When the questions took as many tokens as the state. As long as nobody else needs the place, it stays."""
    state, question = 40, 8
    with watched(llama, monkeypatch, decisions_together=together, prefix_cache_mib=0) as watch:
        long, short = (watch.job(c, state=state, question=question, questions=n) for c, n in (("ann", 60), ("bob", 1)))
        scores, _ = watch.ask([long, short])
        turns = -(-(INSTRUCTIONS + state) // question)
        assert watch.order.index("bob") <= turns + together
        assert watch.order.count("ann") == 60
        assert evaluated(scores) == INSTRUCTIONS + state + 60 * question


@pytest.mark.parametrize("together", [1, 4])
def test_two_who_cannot_both_hold_their_states_evaluate_at_most_twice_as_much(
    llama: Path, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    state, question, questions = 40, 8, 60
    with watched(llama, monkeypatch, decisions_together=together, prefix_cache_mib=0) as watch:
        jobs = [watch.job(c, state=state, question=question, questions=questions) for c in ("ann", "bob")]
        for scores in watch.ask(jobs):
            alone = INSTRUCTIONS + state + questions * question
            assert evaluated(scores) <= 2 * alone
        assert watch.order.index("bob") < questions / 2
        assert watch.peak <= watch.largest


@pytest.mark.parametrize("kept", ["kept", "job's own", "spare"])
def test_who_leaves_after_a_question_holds_nothing_any_more(
    llama: Path, monkeypatch: pytest.MonkeyPatch, kept: str
) -> None:
    changes = {"kept": {}, "job's own": {"reuse_states": False}, "spare": {"prefix_cache_mib": 0}}[kept]
    with watched(llama, monkeypatch, **changes) as watch:
        futures: list[Future[list[Score]]] = [watch.engine.submit_score(watch.job("ann"))]
        on_question(watch.engine, 2, monkeypatch, lambda: futures[0].cancel())
        watch.go()
        with pytest.raises(CancelledError):
            futures[0].result(WAIT_S)


def on_question(engine: LlamaEngine, number: int, monkeypatch: pytest.MonkeyPatch, call: Callable[[], object]) -> None:
    score, seen = engine._executor.scorer._record, []

    def scored(*args: Any) -> None:
        seen.append(args)
        score(*args)
        if len(seen) == number:
            call()

    monkeypatch.setattr(engine._executor.scorer, "_record", scored)


def test_a_question_that_others_share_is_held_too(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What prompts have in common may end before their last segment: instructions, then a question each."""
    with watched(llama, monkeypatch, prefix_cache_mib=0) as watch:
        base = watch.job("ann", questions=1).prompts[0]
        others = [Segment((word,) * 5) for word in watch.words[:6]]
        prompts = tuple(ScorePrompt(shared=(base.shared[0], each), tail=base.tail) for each in others)
        job = ScoreJob(prompts=prompts, deadline=time.monotonic() + WAIT_S, caller="ann")
        [scores] = watch.ask([job])
        assert evaluated(scores) == INSTRUCTIONS + len(others) * (5 + QUESTION)


def test_what_was_kept_earlier_stays_while_a_job_needs_it(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state that an earlier request left behind, and callers enough to push it out."""
    one = size_of_a_state(llama)
    with watched(llama, monkeypatch) as watch:
        watch.engine._executor.prefixes._capacity = 3 * one
        watch.ask([watch.job("ann", questions=1)])
        again, *_ = watch.ask([watch.job("ann"), *(watch.job(caller) for caller in ("bob", "cid", "dan", "eve"))])
        assert evaluated(again) == QUESTIONS * QUESTION

"""A fault that belongs to one request fails that request alone; the engine proves its health before it goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny_models
from steelyard_runtime.contracts.registry import CONTRACTS
from steelyard_runtime.engine import embedder, generations, llama
from steelyard_runtime.engine.chats import ChatBatcher
from steelyard_runtime.engine.core import LlamaEngine
from steelyard_runtime.engine.executor import Executor
from steelyard_runtime.engine.interface import (
    Delta,
    Done,
    EmbeddingJob,
    Event,
    Failed,
    GenerationJob,
    Piece,
    Sampling,
    ScoreJob,
    ScorePrompt,
    Segment,
)
from steelyard_runtime.engine.llama import Context
from steelyard_runtime.engine.prefixes import PrefixStore
from steelyard_runtime.engine.scorer import Scorer
from steelyard_runtime.engine.start import start_engine
from steelyard_runtime.errors import Kind, Problem
from steelyard_runtime.settings import load_settings

WAIT_S = 60
NO_TOKEN = 1 << 24
"""Of no vocabulary here: llama_decode refuses a batch with it."""


class InjectedError(Exception):
    """A fault that nobody expected."""


class Chat:
    """One generation and its events."""

    def __init__(self, engine: LlamaEngine, text: str, *, caller: str, n: int = 1, **sampling: Any) -> None:
        self.events: list[Event] = []
        self._over = threading.Event()
        prompt = tuple(engine.encode([Piece(text)], start=True))
        values = {"max_tokens": 10, "temperature": 0.0, "top_logprobs": 1} | sampling
        self.job = GenerationJob(
            prompt=prompt, sampling=Sampling(**values), deadline=time.monotonic() + WAIT_S, n=n, caller=caller
        )

    def submit(self, engine: LlamaEngine) -> Chat:
        engine.submit_generation(self.job, self._take)
        return self

    def _take(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, Done | Failed):
            self._over.set()

    def problem(self) -> Problem | None:
        assert self._over.wait(WAIT_S)
        last = self.events[-1]
        if isinstance(last, Failed):
            assert isinstance(last.problem, Problem)
            return last.problem
        return None

    def text(self) -> str:
        assert self.problem() is None
        return "".join(event.text for event in self.events if isinstance(event, Delta))


def decision(engine: LlamaEngine, text: str, *, caller: str, tails: int = 2) -> ScoreJob:
    def encode(value: str, *, start: bool = False) -> tuple[int, ...]:
        return tuple(engine.encode([Piece(value)], start=start))

    shared = (Segment(encode("instructions", start=True)), Segment(encode(text), private=True))
    prompts = tuple(ScorePrompt(shared=shared, tail=encode(f"question {n}")) for n in range(tails))
    return ScoreJob(prompts=prompts, deadline=time.monotonic() + WAIT_S, caller=caller)


def embedding(engine: LlamaEngine, *texts: str, caller: str) -> EmbeddingJob:
    inputs = tuple(tuple(engine.encode([Piece(text)], start=True)) for text in texts)
    return EmbeddingJob(inputs=inputs, deadline=time.monotonic() + WAIT_S, caller=caller)


class Innocents:
    """Requests of others, in flight while a fault happens."""

    def __init__(self, engine: LlamaEngine) -> None:
        self._scores = [engine.submit_score(decision(engine, f"state {n}", caller="ann")) for n in range(3)]
        self._vectors = engine.submit_embedding(embedding(engine, "one", "two", caller="ann"))
        self._chat = Chat(engine, "an innocent chat", caller="bob").submit(engine)

    def answers(self) -> tuple[list[bytes], str]:
        """What they were told, to the bit."""
        rows = [score.logits for future in self._scores for score in future.result(WAIT_S)]
        rows += self._vectors.result(WAIT_S)
        return [np.asarray(row).tobytes() for row in rows], self._chat.text()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.write("llama-pooling", tmp_path_factory.mktemp("tiny") / "pooling.gguf")


def started(model: Path, **changes: Any) -> LlamaEngine:
    values = {"threads": 1, "context_tokens": 512, "batch_tokens": 64, "chats": 3, "queue_limit": 64}
    return start_engine(load_settings(model=str(model), **(values | changes)))


@pytest.fixture
def engine(shared: LlamaEngine) -> Iterator[LlamaEngine]:
    """An engine that has a fault, or several, and is used by the next test all the same."""
    yield shared
    assert shared.health().ready
    assert held(shared) == (0, 0, 0, 0, 0, 0)


@pytest.fixture(scope="module")
def shared(model: Path) -> Iterator[LlamaEngine]:
    engine = started(model)
    yield engine
    engine.close(timeout_s=0)


def held(engine: LlamaEngine) -> tuple[int, ...]:
    """What requests that are over may not hold: sequences, choices, tokens ahead, reserved bytes, pins, duplicates."""
    until = time.monotonic() + WAIT_S
    while not engine._scheduler.idle and time.monotonic() < until:
        time.sleep(0.005)
    ahead = engine._scheduler.admission
    return (
        engine._executor.contexts.chats.shape.sequences - len(engine._executor.chats._free),
        len(engine._executor.chats._placed) + engine._executor.chats.active,
        ahead.tokens + ahead.steps + ahead.chat_tokens,
        engine._executor.prefixes._reserved + engine._executor.scorer.spare_bytes,
        sum(kept.pins for kept in engine._executor.prefixes._kept.values()),
        len(engine._scheduler._duplicates),
    )


@pytest.fixture
def fault(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Make a function fail once, the first time or a later one, while the engine works for the caller "victim"."""
    current = [""]
    run, blaming = Executor.run, ChatBatcher._blaming

    def served(self: Executor, ticket: Any) -> None:
        current.append(ticket.caller)
        try:
            run(self, ticket)
        finally:
            current.pop()

    @contextmanager
    def guarded(self: ChatBatcher, generation: Any) -> Iterator[None]:
        current.append(generation.job.caller)
        try:
            with blaming(self, generation):
                yield
        finally:
            current.pop()

    monkeypatch.setattr(Executor, "run", served)
    monkeypatch.setattr(ChatBatcher, "_blaming", guarded)

    def inject(holder: Any, name: str, *, time_: int = 1) -> list[str]:
        right, seen = getattr(holder, name), []

        def faulty(*arguments: Any, **more: Any) -> Any:
            if current[-1] == "victim" and len(seen) < time_:
                seen.append(name)
                if len(seen) == time_:
                    raise InjectedError(f"in {name}")
            return right(*arguments, **more)

        monkeypatch.setattr(holder, name, faulty)
        return seen

    return inject


def told(problem: BaseException | None) -> Problem:
    """A fault of this request alone, which its caller must not repeat."""
    assert isinstance(problem, Problem)
    assert problem.kind is Kind.REQUEST_FAILED
    assert not problem.row.retryable
    assert problem.retry_after_ms is None
    assert {contract.errors.status(problem.kind) for contract in CONTRACTS} == {422}
    assert "do not repeat" in problem.message
    return problem


@pytest.mark.parametrize("time_", [1, 2])
@pytest.mark.parametrize(
    ("holder", "name"),
    [
        (Context, "decode"),
        (Context, "_row"),
        (Context, "save"),
        (Context, "restore"),
        (Context, "clear"),
        (Context, "snapshot_bytes"),
        (PrefixStore, "keep"),
        (Scorer, "prepare"),
        (Scorer, "_record"),
        (Executor, "_resolve_or_requeue"),
    ],
)
def test_a_decision_that_fails_fails_alone(
    engine: LlamaEngine, fault: Callable[..., list[str]], holder: Any, name: str, time_: int
) -> None:
    right = Innocents(engine).answers()
    faults = engine.counters.faults
    seen = fault(holder, name, time_=time_)
    engine._executor.prefixes.clear()
    before = Innocents(engine)
    victim = engine.submit_score(decision(engine, f"of the victim {name} {time_}", caller="victim", tails=3))
    after = Innocents(engine)
    problem = victim.exception(WAIT_S)
    if len(seen) == time_:
        told(problem)
        assert "InjectedError" in str(problem)
        assert engine.counters.faults == faults + 1
    else:
        assert problem is None
    assert before.answers() == after.answers() == right
    assert len(seen) == time_ or name in ("restore", "prepare", "save", "keep")  # what others kept need not be


@pytest.mark.parametrize(
    ("holder", "name", "sampling"),
    [
        (generations.Sampler, "__init__", {}),
        (generations.Choice, "__init__", {}),
        (generations.Sampler, "sample", {}),
        (generations.Choice, "take", {}),
        (generations.Choice, "advanced", {}),
        (generations, "logprobs", {}),
        (llama.Vocabulary, "token_bytes", {}),
        (llama.Vocabulary, "ends_generation", {}),
        (generations.TextAssembler, "add", {}),
        (Context, "save", {}),
        (Context, "restore", {}),
        (PrefixStore, "longest_text", {}),
        (PrefixStore, "keep_text", {}),
        (ChatBatcher, "_chunk_done", {}),
        (ChatBatcher, "_progress", {}),
        (llama.L, "llama_sampler_init_penalties", {"frequency_penalty": 0.5}),
        (llama.L, "llama_sampler_init_dist", {"temperature": 0.7}),
    ],
    ids=lambda value: "libllama" if value is llama.L else getattr(value, "__name__", str(value)),
)
@pytest.mark.parametrize("n", [1, 2])
def test_a_chat_that_fails_fails_alone(
    engine: LlamaEngine, fault: Callable[..., list[str]], holder: Any, name: str, sampling: dict[str, Any], n: int
) -> None:
    right = Innocents(engine).answers()
    faults = engine.counters.faults
    text = f"the chat of the victim goes on and on, {name} {n} " + "and on " * 40
    Chat(engine, text, caller="victim").submit(engine).problem()  # so that the next has something to restore
    seen = fault(holder, name)
    before = Innocents(engine)
    victim = Chat(engine, text + " again", caller="victim", n=n, **sampling).submit(engine)
    after = Innocents(engine)
    problem = victim.problem()
    assert seen
    assert "InjectedError" in str(told(problem))
    assert engine.counters.faults == faults + 1
    assert before.answers() == after.answers() == right


@pytest.mark.parametrize(("holder", "name"), [(Context, "embed"), (embedder, "_pooled"), (Executor, "_embed_next")])
def test_a_text_that_fails_to_be_embedded_fails_alone(
    engine: LlamaEngine, fault: Callable[..., list[str]], holder: Any, name: str
) -> None:
    right = Innocents(engine).answers()
    seen = fault(holder, name, time_=2)
    before = Innocents(engine)
    victim = engine.submit_embedding(embedding(engine, "a", "b", "c", caller="victim"))
    told(victim.exception(WAIT_S))
    assert seen
    assert before.answers() == right


def test_a_prefix_that_cannot_be_kept_warm_fails_alone(engine: LlamaEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    right = Innocents(engine).answers()

    def broken(*_: Any, **__: Any) -> Any:
        raise InjectedError

    with monkeypatch.context() as patch:
        patch.setattr(engine._executor.scorer, "warm", broken)
        told(engine.keep_warm((Segment((5, 6, 7)),)).exception(WAIT_S))
    assert Innocents(engine).answers() == right


# --- llama_decode itself


def test_a_batch_that_llama_cpp_refuses_fails_whose_it_is(engine: LlamaEngine) -> None:
    """A real fault of llama_decode: a token that no vocabulary has."""
    right = Innocents(engine).answers()
    victim = decision(engine, "of the victim", caller="victim", tails=1)
    wrong = replace(victim, prompts=(replace(victim.prompts[0], tail=(NO_TOKEN,)),))
    before = Innocents(engine)
    assert "llama_decode" in str(told(engine.submit_score(wrong).exception(WAIT_S)))
    assert before.answers() == right


def test_chats_that_share_a_decode_outlive_the_one_that_llama_cpp_refuses(engine: LlamaEngine) -> None:
    right = Innocents(engine).answers()
    victim = Chat(engine, "of the victim", caller="victim")
    victim.job = replace(victim.job, prompt=(*victim.job.prompt, NO_TOKEN))
    before = Innocents(engine)
    long = Chat(engine, "a long chat", caller="dan", max_tokens=60).submit(engine)
    assert "llama_decode" in str(told(victim.submit(engine).problem()))
    assert before.answers() == right
    assert long.text()


def test_a_shared_decode_that_fails_takes_only_those_in_it_along(
    engine: LlamaEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows which of two chats it was; the engine goes on, so both may try again."""
    right = Innocents(engine).answers()
    decode, failed = Context.decode, threading.Event()

    def broken(self: Context, runs: Any, **more: Any) -> Any:
        if self is engine._executor.contexts.chats and len(runs) == 2 and not failed.is_set():
            failed.set()
            raise llama.LlamaError("llama_decode of 2 tokens returned -3")
        return decode(self, runs, **more)

    monkeypatch.setattr(Context, "decode", broken)
    chats = [Chat(engine, f"chat {n}", caller="bob", max_tokens=40).submit(engine) for n in range(2)]
    problems = [chat.problem() for chat in chats]
    assert failed.is_set()
    for problem in problems:
        assert problem is not None
        assert problem.kind is Kind.ENGINE_FAILED
        assert problem.row.retryable
        assert problem.retry_after_ms
    assert Innocents(engine).answers() == right


# --- the proof


def test_an_engine_that_does_not_compute_what_it_did_ends_and_says_who_may_try_again(
    model: Path, fault: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = started(model)
    try:
        begun, go_on = threading.Event(), threading.Event()
        prepare = Scorer.prepare

        def held_up(self: Scorer, run: Any, **more: Any) -> Any:
            begun.set()
            go_on.wait(WAIT_S)
            return prepare(self, run, **more)

        monkeypatch.setattr(Scorer, "prepare", held_up)
        victim = engine.submit_score(decision(engine, "of the victim", caller="victim"))
        assert begun.wait(WAIT_S)
        innocents = [engine.submit_score(decision(engine, f"state {n}", caller="ann")) for n in range(2)]
        chat = Chat(engine, "chat", caller="bob").submit(engine)
        fault(Context, "save")
        engine._executor.vitals[0].reference[3] += 1e-3
        go_on.set()
        told(victim.exception(WAIT_S))
        others = [*(innocent.exception(WAIT_S) for innocent in innocents), chat.problem()]
        for problem in others:
            assert isinstance(problem, Problem)
            assert problem.kind is Kind.ENGINE_FAILED
            assert problem.row.retryable
            assert problem.retry_after_ms
        health = engine.health()
        assert health.dead
        assert "a fixed text has values that differ by 0.001" in health.reason
    finally:
        go_on.set()
        engine.close(timeout_s=0)


def test_the_proof_is_exact(engine: LlamaEngine) -> None:
    assert [vitals.noise for vitals in (*engine._executor.vitals, engine._executor.chat_vitals) if vitals] == [0.0] * 3

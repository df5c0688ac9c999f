"""An answer is a function of the request and the identity, to the bit.

The expected logic: score every decision alone, in an engine that keeps nothing. Then ask the same decisions of an
engine that reuses, evicts and re-makes prefixes, in random company and order, from 32 clients at once, while chats
run. Every logit vector, and every hidden state, must equal the first one with ``==``; there is no tolerance.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import tiny_models
from steelyard_runtime.engine.core import LlamaEngine
from steelyard_runtime.engine.interface import (
    Done,
    Event,
    Failed,
    GenerationJob,
    Logits,
    Piece,
    Sampling,
    Score,
    ScoreJob,
    ScorePrompt,
    Segment,
)
from steelyard_runtime.engine.start import start_engine
from steelyard_runtime.settings import Settings, load_settings

CLIENTS = 32
WORDS = ["order", "refund", "parcel", "login", "error", "invoice", "plan", "quote", "urgent", "late", "please", "never"]
STATE_FIRST, OPTIONS_FIRST, HIDDEN = ORDERS = ("state-first", "options-first", "state-first, hidden")
Alone = dict[tuple[str, int, int], Logits]
"""By order, state and question: the logits, followed by the hidden state where the order asks for it."""
KINDS = {"llama": "dense", "gemma3": "swa", "qwen35": "hybrid", "mamba2": "recurrent"}


@dataclass(frozen=True)
class Case:
    """States and questions as segments of token ids, small enough to ask many times."""

    instructions: tuple[int, ...]
    states: tuple[tuple[int, ...], ...]
    tails: tuple[tuple[int, ...], ...]


def text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(words))


def make_case(engine: LlamaEngine, *, states: int, tails: int, longest: int) -> Case:
    rng = random.Random(7)

    def encode(words: int, *, start: bool = False) -> tuple[int, ...]:
        return tuple(engine.encode([Piece(text(rng, words) + "\n")], start=start))

    # Longer than the sliding window and than one decode of the tiny settings, and as short as one word.
    lengths = [1, longest, *(rng.randint(5, longest) for _ in range(states - 2))]
    return Case(
        encode(9, start=True), tuple(map(encode, lengths)), tuple(encode(rng.randint(1, 12)) for _ in range(tails))
    )


def settings(path: Path, **changes: object) -> Settings:
    values = {"model": str(path), "threads": 1, "context_tokens": 1024, "batch_tokens": 64, "chat_chunk_tokens": 32}
    return load_settings(**(values | changes))


def prompt(case: Case, order: str, state: int, tail: int) -> ScorePrompt:
    """What comes first is kept; a question (here a "tail") serves every caller, a state only its own."""
    instructions = Segment(case.instructions)
    if order != OPTIONS_FIRST:
        shared = instructions, Segment(case.states[state], private=True)
        return ScorePrompt(shared=shared, tail=case.tails[tail], hidden=order == HIDDEN)
    return ScorePrompt(shared=(instructions, Segment(case.tails[tail])), tail=case.states[state])


def score(
    engine: LlamaEngine, case: Case, state: int, tails: list[int], *, order: str, caller: str = ""
) -> list[Logits]:
    prompts = tuple(prompt(case, order, state, tail) for tail in tails)
    job = ScoreJob(prompts=prompts, deadline=time.monotonic() + 240, caller=caller)
    return [vector(result, hidden=order == HIDDEN) for result in engine.submit_score(job).result(timeout=240)]


def vector(result: Score, *, hidden: bool) -> Logits:
    assert (result.hidden is not None) is hidden
    return result.logits if result.hidden is None else np.concatenate([result.logits, result.hidden])


def alone(path: Path, *, states: int, tails: int, longest: int, **changes: object) -> tuple[Case, Alone]:
    """Each decision by itself, in an engine that keeps nothing between requests."""
    engine = start_engine(settings(path, reuse_prefixes=False, **changes))
    try:
        case = make_case(engine, states=states, tails=tails, longest=longest)
        found = {
            (order, s, t): score(engine, case, s, [t], order=order)[0]
            for order in ORDERS
            for s in range(states)
            for t in range(tails)
        }
    finally:
        engine.close(timeout_s=1)
    return case, found


class Chatter:
    """Chats that run until stopped, so that decisions always have company."""

    def __init__(self, engine: LlamaEngine) -> None:
        self._engine = engine
        self._stop = threading.Event()
        self.finished = 0
        self.failures: list[Exception] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Chatter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(120)

    def _run(self) -> None:
        rng = random.Random(3)
        while not self._stop.is_set():
            prompt = tuple(self._engine.encode([Piece(text(rng, rng.randint(10, 120)))], start=True))
            over = threading.Event()

            def take(event: Event, over: threading.Event = over) -> None:
                if isinstance(event, Failed):
                    self.failures.append(event.problem)
                if isinstance(event, Done | Failed):
                    over.set()

            job = GenerationJob(
                prompt=prompt,
                sampling=Sampling(max_tokens=20, seed=1),
                deadline=time.monotonic() + 240,
                n=rng.randint(1, 3),
            )
            cancel = self._engine.submit_generation(job, take)
            if not over.wait(timeout=0.4 if rng.random() < 0.3 else 120):
                cancel()
            self.finished += 1


def in_company(engine: LlamaEngine, case: Case, expected: Alone, *, requests: int, seed: int) -> tuple[int, list[str]]:
    """Ask ``requests`` random requests from many clients; how many vectors were compared, and which differed."""
    rng = random.Random(seed)
    asked = []
    for _ in range(requests):
        state = rng.randrange(len(case.states))
        tails = rng.sample(range(len(case.tails)), rng.choice((1, 1, 2, len(case.tails))))
        asked.append((rng.choice(ORDERS), state, tails, rng.choice(("", "ann", "bob"))))

    def ask(request: tuple[str, int, list[int], str]) -> list[str]:
        order, state, tails, caller = request
        results = score(engine, case, state, tails, order=order, caller=caller)
        return [
            f"{order}, state {state}, question {t} of {tails}: {np.abs(row - expected[order, state, t]).max():.3g}"
            for t, row in zip(tails, results, strict=True)
            if not np.array_equal(row, expected[order, state, t])
        ]

    with ThreadPoolExecutor(CLIENTS) as pool:
        wrong = [line for lines in pool.map(ask, asked) for line in lines]
    return sum(len(tails) for _, _, tails, _ in asked), wrong


@pytest.fixture(scope="module", params=KINDS)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    kind = request.param
    return kind, tiny_models.write(kind, tmp_path_factory.mktemp("tiny") / f"{kind}.gguf")


@pytest.fixture(scope="module")
def expected(tiny: tuple[str, Path]) -> tuple[Case, Alone]:
    return alone(tiny[1], states=6, tails=5, longest=150)


@pytest.fixture(scope="module")
def engine(tiny: tuple[str, Path]) -> Iterator[LlamaEngine]:
    engine = start_engine(settings(tiny[1], chats=3))
    engine._executor.prefixes._capacity = 200_000  # a handful of prefixes fit, so that eviction is the rule
    yield engine
    engine.close(timeout_s=1)


def test_the_probe_knows_the_memory_and_promises_exactness(tiny: tuple[str, Path], engine: LlamaEngine) -> None:
    probe = engine.identity.probe
    assert probe.memory == KINDS[tiny[0]]
    assert probe.exact
    assert probe.prefix_sharing
    assert probe.noise_floor == 0.0
    assert probe.comparisons == 6


def test_the_decisions_are_distinct(expected: tuple[Case, Alone]) -> None:
    """Equality below would mean nothing if the vectors were all the same."""
    for wanted in ORDERS:
        vectors = [row for (order, _, _), row in expected[1].items() if order == wanted]
        assert all(np.isfinite(v).all() for v in vectors)
        # A random recurrent model forgets what lies far back, so some of its vectors may be equal.
        assert len({v.tobytes() for v in vectors}) > len(vectors) // 2


def test_equal_alone_reordered_and_with_a_reused_prefix(engine: LlamaEngine, expected: tuple[Case, Alone]) -> None:
    case, alone_logits = expected
    everyone = list(range(len(case.tails)))
    for order, tails in itertools.product(ORDERS, (everyone, everyone[::-1], [2], everyone[1:])):
        for state in range(len(case.states)):
            for tail, row in zip(tails, score(engine, case, state, tails, order=order), strict=True):
                assert np.array_equal(row, alone_logits[order, state, tail]), (order, state, tail, tails)
    assert engine.counters.prefix_hits > 0
    assert engine.counters.prefix_evictions > 0


def test_equal_under_32_clients_and_chats(engine: LlamaEngine, expected: tuple[Case, Alone]) -> None:
    case, alone_logits = expected
    with Chatter(engine) as chatter:
        compared, wrong = in_company(engine, case, alone_logits, requests=200, seed=11)
        while not chatter.finished:
            time.sleep(0.01)
    assert compared >= 200
    assert not wrong, f"{len(wrong)} of {compared} differ: {wrong[:5]}"
    assert not chatter.failures
    assert engine.counters.prefix_evictions > 10
    assert engine.counters.generated_tokens > 0


def test_a_chat_is_not_corrupted_by_decisions(engine: LlamaEngine, expected: tuple[Case, Alone]) -> None:
    """A greedy chat by itself, and the same chat while decisions run between all its steps."""
    case, alone_logits = expected

    def chat() -> list[Event]:
        events: list[Event] = []
        over = threading.Event()

        def take(event: Event) -> None:
            events.append(event)
            if isinstance(event, Done | Failed):
                over.set()

        prompt = tuple(engine.encode([Piece(text(random.Random(5), 40))], start=True))
        sampling = Sampling(max_tokens=30, temperature=0, top_logprobs=3)
        engine.submit_generation(GenerationJob(prompt=prompt, sampling=sampling, deadline=time.monotonic() + 240), take)
        assert over.wait(240)
        return [event for event in events if not isinstance(event, Done)]

    quiet = chat()
    with ThreadPoolExecutor(1) as pool:
        busy = pool.submit(in_company, engine, case, alone_logits, requests=60, seed=5)
        beside = chat()
        assert not busy.result()[1]
    assert beside == quiet


def test_equal_without_prefix_sharing(tiny: tuple[str, Path], expected: tuple[Case, Alone]) -> None:
    """Where the probe found no sharing, everything is recomputed, with the same bits."""
    case, alone_logits = expected
    engine = start_engine(settings(tiny[1], probe=False))
    try:
        assert not engine.identity.probe.prefix_sharing
        compared, wrong = in_company(engine, case, alone_logits, requests=12, seed=2)
        assert compared >= 12
        assert not wrong
        assert engine.counters.reused_tokens == 0
    finally:
        engine.close(timeout_s=1)


@pytest.mark.timeout(900)
def test_equal_on_the_embedded_model(gemma: Path) -> None:
    """The same on a real sliding-window model, with states longer than its window of 512."""
    changes = {"context_tokens": 768, "batch_tokens": 256, "threads": 2}
    case, alone_logits = alone(gemma, states=3, tails=2, longest=520, **changes)
    engine = start_engine(settings(gemma, chats=2, **changes))
    try:
        assert engine.identity.probe.memory == "swa"
        assert engine.identity.probe.exact
        with Chatter(engine) as chatter:
            compared, wrong = in_company(engine, case, alone_logits, requests=10, seed=1)
        assert compared >= 10
        assert not wrong, f"{len(wrong)} of {compared} differ: {wrong[:5]}"
        assert not chatter.failures
    finally:
        engine.close(timeout_s=1)

"""Callers without a name share a part of the places beside callers with a name. On the real engine."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import tiny_models
from steelyard_runtime.engine.core import LlamaEngine
from steelyard_runtime.engine.interface import (
    Done,
    Event,
    Failed,
    GenerationJob,
    Piece,
    Sampling,
    ScoreJob,
    ScorePrompt,
)
from steelyard_runtime.engine.places import NAMED_LATELY_S, UNNAMED, ChatPlaces, unnamed_part
from steelyard_runtime.engine.start import start_engine
from steelyard_runtime.errors import Problem
from steelyard_runtime.settings import load_settings

WAIT_S = 60


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.write("llama", tmp_path_factory.mktemp("tiny") / "llama.gguf")


@pytest.fixture
def engine(model: Path) -> Iterator[LlamaEngine]:
    engine = start_engine(load_settings(model=str(model), threads=1, context_tokens=512, chats=3, queue_limit=4))
    yield engine
    engine.close(timeout_s=0)


STEPS = 6
"""Decodes after which every chat that has a place has begun."""


class Chats:
    """Chats that are begun together: the engine's thread is held until all are in the queue."""

    def __init__(self, engine: LlamaEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        self._engine = engine
        self.order: list[str] = []
        self.failed: list[Exception] = []
        self._over: dict[str, threading.Event] = {}
        self._held = threading.Event()
        feed = engine._loop._start_chats

        def feed_when_told() -> None:
            assert self._held.wait(WAIT_S)
            feed()

        monkeypatch.setattr(engine._loop, "_start_chats", feed_when_told)
        step, self._steps, self._begun = engine._executor.chats.step, 0, threading.Event()
        self._go_on = threading.Event()
        self._go_on.set()

        def counted(**more: Any) -> None:
            step(**more)
            self.most_active = max(self.most_active, engine._executor.chats.active)
            self._steps += 1
            if self._steps == STEPS:
                self._begun.set()
                assert self._go_on.wait(WAIT_S)

        self.most_active = 0
        monkeypatch.setattr(engine._executor.chats, "step", counted)

    def hold_when_begun(self) -> None:
        """Let the chats in the queue begin, and hold the engine then; ``wait`` lets it go on."""
        self._go_on.clear()
        self._held.set()
        assert self._begun.wait(WAIT_S)

    def begin(self, name: str, *, caller: str = "", tokens: int, n: int = 1) -> Any:
        engine, over = self._engine, self._over.setdefault(name, threading.Event())
        word = engine.encode([Piece("word")], start=False)[0]

        def on_event(event: Event) -> None:
            if isinstance(event, Done | Failed):
                self.order.append(name)
                self.failed += [event.problem] if isinstance(event, Failed) else []
                over.set()

        return engine.submit_generation(
            GenerationJob(
                prompt=tuple(engine.encode([Piece("word")], start=True)),
                sampling=Sampling(max_tokens=tokens, temperature=0.0, logit_bias=((word, 100.0),)),
                deadline=time.monotonic() + WAIT_S,
                n=n,
                caller=caller,
            ),
            on_event,
        )

    def wait(self) -> list[str]:
        self._held.set()
        self._go_on.set()
        assert all(over.wait(WAIT_S) for over in self._over.values())
        assert not self.failed
        return self.order


@pytest.fixture
def chats(engine: LlamaEngine, monkeypatch: pytest.MonkeyPatch) -> Chats:
    return Chats(engine, monkeypatch)


def test_without_callers_with_a_name_the_others_hold_every_place(chats: Chats) -> None:
    for number in range(3):
        chats.begin(f"unnamed {number}", tokens=20)
    chats.wait()
    assert chats.most_active == 3


def test_the_first_caller_with_a_name_has_the_next_free_place(chats: Chats) -> None:
    for name, tokens in (("short", 20), ("long", 400), ("longer", 440)):
        chats.begin(name, tokens=tokens)
    chats.hold_when_begun()
    chats.begin("another", tokens=2)
    chats.begin("ann", caller="ann", tokens=2)
    assert chats.wait() == ["short", "ann", "long", "another", "longer"]


def test_long_chats_without_a_name_leave_a_place_to_a_caller_with_one(chats: Chats, engine: LlamaEngine) -> None:
    engine._scheduler.chat_places.note("ann")
    for number in range(3):
        chats.begin(f"unnamed {number}", tokens=400)
    chats.hold_when_begun()
    chats.begin("ann", caller="ann", tokens=2)
    assert chats.wait()[0] == "ann"


def test_many_choices_without_a_name_leave_a_place_too(chats: Chats, engine: LlamaEngine) -> None:
    engine._scheduler.chat_places.note("ann")
    chats.begin("unnamed", tokens=100, n=9)
    chats.hold_when_begun()
    chats.begin("ann", caller="ann", tokens=2)
    assert chats.wait() == ["ann", "unnamed"]


def test_named_callers_may_hold_every_place(chats: Chats) -> None:
    for name in ("ann", "bob", "cid"):
        chats.begin(name, caller=name, tokens=20)
    chats.wait()
    assert chats.most_active == 3


def test_the_queue_keeps_room_for_named_callers(chats: Chats) -> None:
    for number in range(3):
        chats.begin(f"unnamed {number}", tokens=2)
    with pytest.raises(Problem, match="without a name"):
        chats.begin("refused", tokens=2)
    chats._over.pop("refused")
    chats.begin("ann", caller="ann", tokens=2)
    assert sorted(chats.wait()) == ["ann", "unnamed 0", "unnamed 1", "unnamed 2"]


def test_a_chat_without_a_name_that_is_cancelled_frees_its_part(chats: Chats, engine: LlamaEngine) -> None:
    engine._scheduler.chat_places.note("ann")
    cancels = [chats.begin(f"unnamed {number}", tokens=400) for number in range(2)]
    for cancel in cancels:
        cancel()
    chats._over.clear()
    chats.begin("unnamed last", tokens=2)
    assert chats.wait() == ["unnamed last"]


def test_every_mix_of_callers_and_choices_is_finished(chats: Chats, engine: LlamaEngine) -> None:
    chats._held.set()
    engine._scheduler.admission._limit = engine._scheduler.admission._unnamed_limit = 100
    with ThreadPoolExecutor(4) as pool:
        for number in range(24):
            caller = ("", "ann", "bob")[number % 3]
            pool.submit(chats.begin, f"{number}", caller=caller, tokens=1 + number % 5, n=1 + number % 4)
    assert len(chats.wait()) == 24
    left = engine._scheduler.admission
    assert left.tokens == left.chat_tokens == left.unnamed_tokens == left.unnamed_chat_tokens == 0


def test_places_are_kept_while_a_caller_with_a_name_was_seen_lately() -> None:
    now = [1000.0]
    places = ChatPlaces(unnamed_share=0.75, clock=lambda: now[0])
    places.note(UNNAMED)
    assert places.for_unnamed(3) == 3
    places.note("ann")
    now[0] += NAMED_LATELY_S
    assert places.for_unnamed(3) == 2
    places.note(UNNAMED)
    now[0] += 1
    assert places.for_unnamed(3) == 3
    places.note("ann")
    assert [places.for_unnamed(count) for count in (1, 2, 3)] == [1, 1, 2]


def test_a_decision_or_a_refused_request_of_a_caller_with_a_name_counts(engine: LlamaEngine) -> None:
    places, tokens = engine._scheduler.chat_places, tuple(engine.encode([Piece("word")], start=True))
    assert places.for_unnamed(3) == 3
    engine.start_draining()
    prompt = ScorePrompt(shared=(), tail=tokens)
    with pytest.raises(Problem):
        engine.submit_score(ScoreJob(prompts=(prompt,), deadline=time.monotonic() + WAIT_S, caller="ann"))
    assert places.for_unnamed(3) == 2


@pytest.mark.parametrize(
    ("places", "share", "part"), [(1, 0.75, 1), (2, 0.75, 1), (3, 0.75, 2), (256, 0.75, 192), (3, 1, 3), (10, 0.9, 9)]
)
def test_the_part_is_rounded_down_to_at_least_one(places: int, share: float, part: int) -> None:
    assert unnamed_part(places, share=share) == part

"""Requests to a real engine on a tiny model, their events, and doors that hold the engine's thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from steelyard_runtime.engine.core import LlamaEngine
from steelyard_runtime.engine.interface import (
    Delta,
    Done,
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
from steelyard_runtime.engine.llama import Context
from steelyard_runtime.engine.start import start_engine
from steelyard_runtime.engine.turns import Turns
from steelyard_runtime.errors import Problem
from steelyard_runtime.settings import load_settings

WAIT_S = 60


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


def problem_of(call: Callable[[], Any]) -> Problem:
    with pytest.raises(Problem) as caught:
        call()
    return caught.value


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


def generating(engine: LlamaEngine) -> Collector:
    """A chat that does not end by itself and has begun to answer."""
    token = engine.encode([Piece("word")], start=False)[0]
    chat = Collector(engine, "word", max_tokens=480, logit_bias=((token, 100.0),))
    assert chat.begun.wait(WAIT_S)
    return chat

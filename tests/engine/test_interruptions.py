"""Decisions beside chats, and in the middle of their decodes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine_requests import (
    WAIT_S,
    Collector,
    Gate,
    Middle,
    generating,
    job,
    noted,
    patch_decodes,
    started,
)
from steelyard_runtime.engine import chats
from steelyard_runtime.engine.core import LlamaEngine
from steelyard_runtime.engine.llama import Context, LlamaError
from steelyard_runtime.engine.segments import TILE
from steelyard_runtime.engine.turns import Turns
from steelyard_runtime.errors import Kind, Problem


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

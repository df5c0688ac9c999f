"""The engine's health, its draining and its end."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from engine_requests import (
    WAIT_S,
    Collector,
    Gate,
    job,
    patch_decodes,
    problem_of,
    started,
)
from steelyard_runtime.engine.core import LlamaEngine
from steelyard_runtime.engine.llama import LlamaError
from steelyard_runtime.errors import Kind, Problem


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

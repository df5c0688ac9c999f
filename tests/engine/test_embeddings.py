"""Embeddings on the engine."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import tiny_models
from engine_requests import (
    WAIT_S,
    Collector,
    Gate,
    job,
    problem_of,
    started,
)
from steelyard_runtime.engine.core import LlamaEngine
from steelyard_runtime.engine.interface import (
    EmbeddingJob,
    Piece,
)
from steelyard_runtime.engine.llama import Model
from steelyard_runtime.errors import Kind


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

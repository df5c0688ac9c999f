"""Engines on a tiny model: one for a module, one for a test that overloads, stops or breaks it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tiny_models
from engine_requests import (
    Gate,
    Middle,
    started,
)
from steelyard_runtime.engine.core import LlamaEngine


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.write("llama", tmp_path_factory.mktemp("tiny") / "llama.gguf")


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


@pytest.fixture
def gate(engine: LlamaEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(engine, monkeypatch)
    yield gate
    gate.open()


@pytest.fixture
def middle(engine: LlamaEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Middle]:
    middle = Middle(engine, monkeypatch)
    yield middle
    middle.open()

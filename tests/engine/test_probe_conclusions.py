"""What the start finds out, and what the engine makes of it: exactness is worth more than a saved prefix."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tiny_models
from steelyard_runtime.engine import probe
from steelyard_runtime.engine.llama import Context, ContextShape, opened
from steelyard_runtime.engine.probe import Finding, conclude, examine
from steelyard_runtime.engine.start import start_engine
from steelyard_runtime.settings import load_settings

SHAPE = ContextShape(sequence_tokens=256, sequences=2, batch_tokens=64, threads=1)


@pytest.fixture(scope="module", params=["llama", "gemma3", "qwen35", "mamba2"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.write(request.param, tmp_path_factory.mktemp("tiny") / f"{request.param}.gguf")


def test_snapshots_are_used_when_they_change_nothing() -> None:
    found = conclude(Finding(recomputed=0.0, shared=0.0, comparisons=6), memory="hybrid")
    assert (found.prefix_sharing, found.exact, found.noise_floor, found.comparisons) == (True, True, 0.0, 6)


def test_snapshots_that_change_logits_are_not_used() -> None:
    found = conclude(Finding(recomputed=0.0, shared=0.25, comparisons=6), memory="hybrid")
    assert (found.prefix_sharing, found.exact, found.noise_floor) == (False, True, 0.0)
    assert "0.25" in found.note


def test_noise_without_sharing_is_stated() -> None:
    found = conclude(Finding(recomputed=0.5, shared=0.7, comparisons=6), memory="dense")
    assert (found.prefix_sharing, found.exact, found.noise_floor) == (False, False, 0.5)


def test_what_was_not_tried_is_not_used() -> None:
    found = conclude(Finding(recomputed=0.0, shared=None, comparisons=2), memory="recurrent", note="exit status -6")
    assert (found.prefix_sharing, found.exact, found.comparisons) == (False, True, 2)
    assert found.note == "exit status -6"


def test_every_kind_of_memory_is_exact(model: Path) -> None:
    with opened(model, SHAPE) as context:
        assert examine(context, share=True) == Finding(recomputed=0.0, shared=0.0, comparisons=6)


def test_a_snapshot_that_differs_is_seen(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build whose snapshots lose something: here, the other sequence gets what belongs to another text."""
    restore = Context.restore

    def forgetful(context: Context, snapshot: object, sequence: int) -> None:
        from steelyard_runtime.engine.segments import evaluate

        if sequence == 1:
            evaluate(context, [5] * probe.PREFIX_TOKENS, sequence=sequence, position=0, output=False)
        else:
            restore(context, snapshot, sequence)

    with opened(model, SHAPE) as context:
        monkeypatch.setattr(Context, "restore", forgetful)
        found = examine(context, share=True)
    assert found.recomputed == 0.0 or context.model.windowed
    assert found.shared
    assert not conclude(found, memory="dense").prefix_sharing


def test_the_start_reports_its_stages_and_leaves_nothing(model: Path) -> None:
    engine = start_engine(load_settings(model=str(model), threads=1, context_tokens=256))
    try:
        assert set(engine.start_seconds) == {"library", "trial", "load", "context", "hash", "self_test"}
        assert all(seconds >= 0 for seconds in engine.start_seconds.values())
        counters = engine.counters
        assert (counters.decodes, counters.decoded_tokens, counters.prefixes) == (0, 0, 0)
    finally:
        engine.close(timeout_s=0)


def test_logits_that_are_no_numbers_are_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Context, "_row", lambda self, index: np.full(self.vocabulary_size, np.nan, np.float32))
    with opened(model, SHAPE) as context, pytest.raises(Exception, match="no finite numbers"):
        examine(context, share=True)

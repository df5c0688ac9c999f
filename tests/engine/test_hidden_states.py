"""The hidden state of a prompt's last position: the very vector that the logits are made from."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import gguf
import numpy as np
import pytest

import tiny_models
from steelyard_runtime.engine.core import LlamaEngine
from steelyard_runtime.engine.interface import HIDDEN_TAIL_TOKENS, Piece, Score, ScoreJob, ScorePrompt, Segment
from steelyard_runtime.engine.llama import ContextShape, LlamaError, Run, opened
from steelyard_runtime.engine.start import start_engine
from steelyard_runtime.settings import load_settings

KINDS = ("llama", "gemma3", "qwen35", "mamba2")


@pytest.fixture(scope="module", params=KINDS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.write(request.param, tmp_path_factory.mktemp("hidden") / f"{request.param}.gguf")


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[LlamaEngine]:
    engine = start_engine(load_settings(model=str(model), threads=1, context_tokens=512, batch_tokens=64))
    yield engine
    engine.close(timeout_s=1)


def prompts(engine: LlamaEngine, tails: Sequence[int], *, hidden: bool = True) -> tuple[ScorePrompt, ...]:
    tokens = engine.encode([Piece("the order and the refund of the ticket is yes no false state " * 3)], start=True)
    shared = (Segment(tuple(tokens[:9])), Segment(tuple(tokens[9:14]), private=True))
    return tuple(ScorePrompt(shared=shared, tail=tuple(tokens[14 : 14 + n]), hidden=hidden) for n in tails)


def scores(engine: LlamaEngine, asked: tuple[ScorePrompt, ...]) -> list[Score]:
    return engine.submit_score(ScoreJob(prompts=asked, deadline=time.monotonic() + 120)).result(120)


def output_matrix(path: Path) -> np.ndarray:
    """What turns a hidden state into logits, shape (vocabulary, width)."""
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    found = tensors.get("output.weight", tensors["token_embd.weight"])
    return gguf.dequantize(found.data, found.tensor_type)


def test_the_logits_are_the_output_layer_of_the_hidden_state(model: Path, engine: LlamaEngine) -> None:
    for score in scores(engine, prompts(engine, [1, 3, 4, 7, 20])):
        assert score.hidden is not None
        assert score.hidden.shape == (engine.identity.model.embedding_size,)
        expected = output_matrix(model) @ score.hidden
        assert np.abs(expected - score.logits).max() < 0.05 * np.abs(score.logits).max()


def test_it_is_given_to_whoever_asks_for_it(engine: LlamaEngine) -> None:
    asked = (*prompts(engine, [3]), *prompts(engine, [3], hidden=False), *prompts(engine, [9]))
    first, plain, other = scores(engine, asked)
    assert plain.hidden is None
    assert first.hidden is not None
    assert other.hidden is not None
    assert not np.array_equal(first.hidden, other.hidden)
    assert np.abs(first.logits - plain.logits).max() < 0.3  # in a decode of another number of tokens


def test_every_token_is_counted_once(engine: LlamaEngine) -> None:
    before = engine.counters.decoded_tokens
    (score,) = scores(engine, prompts(engine, [11]))
    assert score.tokens.prompt == 25
    assert score.tokens.evaluated + score.tokens.reused == 25
    assert engine.counters.decoded_tokens - before == score.tokens.evaluated


def test_prompts_that_share_a_decode_keep_their_order(tmp_path: Path) -> None:
    path = tiny_models.write("llama", tmp_path / "llama.gguf")
    values = {"model": str(path), "threads": 1, "context_tokens": 512, "batch_tokens": 64}
    alone, together = start_engine(load_settings(**values)), start_engine(load_settings(**values, decisions_together=4))
    try:
        asked = [
            prompts(together, [5 + n], hidden=hidden)[0] for n, hidden in enumerate([True, False, True, True, False])
        ]
        for prompt, found in zip(asked, scores(together, tuple(asked)), strict=True):
            (expected,) = scores(alone, (prompt,))
            assert np.abs(found.logits - expected.logits).max() < 0.3
            assert (found.hidden is None) is not prompt.hidden
            if found.hidden is not None:
                assert np.abs(found.hidden - expected.hidden).max() < 0.3
    finally:
        alone.close(timeout_s=1)
        together.close(timeout_s=1)


def test_more_tokens_than_there_is_room_for_are_refused(tmp_path: Path) -> None:
    """llama.cpp would end the process."""
    path = tiny_models.write("llama", tmp_path / "llama.gguf")
    with opened(path, ContextShape(sequence_tokens=64, sequences=1, batch_tokens=32, threads=1)) as context:
        with pytest.raises(LlamaError, match="5 tokens are too many for hidden states") as refused:
            context.decode_hidden([Run(range(5, 6 + HIDDEN_TAIL_TOKENS), 0, 0, True)])
        assert refused.value.unchanged
        ((logits, hidden),) = context.decode_hidden([Run(range(5, 5 + HIDDEN_TAIL_TOKENS), 0, 0, True)])
    assert np.isfinite(logits).all()
    assert np.isfinite(hidden).all()

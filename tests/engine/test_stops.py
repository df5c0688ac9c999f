"""A decode is stopped in the middle, other contexts are used there, and nothing of it shows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import tiny_models
from steelyard_runtime.engine.interface import Logits
from steelyard_runtime.engine.llama import Context, ContextShape, LlamaError, Model, Run

SHAPE = ContextShape(sequence_tokens=256, sequences=2, batch_tokens=128, threads=1)
CHUNK = [(7 * index) % 200 + 5 for index in range(100)]
QUESTION = [(11 * index) % 200 + 5 for index in range(30)]


@pytest.fixture(scope="module", params=tiny_models.SCORING_KINDS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    model = Model(tiny_models.write(request.param, tmp_path_factory.mktemp("stops") / "model.gguf"), gpu_layers=0)
    yield model
    model.close()


@pytest.fixture
def pair(model: Model) -> Iterator[tuple[Context, Context]]:
    """One whose decodes can be stopped, and another one."""
    contexts = Context(model, SHAPE, interruptible=True), Context(model, SHAPE)
    yield contexts
    for context in contexts:
        context.close()


def evaluated(context: Context, tokens: list[int]) -> Logits:
    (row,) = context.decode([Run(tokens, 0, 0, True)])
    context.clear(0)
    return row


def test_decodes_inside_a_decode_have_the_bits_that_they_have_alone(pair: tuple[Context, Context]) -> None:
    stopped, other = pair
    alone, chunk_alone = evaluated(other, QUESTION), evaluated(other, CHUNK)
    inside: list[Logits] = []
    (chunk,) = stopped.decode([Run(CHUNK, 0, 0, True)], between=lambda: inside.append(evaluated(other, QUESTION)))
    assert len(inside) > 5
    assert all(np.array_equal(row, alone) for row in inside)
    assert np.abs(chunk - chunk_alone).max() < 1e-3


def test_nothing_is_called_where_nobody_asked_or_the_context_cannot_stop(pair: tuple[Context, Context]) -> None:
    stopped, other = pair
    calls: list[int] = []
    other.decode([Run(CHUNK, 0, 0, True)], between=lambda: calls.append(1))
    stopped.decode([Run(CHUNK, 0, 0, True)])
    assert not calls


@pytest.mark.parametrize("error", [LlamaError("llama_decode returned -3"), KeyboardInterrupt()])
def test_what_fails_in_the_middle_is_raised_and_ends_the_decode(
    pair: tuple[Context, Context], error: BaseException
) -> None:
    stopped, _ = pair
    calls: list[int] = []

    def fail() -> None:
        calls.append(1)
        raise error

    # llama.cpp evaluates these two in two parts, and goes on with the second when the first has ended.
    with pytest.raises(type(error)):
        stopped.decode([Run(CHUNK[:1], 1, 0, True), Run(CHUNK, 0, 0, True)], between=fail)
    assert calls == [1]
    stopped.clear(0)
    stopped.clear(1)
    assert np.isfinite(evaluated(stopped, CHUNK)).all()
    assert calls == [1]

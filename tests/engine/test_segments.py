"""How a segment is evaluated: what fills its last decode is seen by nobody."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import tiny_models
from switchyard_runtime.engine.interface import Logits
from switchyard_runtime.engine.llama import Context, ContextShape, Run, opened
from switchyard_runtime.engine.segments import ROWS, evaluate

TOKENS = [(7 * index) % 200 + 5 for index in range(90)]


@pytest.fixture(scope="module", params=tiny_models.SCORING_KINDS)
def context(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Context]:
    path = tiny_models.write(request.param, tmp_path_factory.mktemp("segments") / "model.gguf")
    with opened(path, ContextShape(sequence_tokens=256, sequences=1, batch_tokens=64, threads=1)) as context:
        yield context


def rows_of(context: Context, monkeypatch: pytest.MonkeyPatch, tokens: int, *, position: int = 0) -> list[int]:
    """How many tokens each decode of a segment had."""
    counts: list[int] = []
    decode = context.decode

    def counted(runs: list[Run]) -> list[Logits]:
        counts.append(sum(len(run.tokens) for run in runs))
        return decode(runs)

    with monkeypatch.context() as patched:
        patched.setattr(context, "decode", counted)
        if position:
            evaluate(context, [5] * position, sequence=0, position=0, output=False)
            counts.clear()
        evaluate(context, TOKENS[:tokens], sequence=0, position=position, output=True)
    context.clear(0)
    return counts


@pytest.mark.parametrize("tokens", [2, 3, 6, 7, 58, 62, 90])
def test_filled_rows_change_nothing_but_the_last_bits(context: Context, tokens: int) -> None:
    segment = TOKENS[:tokens]
    filled = evaluate(context, segment, sequence=0, position=0, output=True)
    context.clear(0)
    start = (tokens - 1) // 64 * 64
    missing = -(tokens - start) % ROWS

    def with_filling(filler: list[int]) -> Logits:
        if start:
            context.decode([Run(segment[:start], 0, 0, False)])
        runs = [Run(segment[start:], 0, start, True)]
        runs += [Run(filler, 0, tokens, False)] if filler else []
        (logits,) = context.decode(runs)
        context.clear(0)
        return logits

    for filler in ([9] * missing, [100 + index for index in range(missing)]):
        assert np.array_equal(with_filling(filler), filled)
    assert np.abs(with_filling([]) - filled).max() < 0.3


def test_rows_are_filled_when_at_most_half_are_missing(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [rows_of(context, monkeypatch, n) for n in (4, 5, 6, 7, 8)] == [[4], [5], [8], [8], [8]]
    assert rows_of(context, monkeypatch, 90) == [64, 28]


def test_nothing_is_filled_beyond_the_batch_or_the_sequence(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rows_of(context, monkeypatch, 64) == [64]
    assert rows_of(context, monkeypatch, 6, position=250) == [6]
    assert rows_of(context, monkeypatch, 6, position=248) == [8]


def test_a_segment_that_others_follow_is_never_filled(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    decode = context.decode
    monkeypatch.setattr(context, "decode", lambda runs: counts.append(len(runs)) or decode(runs))
    evaluate(context, TOKENS[:6], sequence=0, position=0, output=False)
    context.clear(0)
    assert counts == [1]

"""How a segment is evaluated: what fills its last decode is seen by nobody."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import numpy as np
import pytest

import tiny_models
from steelyard_runtime.engine.interface import Logits
from steelyard_runtime.engine.llama import Context, ContextShape, Run, opened
from steelyard_runtime.engine.segments import DEEP, ROWS, TILE, evaluate

TOKENS = [(7 * index) % 200 + 5 for index in range(90)]


@pytest.fixture(scope="module", params=tiny_models.SCORING_KINDS)
def context(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Context]:
    path = tiny_models.write(request.param, tmp_path_factory.mktemp("segments") / "model.gguf")
    with opened(path, ContextShape(sequence_tokens=256, sequences=1, batch_tokens=64, threads=1)) as context:
        yield context


def rows_of(
    context: Context, monkeypatch: pytest.MonkeyPatch, tokens: Sequence[int], *, position: int = 0
) -> list[int]:
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
        evaluate(context, tokens, sequence=0, position=position, output=True)
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
    assert [rows_of(context, monkeypatch, TOKENS[:n]) for n in (4, 5, 6, 7, 8)] == [[4], [5], [8], [8], [8]]
    assert rows_of(context, monkeypatch, TOKENS[:90]) == [64, 28]


def test_nothing_is_filled_beyond_the_batch_or_the_sequence(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rows_of(context, monkeypatch, TOKENS[:64]) == [64]
    assert rows_of(context, monkeypatch, TOKENS[:6], position=250) == [6]
    assert rows_of(context, monkeypatch, TOKENS[:6], position=248) == [8]


def test_a_segment_that_others_follow_is_never_filled(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    decode = context.decode
    monkeypatch.setattr(context, "decode", lambda runs: counts.append(len(runs)) or decode(runs))
    evaluate(context, TOKENS[:6], sequence=0, position=0, output=False)
    context.clear(0)
    assert counts == [1]


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Context]]:
    """Contexts of each kind with more positions than where tiles begin to be filled."""
    with ExitStack() as stack:
        contexts = {}
        for kind in tiny_models.SCORING_KINDS:
            path = tiny_models.write(kind, tmp_path_factory.mktemp("deep") / "model.gguf")
            shape = ContextShape(sequence_tokens=DEEP + 256, sequences=1, batch_tokens=128, threads=1)
            contexts[kind] = stack.enter_context(opened(path, shape))
        yield contexts


@pytest.mark.parametrize(("tokens", "filled"), [(47, 48), (48, 64), (57, 64), (63, 64), (64, 64), (65, 65), (113, 113)])
def test_behind_a_long_beginning_tiles_are_filled(
    deep: dict[str, Context], monkeypatch: pytest.MonkeyPatch, tokens: int, filled: int
) -> None:
    segment = [5 + n % 200 for n in range(tokens)]
    rows = -(-tokens // ROWS) * ROWS if -tokens % ROWS <= ROWS // 2 else tokens
    for context in deep.values():
        expected = filled if context.model.memory == "dense" else rows
        assert rows_of(context, monkeypatch, segment, position=DEEP) == [expected]
        assert rows_of(context, monkeypatch, segment, position=DEEP - 1) == [rows]


def test_a_tile_is_not_filled_beyond_the_sequence(deep: dict[str, Context], monkeypatch: pytest.MonkeyPatch) -> None:
    end = deep["llama"].shape.sequence_tokens
    assert rows_of(deep["llama"], monkeypatch, [5] * 60, position=end - 61) == [60]
    assert rows_of(deep["llama"], monkeypatch, [5] * 60, position=end - TILE) == [64]


def test_a_filled_tile_changes_nothing_but_the_last_bits(deep: dict[str, Context]) -> None:
    context, segment = deep["llama"], [(7 * index) % 200 + 5 for index in range(50)]

    def logits(filler: list[int] | None) -> Logits:
        evaluate(context, [(3 * index) % 200 + 5 for index in range(DEEP)], sequence=0, position=0, output=False)
        if filler is None:
            found = evaluate(context, segment, sequence=0, position=DEEP, output=True)
            assert found is not None
        else:
            runs = [Run(segment, 0, DEEP, True)]
            runs += [Run(filler, 0, DEEP + len(segment), False)] if filler else []
            (found,) = context.decode(runs)
        context.clear(0)
        return found

    filled = logits(None)
    assert np.array_equal(filled, logits([9] * 14))
    assert np.abs(filled - logits([])).max() < 0.3

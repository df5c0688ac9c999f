"""Readouts that are tried: names by the product of their tokens' probabilities, and every way on a real engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tiny_models
from benchmarks.decisions import Task
from benchmarks.letters_asked import score
from benchmarks.readouts_tried import WAYS, Asked, area_under_curve, markdown, name_logits, row_of
from steelyard.decisions.features import EngineReader
from steelyard_runtime.engine.interface import Engine, Piece, ScorePrompt, Segment
from steelyard_runtime.engine.start import start_engine
from steelyard_runtime.scoring.options_as_cases import WORDING
from steelyard_runtime.scoring.wordings import state_prompt
from steelyard_runtime.settings import load_settings


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path: Path = tiny_models.write("llama", tmp_path_factory.mktemp("model") / "tiny.gguf")
    started = start_engine(load_settings(model=str(path), threads=1, context_tokens=1024, chats=1))
    yield started
    started.close(timeout_s=1)


def task(options: tuple[str, ...]) -> Task:
    labels = np.array([0, 1, 0], np.int64)
    texts = ("My card is lost.", "Where is my invoice?", "Somebody took it.")
    return Task(name="a", question="Which?", options=options, texts={"fit": texts}, labels={"fit": labels})


def test_a_name_is_as_likely_as_its_tokens_one_after_the_other(engine: Engine) -> None:
    names = [tuple(engine.encode([Piece(text)], start=False)) for text in ("lost card", "lost cards now", "invoice")]
    prompt = state_prompt(WORDING, "My card is lost.")
    (found,), _ = name_logits(engine, [prompt], names)
    start = engine.encode(prompt.before, start=True)
    rest = [*engine.encode(prompt.shared, start=False), *engine.encode(prompt.rest, start=False)]
    for name, logarithm in zip(names, found, strict=True):
        expected = 0.0
        for at, token in enumerate(name):
            tail = (*rest, *name[:at])
            (one,) = score(engine, [ScorePrompt(shared=(Segment(tuple(start)),), tail=tail)])
            weights = np.exp(one.logits.astype(np.float64) - float(one.logits.max()))
            expected += float(np.log(weights[token] / weights.sum()))
        assert logarithm == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize("options", [("lost card", "invoice", "none of these"), ("yes", "no")])
def test_every_way_answers_every_case(engine: Engine, options: tuple[str, ...]) -> None:
    asked = Asked(
        engine=engine, reader=EngineReader(engine, wording=WORDING.name, cache=None), task=task(options), cases=3
    )
    rows = [row_of(tried, asked.task.labels["fit"]) for way in WAYS.values() for tried in way(asked)]
    assert len({row.way for row in rows}) >= 18
    assert all(row.tokens > 0 and np.isfinite(row.log_loss) for row in rows)
    assert all((row.area is not None) == (len(options) == 2) for row in rows)
    assert len(markdown(rows).splitlines()) == 2 + len(rows)


def test_equal_margins_count_half() -> None:
    logits = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    assert area_under_curve(logits, np.array([0, 1, 1])) == 0.75

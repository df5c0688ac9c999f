"""Kept ends of prompts: given again as they were, and bounded."""

from __future__ import annotations

import numpy as np
import pytest

from steelyard_runtime.decision import TokenCounts
from steelyard_runtime.engine.interface import Piece, Score, ScorePrompt
from steelyard_runtime.scoring.strategy import Prompt
from steelyard_runtime.services.kept_ends import KeptEnds

SCORE = Score(
    logits=np.ones(100, np.float32),
    tokens=TokenCounts(prompt=2, evaluated=2, reused=0),
    queue_ms=1.0,
    engine_ms=2.0,
    hidden=np.arange(4, dtype=np.float32),
)
TOKENS = ScorePrompt(shared=(), tail=(1, 2), hidden=True)
ROOM = 4 * 4 + 2 * 8 + 1
"""Bytes of one end: its hidden state, its tokens, and a character."""


def prompt(text: str) -> Prompt:
    return Prompt((), (), (Piece(text),), private=False, kept=True)


def test_what_is_kept_is_told_as_reused() -> None:
    ends = KeptEnds()
    assert ends.get(prompt("a")) is None
    ends.put(prompt("a"), TOKENS, SCORE)
    end = ends.get(prompt("a"))
    assert end is not None
    assert end.tokens == TOKENS
    assert end.score.hidden is SCORE.hidden
    assert end.score.logits.size == 0
    assert end.score.tokens == TokenCounts(prompt=2, evaluated=0, reused=2)
    assert (end.score.queue_ms, end.score.engine_ms) == (0.0, 0.0)


def test_what_was_used_longest_ago_leaves() -> None:
    ends = KeptEnds(2 * ROOM)
    for text in ("a", "b", "a"):
        ends.put(prompt(text), TOKENS, SCORE)
    assert len(ends) == 2
    assert ends.get(prompt("b"))
    ends.put(prompt("c"), TOKENS, SCORE)
    assert [ends.get(prompt(text)) is not None for text in "abc"] == [False, True, True]
    KeptEnds(0).put(prompt("a"), TOKENS, SCORE)


def test_an_end_without_a_hidden_state_is_a_mistake() -> None:
    score = Score(logits=SCORE.logits, tokens=SCORE.tokens, queue_ms=0.0, engine_ms=0.0)
    with pytest.raises(ValueError, match="hidden state"):
        KeptEnds().put(prompt("a"), TOKENS, score)

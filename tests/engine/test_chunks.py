"""How a chat's prompt is cut while decisions come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard_runtime.engine.chunks import SHORTEST, SMALLER, TILE, Chunks
from steelyard_runtime.engine.meter import Meter


@given(
    tiled=st.floats(0, 1e6),
    small=st.floats(0, 1e6),
    budget_s=st.floats(0, 100),
    most=st.integers(1, 8192),
)
def test_a_chunk_is_whole_tiles_or_smaller_than_one(tiled: float, small: float, budget_s: float, most: int) -> None:
    size = Chunks(tiled, small).next(budget_s=budget_s, most=most)
    assert 1 <= size <= most
    assert size % TILE == 0 or size < TILE or size == most


@given(rate=st.floats(1, 1e5), budget_s=st.floats(0.01, 100))
def test_whole_tiles_fit_the_budget(rate: float, budget_s: float) -> None:
    size = Chunks(tiled=rate).next(budget_s=budget_s, most=8192)
    assert size < TILE or size / rate <= budget_s * (1 + 1e-9)


def test_it_begins_with_one_tile_and_grows_and_shrinks_with_the_measured_rate() -> None:
    chunks = Chunks()
    assert chunks.next(budget_s=0.5, most=256) == TILE
    chunks.took(TILE, 0.2)
    assert chunks.next(budget_s=0.5, most=256) == 2 * TILE
    chunks.took(2 * TILE, 0.9)  # deeper in the prompt
    assert chunks.next(budget_s=0.5, most=256) == TILE
    chunks.took(TILE, 0.6)
    small = chunks.next(budget_s=0.5, most=256)
    assert SHORTEST <= small < TILE
    chunks.took(small, small / 90)
    assert chunks.next(budget_s=0.5, most=256) == int(90 * 0.5 * SMALLER)


def test_a_small_chunk_is_never_smaller_than_the_shortest() -> None:
    assert Chunks(tiled=10.0, small=1.0).next(budget_s=0.1, most=256) == SHORTEST


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_a_clock_that_does_not_move_teaches_nothing(seconds: float) -> None:
    chunks = Chunks(100.0, 50.0)
    chunks.took(TILE, seconds)
    assert chunks == Chunks(100.0, 50.0)


def test_the_whole_prompt_is_counted() -> None:
    chunks = Chunks()
    chunks.took(TILE, 1.0)
    chunks.took(SHORTEST, 1.0)
    assert (chunks.tokens, chunks.seconds) == (TILE + SHORTEST, 2.0)


def test_a_turn_of_a_few_new_tokens_says_nothing_about_how_fast_prompts_are() -> None:
    meter = Meter()
    meter.chat_prompt_took(1000, 5.0)
    meter.chat_prompt_took(1, 0.1)
    meter.chat_prompt_took(100, 0.0)
    assert meter.chat_rate == 200

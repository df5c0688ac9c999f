"""The formulas of contracts.md, against an independent implementation and at their corners."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jevcompat.validate import choice_confidence as reference_choice_confidence
from jevcompat.validate import score_confidence as reference_score_confidence

from steelyard_runtime.contracts.answer_details import (
    argmax,
    choice_confidence,
    expected_level,
    extensions,
    score_confidence,
)

WEIGHTS = st.lists(st.floats(1e-6, 1e6), min_size=2, max_size=255)


def normalised(weights: list[float]) -> list[float]:
    total = math.fsum(weights)
    return [weight / total for weight in weights]


@given(WEIGHTS)
def test_confidences_follow_the_reference(weights: list[float]) -> None:
    p = normalised(weights)
    assert choice_confidence(p) == pytest.approx(max(0.0, reference_choice_confidence(p)), abs=1e-9)
    assert score_confidence(p) == pytest.approx(reference_score_confidence(p), abs=1e-9)
    assert 0 <= choice_confidence(p) <= 1
    assert 0 <= score_confidence(p) <= 1
    assert 0 <= expected_level(p) <= len(p) - 1


@pytest.mark.parametrize("n", [2, 3, 10, 77, 255])
def test_certainty_gives_one_and_an_even_spread_gives_nothing(n: int) -> None:
    for index in (0, n - 1):
        certain = [float(i == index) for i in range(n)]
        assert choice_confidence(certain) == 1
        assert score_confidence(certain) == 1
        assert expected_level(certain) == index
    even = [1 / n] * n
    assert choice_confidence(even) == 0
    assert score_confidence(even) == 0
    assert expected_level(even) == pytest.approx((n - 1) / 2)


def test_one_option_is_certain() -> None:
    assert choice_confidence([1.0]) == score_confidence([1.0]) == 1


@pytest.mark.parametrize(
    ("p", "choice", "score", "level"),
    [
        # (0.88 - 1/2) / (1/2); 1 - 0.12 / 0.5
        ([0.88, 0.12], 0.76, 0.76, 0.12),
        # (0.95 - 1/3) / (2/3); 1 - (0.05 * 1) / (2/3)
        ([0.0, 0.95, 0.05], 0.925, 0.925, 1.05),
        # Mass at both ends: further apart than an even spread, so the score's confidence stops at 0.
        ([0.5, 0.0, 0.0, 0.5], 1 / 3, 0.0, 1.5),
    ],
)
def test_worked_examples(p: list[float], choice: float, score: float, level: float) -> None:
    assert choice_confidence(p) == pytest.approx(choice)
    assert score_confidence(p) == pytest.approx(score)
    assert expected_level(p) == pytest.approx(level)


def test_the_first_of_several_largest_wins() -> None:
    assert argmax([0.2, 0.4, 0.4]) == 1


def test_every_extension_is_prefixed_and_complete(make_answer) -> None:
    answer = make_answer([1.0, 2.0])
    assert extensions(answer) == {
        "x_logits": [1.0, 2.0],
        "x_slot_token_ids": [100, 101],
        "x_slot_mass": 0.75,
        "x_entropy": answer.entropy,
        "x_tokens": {"prompt": 10, "evaluated": 6, "reused": 4},
        "x_prompt_sha256": "ab" * 32,
        "x_prompt_version": "v1",
        "x_readout": "letters",
        "x_cached": False,
        "x_probability_status": "uncalibrated",
        "x_timing": {"queue_ms": 1.0, "engine_ms": 2.0, "total_ms": 3.5},
    }

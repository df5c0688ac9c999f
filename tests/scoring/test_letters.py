"""The arithmetic of letters."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from steelyard_runtime.scoring.letters import read

LOGITS = hnp.arrays(np.float32, st.integers(4, 64), elements=st.floats(-1e4, 1e4, width=32))


@given(LOGITS, st.data())
def test_probabilities_are_a_distribution(logits: np.ndarray, data: st.DataObject) -> None:
    slots = data.draw(st.lists(st.integers(0, len(logits) - 1), min_size=2, max_size=len(logits), unique=True))
    found = read(logits, slots)
    assert all(0 <= p <= 1 and math.isfinite(p) for p in found.probabilities)
    assert abs(math.fsum(found.probabilities) - 1) < 1e-9
    assert found.logits == tuple(float(logits[s]) for s in slots)
    assert 0 <= found.slot_mass <= 1
    assert -1e-12 <= found.entropy <= math.log(len(slots)) + 1e-9
    best = max(range(len(slots)), key=lambda i: found.logits[i])
    assert found.probabilities[best] == max(found.probabilities)


@given(LOGITS, st.floats(-100, 100))
def test_a_constant_added_to_all_logits_changes_nothing(logits: np.ndarray, shift: float) -> None:
    a, b = read(logits.astype(np.float64), [0, 1, 2]), read(logits.astype(np.float64) + shift, [0, 1, 2])
    assert np.allclose(a.probabilities, b.probabilities, atol=1e-9)
    assert math.isclose(a.slot_mass, b.slot_mass, rel_tol=1e-6, abs_tol=1e-12)


def test_known_values() -> None:
    found = read(np.log(np.array([0.5, 0.3, 0.1, 0.1])), [0, 2])
    assert np.allclose(found.probabilities, [5 / 6, 1 / 6])
    assert math.isclose(found.slot_mass, 0.6)
    assert math.isclose(found.entropy, -(5 / 6 * math.log(5 / 6) + 1 / 6 * math.log(1 / 6)))


def test_all_slots_of_the_vocabulary_hold_all_the_mass() -> None:
    assert read(np.zeros(3), [0, 1, 2]).slot_mass == 1.0


def test_other_tokens_may_be_impossible() -> None:
    assert read(np.array([1.0, 1.0, -np.inf]), [0, 1]).probabilities == (0.5, 0.5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_logits_that_are_no_answer_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        read(np.array([bad, 0.0, 0.0]), [0, 1])

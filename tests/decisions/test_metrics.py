"""Figures are those of scikit-learn and scipy, and a threshold is named only where the cases prove it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta
from sklearn.metrics import brier_score_loss, confusion_matrix, f1_score
from sklearn.metrics import log_loss as sklearn_log_loss

from steelyard.decisions import metrics
from steelyard.decisions.metrics import (
    answer_set,
    cases_to_prove,
    clopper_upper,
    conformal_threshold,
    ece,
    figures,
    interval,
    operating_point,
    paired_difference,
    paired_loss,
    risk_coverage,
    wilson,
)


@st.composite
def answers(draw, options=3):
    size = draw(st.integers(1, 40))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return rng.dirichlet(np.ones(options), size), rng.integers(0, options, size)


@settings(max_examples=40)
@given(answers())
def test_figures_are_those_of_scikit_learn(case):
    probabilities, labels = case
    names = [0, 1, 2]
    chosen = probabilities.argmax(axis=1)
    assert metrics.log_loss(probabilities, labels) == pytest.approx(
        sklearn_log_loss(labels, np.maximum(probabilities, 1e-6), labels=names), rel=1e-4
    )
    assert (metrics.confusion(probabilities, labels) == confusion_matrix(labels, chosen, labels=names)).all()
    seen = sorted({*labels, *chosen})
    assert metrics.macro_f1(probabilities, labels) == pytest.approx(
        f1_score(labels, chosen, labels=seen, average="macro", zero_division=0)
    )
    squared = sum(brier_score_loss(labels == option, probabilities[:, option]) for option in names)
    assert metrics.brier(probabilities, labels) == pytest.approx(squared)


def test_the_calibration_error_is_the_gap_in_each_bin():
    probabilities = np.array([[0.8, 0.2]] * 10 + [[0.35, 0.65]] * 10)
    labels = np.array([0] * 6 + [1] * 4 + [1] * 5 + [0] * 5)
    assert ece(probabilities, labels) == pytest.approx((0.2 + 0.15) / 2)
    assert ece(np.array([[1.0, 0.0]]), np.array([0])) == 0.0
    assert ece(np.array([[1.0, 0.0]]), np.array([1])) == 1.0


@settings(max_examples=50)
@given(st.integers(1, 400), st.data())
def test_the_upper_bound_is_clopper_pearsons(count, data):
    wrong = data.draw(st.integers(0, count))
    expected = 1.0 if wrong == count else beta.ppf(0.95, wrong + 1, count - wrong)
    assert clopper_upper(wrong, count) == pytest.approx(expected, abs=1e-9)


def test_bounds_without_cases_say_nothing():
    assert wilson(0, 0) == (0.0, 1.0)
    assert clopper_upper(0, 0) == 1.0
    low, high = wilson(5, 10)
    assert low == pytest.approx(0.2366, abs=1e-4)
    assert high == pytest.approx(0.7634, abs=1e-4)


@pytest.mark.parametrize(("wrong", "target"), [(0, 0.01), (2, 0.01), (3, 0.2)])
def test_so_many_cases_prove_a_target_and_one_less_does_not(wrong, target):
    needed = cases_to_prove(wrong, target)
    assert clopper_upper(wrong, needed) <= target < clopper_upper(wrong, needed - 1)


def sharp(right, wrong, *, at=0.99):
    """So many right and wrong answers at a probability."""
    probabilities = np.array([[at, 1 - at]] * (right + wrong))
    return probabilities, np.array([0] * right + [1] * wrong)


def test_a_threshold_is_named_where_the_cases_prove_it():
    sure, sure_labels = sharp(100, 0)
    unsure, unsure_labels = sharp(50, 30, at=0.6)
    probabilities, labels = np.concatenate([sure, unsure]), np.concatenate([sure_labels, unsure_labels])
    found = operating_point(probabilities, labels, target_wrong=0.05)
    assert (found.probability, found.automated, found.wrong) == (0.99, 100, 0)
    assert found.share == pytest.approx(100 / 180)
    assert found.bound <= 0.05


def test_without_proof_it_says_how_many_cases_would_prove_it():
    few, labels = sharp(40, 0)
    found = operating_point(few, labels, target_wrong=0.05)
    assert (found.probability, found.least_automated) == (None, 59)
    some, labels = sharp(70, 2)
    found = operating_point(some, labels, target_wrong=0.05)
    assert found.probability is None
    assert found.least_automated == cases_to_prove(2, 0.05)


@settings(max_examples=30)
@given(answers(), st.floats(0.05, 0.5))
def test_no_threshold_has_more_mistakes_than_its_bound(case, target):
    probabilities, labels = case
    found = operating_point(probabilities, labels, target_wrong=target)
    if found.probability is not None:
        taken = probabilities.max(axis=1) >= found.probability
        wrong = (probabilities.argmax(axis=1) != labels)[taken].sum()
        assert (taken.sum(), wrong) == (found.automated, found.wrong)
        assert clopper_upper(wrong, taken.sum()) <= target


@settings(max_examples=40)
@given(answers())
def test_all_answers_together_have_the_risk_of_the_whole(case):
    probabilities, labels = case
    coverage, risk = risk_coverage(probabilities, labels)
    assert coverage[-1] == 1.0
    assert risk[-1] == pytest.approx(1 - metrics.accuracy(probabilities, labels))


def test_intervals_hold_the_value_and_repeat():
    probabilities, labels = sharp(30, 10, at=0.8)
    found = figures(probabilities, labels)
    assert found == figures(probabilities, labels)
    for each in (found.accuracy, found.log_loss):
        assert each.low < each.value < each.high
    assert interval(metrics.accuracy, probabilities, labels).value == 0.75


def test_a_difference_is_paired_by_case():
    probabilities, labels = sharp(20, 0)
    assert paired_difference(probabilities, probabilities, labels).high == 0.0
    worse = probabilities[:, ::-1]
    assert paired_difference(probabilities, worse, labels).low == 1.0


@settings(max_examples=40)
@given(size=st.integers(1, 60), coverage=st.sampled_from([0.5, 0.8, 0.9, 0.95]), seed=st.integers(0, 2**32 - 1))
def test_a_conformal_threshold_is_the_order_statistic_that_its_coverage_asks_for(size, coverage, seed):
    right = np.random.default_rng(seed).random(size)
    found = conformal_threshold(right, coverage)
    place = int(np.ceil(round((size + 1) * coverage, 9)))
    if place > size:
        assert found == 0.0
    else:
        assert found == np.quantile(right[np.argsort(-right)][:place], 0.0)
        assert (right >= found).sum() == place


def test_answer_sets_hold_the_right_option_as_often_as_stated():
    rng = np.random.default_rng(0)
    sure = rng.dirichlet(np.full(4, 0.4), 2000)
    labels = np.array([rng.choice(4, p=row) for row in sure])
    overconfident = sure**2 / (sure**2).sum(axis=1, keepdims=True)
    for probabilities in (sure, overconfident):
        found = answer_set(probabilities, labels, np.arange(2000) % 5, coverage=0.9)
        assert found.covered.low <= 0.9 <= found.covered.high
        assert 1 <= found.mean_options <= 4
    assert answer_set(sure[:8], labels[:8], np.arange(8) % 4, coverage=0.9).mean_options == 4


def test_a_loss_is_compared_case_by_case():
    labels = np.array([0, 1, 0, 1])
    first, second = np.array([[0.9, 0.1], [0.2, 0.8]] * 2), np.full((4, 2), 0.5)
    found = paired_loss(second, first, labels)
    assert found.value == pytest.approx(np.log(2) + (np.log(0.9) + np.log(0.8)) / 2)
    assert 0 < found.low <= found.value <= found.high
    assert paired_loss(first, first, labels).high == 0

"""Calibrations are the best of their kind, agree with scikit-learn, and are judged on what they have not seen."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression
from threadpoolctl import threadpool_limits

from steelyard.decisions import metrics
from steelyard.decisions.calibrating import KINDS, NEAR, Calibrator, Way, best, calibrate, isotonic, with_steps
from steelyard_runtime.decisions.head import softmax

PARTS = ("state", "words")
SEEDS = st.integers(0, 2**32 - 1)


@pytest.fixture(autouse=True)
def _one_thread():
    with threadpool_limits(1):
        yield


def logits_of(labels, *, options=3, seed=0, parts=PARTS):
    """Logits that know something of the labels, in parts of different worth."""
    rng = np.random.default_rng(seed)
    raw = {part: rng.standard_normal((len(labels), options)) + 2 * np.eye(options)[labels] for part in parts}
    return {part: np.log(softmax(each)) for part, each in raw.items()}


def labels_of(size, *, options=3, seed=0):
    return np.random.default_rng(seed).integers(0, options, size)


def cost_of(logits, labels, numbers):
    """What a calibration minimises, written out: log loss and the priors of ``calibrate``."""
    weights, scale, shift = numbers[:2], np.exp(numbers[2:5]), numbers[5:]
    pairs = zip(weights, logits, strict=True)
    summed = sum(np.exp(weight) * (each - each.mean(axis=1, keepdims=True)) for weight, each in pairs)
    chosen = softmax(scale * summed + shift)[np.arange(len(labels)), labels]
    return -np.log(chosen).sum() + 0.5 * (weights**2).sum() + 0.5 * (numbers[2:] ** 2).sum() / NEAR**2


@settings(max_examples=10)
@given(seed=SEEDS, kind=st.sampled_from(["temperature", "vector"]), size=st.integers(6, 40))
def test_no_numbers_nearby_are_better(seed, kind, size):
    labels = labels_of(size, seed=seed)
    logits = logits_of(labels, seed=seed)
    found = calibrate(Way(parts=PARTS, kind=kind), logits, labels)
    best = np.concatenate([np.log([found.weights[part] for part in PARTS]), np.log(found.scale), found.shift])
    least = cost_of(list(logits.values()), labels, best)
    for place in range(8 if kind == "vector" else 2):
        for step in (-0.01, 0.01):
            changed = best.copy()
            changed[place] += step
            assert least < cost_of(list(logits.values()), labels, changed)


@settings(max_examples=15)
@given(seed=SEEDS, size=st.integers(2, 60), options=st.integers(2, 5))
def test_steps_are_the_isotonic_regression_of_scikit_learn(seed, size, options):
    rng = np.random.default_rng(seed)
    probabilities = softmax(rng.standard_normal((size, options)))
    truth = np.eye(options)[rng.integers(0, options, size)]
    steps = isotonic(probabilities, truth, cases=size)
    theirs = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(probabilities.ravel(), truth.ravel())
    unseen = softmax(2 * rng.standard_normal((30, options)))
    mixed = (size * theirs.predict(unseen.ravel()).reshape(unseen.shape) + unseen) / (size + 1)
    found = steps.apply(unseen)
    np.testing.assert_allclose(found, mixed / mixed.sum(axis=1, keepdims=True), atol=1e-9)
    assert (found.argsort(axis=1, kind="stable") == unseen.argsort(axis=1, kind="stable")).all()


@pytest.mark.parametrize("seed", range(2))
def test_the_labels_of_a_fold_change_nothing_of_its_own_probabilities(seed):
    """Neither the numbers nor the choice between the ways has seen them."""
    labels = labels_of(40, seed=seed)
    logits, folds = logits_of(labels, seed=seed), np.arange(40) % 4
    ways = [Way(parts=parts, kind=kind) for kind in KINDS for parts in (("state",), PARTS)]
    before = Calibrator(logits, labels, folds).choose(ways).probabilities
    changed = np.where(folds == 2, (labels + 1) % 3, labels)
    after = Calibrator(logits, changed, folds).choose(ways).probabilities
    assert (before[folds == 2] == after[folds == 2]).all()
    assert (before[folds != 2] != after[folds != 2]).any()


def test_a_later_kind_has_to_be_better_by_a_standard_error():
    ways = [Way(parts=parts, kind=kind) for kind in KINDS[:2] for parts in (("state",), PARTS)]
    flat = np.ones((4, 100))
    flat[1] -= 0.01  # parts are compared without
    assert best(ways, flat) == 1
    noisy = flat.copy()
    noisy[3] += np.where(np.arange(100) % 2, 0.5, -0.6)  # better by 0.04, and by less than one standard error
    assert best(ways, noisy) == 1
    noisy[3] -= 0.1
    assert best(ways, noisy) == 3
    noisy[2] -= 1  # other parts than those that the first kind chose
    assert best(ways, noisy) == 3


def test_what_is_wrong_for_one_option_is_put_right_by_a_vector_and_for_all_by_a_temperature():
    labels, folds = labels_of(300), np.arange(300) % 5
    logits = logits_of(labels, parts=("state",))
    ways = [Way(parts=("state",), kind=kind) for kind in ("temperature", "vector")]
    assert Calibrator({"state": 4 * logits["state"]}, labels, folds).choose(ways).way.kind == "temperature"
    pushed = logits["state"] + [2.5, 0.0, 0.0]
    found = Calibrator({"state": pushed}, labels, folds).choose(ways)
    assert found.way.kind == "vector"
    assert metrics.log_loss(found.probabilities, labels) < metrics.log_loss(softmax(pushed), labels)


def test_a_part_that_knows_nothing_is_left_out():
    labels, folds = labels_of(120), np.arange(120) % 5
    noise = np.log(softmax(np.random.default_rng(1).standard_normal((120, 3))))
    logits = {"state": logits_of(labels)["state"], "words": noise}
    ways = [Way(parts=parts, kind="temperature") for parts in (("state",), PARTS)]
    assert Calibrator(logits, labels, folds).choose(ways).way.parts == ("state",)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("labels", "logits"),
    [
        (np.zeros(6, np.int64), np.log(softmax(np.eye(3)[[0] * 6]))),  # one option is always right
        (np.array([0, 1, 0, 1]), np.zeros((4, 3))),  # identical cases with different labels, an option without a case
        (np.array([0, 1, 2]), 50 * np.eye(3)),  # one case of each, certain and right
        (np.array([1, 2, 0]), 50 * np.eye(3)),  # certain and wrong
        (np.array([0]), np.array([[-12.0, 0.0, -12.0]])),  # one case
    ],
)
def test_cases_that_teach_nothing_leave_probabilities(kind, labels, logits):
    calibration = calibrate(Way(parts=("state",), kind=kind), {"state": logits}, labels)
    if kind == "isotonic":
        calibration = with_steps(calibration, {"state": logits}, labels)
    found = calibration.apply({"state": logits})
    assert np.isfinite(found).all()
    assert (found > 0).all()
    np.testing.assert_allclose(found.sum(axis=1), 1.0, atol=1e-12)

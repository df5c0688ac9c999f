"""The statistics: known answers, and intervals that hold what they should."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.peers import figures

SECONDS = st.floats(1e-3, 1e3)


def test_percentiles_interpolate():
    found = figures.latency([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (found.p50, found.mean, found.n) == (3.0, 3.0, 5)
    assert found.p95 == pytest.approx(4.8)


def test_no_observations_are_not_zero_seconds():
    assert math.isnan(figures.latency([]).p50)


@given(st.lists(SECONDS, min_size=1, max_size=30))
def test_percentiles_are_ordered_and_within_the_values(seconds):
    found = figures.latency(seconds)
    assert min(seconds) <= found.p50 <= found.p95 <= found.p99 <= max(seconds)


@given(st.lists(SECONDS, min_size=1, max_size=20), st.floats(0.1, 10))
def test_a_drift_that_slows_both_sides_of_a_pair_leaves_the_ratio(seconds, factor):
    """Each pair meets a machine of another speed; the two sides of a pair meet the same."""
    found = figures.paired_ratio([value * factor for value in seconds], seconds)
    assert found.low <= found.value <= found.high
    assert found.value == pytest.approx(factor)


def test_pairs_must_be_pairs():
    with pytest.raises(ValueError, match="2 and 1"):
        figures.paired_ratio([1.0, 2.0], [1.0])


def test_the_interval_holds_the_true_ratio_and_is_repeatable():
    rng = np.random.default_rng(3)
    theirs = rng.uniform(1, 2, 200)
    ours = theirs * 0.5 * rng.lognormal(0, 0.1, 200)
    found = figures.paired_ratio(ours.tolist(), theirs.tolist())
    assert found.low < 0.5 < found.high
    assert found.high - found.low < 0.1
    assert found == figures.paired_ratio(ours.tolist(), theirs.tolist())


def test_the_ratio_of_percentiles_of_one_sample_with_itself_is_one():
    values = [float(value) for value in range(1, 60)]
    found = figures.percentile_ratio(values, values, 95)
    assert found.value == 1.0
    assert found.low <= 1.0 <= found.high


def test_a_slope_is_found_and_its_interval_tells_growth_from_noise():
    rng = np.random.default_rng(5)
    times = list(map(float, range(400)))
    noise = rng.normal(0, 20, 400)
    grows = figures.slope(times, [1000 + 2 * at + n for at, n in zip(times, noise, strict=True)])
    assert grows.low > 0
    assert grows.value == pytest.approx(2, rel=0.05)
    flat = figures.slope(times, (1000 + noise).tolist())
    assert flat.low < 0 < flat.high


def test_a_constant_has_slope_zero():
    found = figures.slope([0.0, 1.0, 2.0, 3.0, 4.0, 5.0], [7.0] * 6)
    assert (found.value, found.low, found.high) == (0.0, 0.0, 0.0)


def test_a_trend_needs_samples():
    with pytest.raises(ValueError, match="at least 6 samples; got 5"):
        figures.slope([0.0, 1.0, 2.0, 3.0, 4.0], [1.0] * 5)

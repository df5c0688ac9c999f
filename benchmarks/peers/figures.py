"""The statistics of the benchmarks: percentiles, paired ratios, trends; each with an interval where it is a verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
RESAMPLES = 4000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A figure and its 95 % bootstrap interval; ``n`` is the number of observations."""

    value: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Latency:
    """Seconds."""

    p50: float
    p95: float
    p99: float
    mean: float
    n: int


def latency(seconds: Sequence[float]) -> Latency:
    """Percentiles of ``seconds``, interpolated linearly; all NaN when there are none."""
    if not seconds:
        return Latency(math.nan, math.nan, math.nan, math.nan, 0)
    p50, p95, p99 = np.percentile(np.asarray(seconds, float), [50, 95, 99])
    return Latency(float(p50), float(p95), float(p99), float(np.mean(seconds)), len(seconds))


def paired_ratio(ours: Sequence[float], theirs: Sequence[float], *, seed: int = 1) -> Estimate:
    """Median of ``ours[i] / theirs[i]``, two measurements of the same request a moment apart.

    A machine whose speed drifts slows both sides of a pair, so that the ratio does not see it.

    Raises:
        ValueError: The sequences are empty or differ in length.
    """
    if len(ours) != len(theirs) or not ours:
        raise ValueError(f"pairs are needed; got {len(ours)} and {len(theirs)} values")
    ratios = np.asarray(ours, float) / np.asarray(theirs, float)
    return bootstrap(ratios, lambda sample: np.median(sample, axis=-1), seed=seed)


def bootstrap(values: Floats, statistic: Callable[[Floats], Floats], *, seed: int = 1) -> Estimate:
    """``statistic`` of ``values`` with its percentile interval.

    Args:
        values: Shape ``(n,)``.
        statistic: Reduces the last axis.
        seed: Of the resampling, so that the same values give the same interval.
    """
    rng = np.random.default_rng(seed)
    samples = statistic(values[rng.integers(0, len(values), (RESAMPLES, len(values)))])
    tail = (1 - CONFIDENCE) / 2 * 100
    low, high = np.percentile(samples, [tail, 100 - tail])
    return Estimate(float(statistic(values)), float(low), float(high), len(values))


def percentile_ratio(ours: Sequence[float], theirs: Sequence[float], percent: float, *, seed: int = 1) -> Estimate:
    """Ratio of the two sides' ``percent``-th percentiles; resampled independently, because nothing is paired."""
    if not ours or not theirs:
        return Estimate(math.nan, math.nan, math.nan, 0)
    rng = np.random.default_rng(seed)
    first, second = np.asarray(ours, float), np.asarray(theirs, float)
    ratios = [
        np.percentile(rng.choice(first, len(first)), percent) / np.percentile(rng.choice(second, len(second)), percent)
        for _ in range(RESAMPLES // 4)
    ]
    tail = (1 - CONFIDENCE) / 2 * 100
    low, high = np.percentile(ratios, [tail, 100 - tail])
    value = np.percentile(first, percent) / np.percentile(second, percent)
    return Estimate(float(value), float(low), float(high), min(len(first), len(second)))


def slope(times: Sequence[float], values: Sequence[float], *, blocks: int = 20, seed: int = 1) -> Estimate:
    """Least-squares slope of ``values`` over ``times``; the interval is resampled from blocks of neighbours.

    Neighbouring samples of a process' memory are alike, so resampling them one by one would give an interval that is
    far too narrow.

    Raises:
        ValueError: Fewer than two samples for each of at least three blocks.
    """
    x, y = np.asarray(times, float), np.asarray(values, float)
    blocks = min(blocks, len(x) // 2)
    if blocks < 3:
        raise ValueError(f"a trend needs at least 6 samples; got {len(x)}")
    parts = np.array_split(np.arange(len(x)), blocks)
    rng = np.random.default_rng(seed)
    slopes = []
    for _ in range(RESAMPLES // 4):
        chosen = np.concatenate([parts[i] for i in rng.integers(0, blocks, blocks)])
        slopes.append(_least_squares(x[chosen], y[chosen]))
    tail = (1 - CONFIDENCE) / 2 * 100
    low, high = np.percentile(slopes, [tail, 100 - tail])
    return Estimate(_least_squares(x, y), float(low), float(high), len(x))


def _least_squares(x: Floats, y: Floats) -> float:
    centred = x - x.mean()
    square = float(centred @ centred)
    return float(centred @ (y - y.mean())) / square if square else 0.0

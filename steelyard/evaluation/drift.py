"""Two periods of one decision: what moved, and what is noise.

Shares are compared by the population stability index, whose noise is found by dealing all answers anew into two periods
of the same sizes (a permutation test). Probabilities and distances are compared by the statistic of Kolmogorov and
Smirnov. With several questions one of them looks like drift by chance; Holm's procedure keeps that at 5 % for each
decision.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from steelyard.evaluation.records import Period
from steelyard_runtime.decisions.head import Interval

Numbers = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

DEALS = 2000
RESAMPLES = 1000
CHANCE = 0.05
SEED = 0
SMOOTHING = 0.5
"""Added to each count, so that an option that nobody had before has a logarithm."""
_TERMS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Shares of options or actions in both periods.

    Attributes:
        what: ``options`` or ``actions``.
        names: Of each, the one whose share changed most first.
        before: Share of each before.
        now: Share of each now.
        stability: Population stability index; 0 is equal, 0.1 is often called small, 0.25 large.
        noise: 95 of 100 such indexes of periods without a difference are below this.
        chance: Probability of such an index without a difference.
    """

    what: str
    names: tuple[str, ...]
    before: tuple[float, ...]
    now: tuple[float, ...]
    stability: float
    noise: float
    chance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A number of each answer in both periods.

    Attributes:
        what: ``probability`` or ``distance rank``.
        before: Mean before.
        now: Mean now.
        difference: Of the means, with a 95 % bootstrap interval.
        statistic: Largest difference of the shares below any one value (Kolmogorov and Smirnov).
        chance: Probability of such a statistic without a difference.
    """

    what: str
    before: float
    now: float
    difference: Interval
    statistic: float
    chance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """One decision in both periods.

    Attributes:
        decision: Its name.
        answers_before: Answers before.
        answers_now: Answers now.
        shares: Of options, and of actions where there are any.
        spreads: Of probabilities, and of distances where they were measured.
        moved: Names of what moved beyond noise.
    """

    decision: str
    answers_before: int
    answers_now: int
    shares: tuple[Shares, ...]
    spreads: tuple[Spread, ...]
    moved: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return all of it, JSON-ready."""
        spreads = [asdict(each) | {"difference": each.difference.model_dump()} for each in self.spreads]
        return asdict(self) | {"spreads": spreads}


def compare_periods(before: Mapping[str, Period], now: Mapping[str, Period]) -> list[Drift]:
    """Return the drift of each decision that both periods have, by name."""
    return [_drift(name, before[name], now[name]) for name in sorted(set(before) & set(now))]


def _drift(name: str, before: Period, now: Period) -> Drift:
    shares = [_shares("options", before.options, before.option, now.options, now.option)]
    if len(before.action) and len(now.action):
        shares.append(_shares("actions", before.actions, before.action, now.actions, now.action))
    spreads = [_spread("probability", before.probability, now.probability)]
    if len(before.distance) and len(now.distance):
        spreads.append(_spread("distance rank", before.distance, now.distance))
    chances = {each.what: each.chance for each in shares} | {each.what: each.chance for each in spreads}
    return Drift(
        decision=name,
        answers_before=len(before),
        answers_now=len(now),
        shares=tuple(shares),
        spreads=tuple(spreads),
        moved=tuple(beyond_chance(chances)),
    )


def beyond_chance(chances: Mapping[str, float]) -> list[str]:
    """Return the names whose chance is too small for noise, by Holm's procedure, in the order given.

    Examples:
        >>> beyond_chance({"a": 0.01, "b": 0.04, "c": 0.5})
        ['a']
    """
    found = set()
    for rank, (name, chance) in enumerate(sorted(chances.items(), key=lambda item: item[1])):
        if chance > CHANCE / (len(chances) - rank):
            break
        found.add(name)
    return [name for name in chances if name in found]


def _shares(
    what: str, names: Mapping[str, int], places: Sequence[int], other_names: Mapping[str, int], others: Sequence[int]
) -> Shares:
    every = list(dict.fromkeys([*names, *other_names]))
    counts = [_counts(every, names, places), _counts(every, other_names, others)]
    found = stability(counts[0], counts[1])
    pooled, size = counts[0] + counts[1], int(counts[0].sum())
    dealt = np.random.default_rng(SEED).multivariate_hypergeometric(pooled, size, size=DEALS, method="marginals")
    chance = _stabilities(dealt, pooled - dealt)
    before, now = (each / each.sum() for each in counts)
    order = np.argsort(-np.abs(now - before), kind="stable")
    return Shares(
        what=what,
        names=tuple(every[index] for index in order),
        before=tuple(float(before[index]) for index in order),
        now=tuple(float(now[index]) for index in order),
        stability=found,
        noise=float(np.quantile(chance, 1 - CHANCE)),
        chance=float((1 + (chance >= found - 1e-12).sum()) / (1 + DEALS)),
    )


def _counts(every: Sequence[str], names: Mapping[str, int], places: Sequence[int]) -> Counts:
    counted = np.bincount(np.asarray(places, np.int64), minlength=len(names))
    return np.array([counted[names[name]] if name in names else 0 for name in every], np.int64)


def stability(before: Counts, now: Counts) -> float:
    """Return the population stability index of two rows of counts: 0 for equal shares, and never below.

    Examples:
        >>> stability(np.array([10, 10]), np.array([20, 20]))
        0.0
    """
    return float(_stabilities(before, now))


def _stabilities(before: Counts, now: Counts) -> Numbers:
    """Indexes of rows of counts, along the last axis."""
    first, second = before + SMOOTHING, now + SMOOTHING
    p, q = first / first.sum(axis=-1, keepdims=True), second / second.sum(axis=-1, keepdims=True)
    found: Numbers = ((q - p) * np.log(q / p)).sum(axis=-1)
    return found


def _spread(what: str, before: Sequence[float], now: Sequence[float]) -> Spread:
    first, second = np.asarray(before, np.float64), np.asarray(now, np.float64)
    rng = np.random.default_rng(SEED)
    means = [_resampled_means(each, rng) for each in (first, second)]
    low, high = np.quantile(means[1] - means[0], [CHANCE / 2, 1 - CHANCE / 2])
    statistic = largest_gap(first, second)
    return Spread(
        what=what,
        before=float(first.mean()),
        now=float(second.mean()),
        difference=Interval(value=float(second.mean() - first.mean()), low=float(low), high=float(high)),
        statistic=statistic,
        chance=chance_of_gap(statistic, len(first), len(second)),
    )


def _resampled_means(values: Numbers, rng: np.random.Generator) -> Numbers:
    """Means of so many draws with replacement, shape ``(RESAMPLES,)``; of many values by their normal approximation."""
    if len(values) > 10_000:
        return rng.normal(values.mean(), values.std() / math.sqrt(len(values)), RESAMPLES)
    return np.array([values[rng.integers(0, len(values), len(values))].mean() for _ in range(RESAMPLES)])


def largest_gap(first: Numbers, second: Numbers) -> float:
    """Return the largest difference of the shares at or below any value."""
    every = np.concatenate([first, second])
    below = [np.searchsorted(np.sort(each), every, side="right") / len(each) for each in (first, second)]
    return float(np.abs(below[0] - below[1]).max())


def chance_of_gap(statistic: float, first: int, second: int) -> float:
    """Return the probability of such a gap between two samples of one distribution, for many answers.

    Equal values among the answers make it too large rather than too small.

    Args:
        statistic: The gap.
        first: Size of one sample.
        second: Size of the other.
    """
    scaled = statistic * math.sqrt(first * second / (first + second))
    if scaled < 0.2:  # the sum does not converge there, and is 1 in all digits
        return 1.0
    terms = (2 * (-1) ** (k - 1) * math.exp(-2 * (k * scaled) ** 2) for k in range(1, _TERMS))
    return min(1.0, max(0.0, math.fsum(terms)))

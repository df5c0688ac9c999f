"""Comparison of several candidates with an incumbent, on a noisy machine.

Everything is measured in rounds: the incumbent, every challenger, the incumbent again. A challenger's ratio in a round
is its time over the mean of the two incumbents around it, so that a machine whose speed drifts does not blur it. What
counts is the median of the ratios and its distribution-free interval from order statistics; a burst of other work
spoils single ratios, not the median. Losers leave early: those that cannot be better, and the worse half now and then.
Nothing here knows what is measured.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Candidate = TypeVar("Candidate", bound=Hashable)
Seconds = Mapping[str, float]
"""Seconds by workload."""

CONFIDENCE = 0.99
"""Of one look. There are a few looks per comparison, so that the whole is right in about 95 of 100 cases."""
FIRST_LOOK = 8
"""Rounds before anything is concluded: the fewest of which the interval covers ``CONFIDENCE``."""
HALVING_ROUNDS = (4, 8, 16)
LEAST_GAIN = 0.02
"""A smaller gain is not worth a setting."""


class MeasureError(RuntimeError):
    """A candidate cannot be measured; it leaves, and the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The median of paired time ratios, below 1 for faster, with its interval; infinite while rounds are few."""

    ratio: float
    low: float
    high: float
    rounds: int

    @property
    def better(self) -> bool:
        """Tell whether the gain is beyond noise, and worth it."""
        return self.high < 1 - LEAST_GAIN

    @property
    def hopeless(self) -> bool:
        """Tell whether a gain that is worth it is beyond noise absent."""
        return self.low > 1 - LEAST_GAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(Generic[Candidate]):
    """Results of challengers against the incumbent.

    Attributes:
        incumbent: What everything was compared with.
        winner: The fastest challenger whose gain is beyond noise; else the incumbent.
        estimates: Of each challenger that could be measured.
        failures: Why the others could not.
    """

    incumbent: Candidate
    winner: Candidate
    estimates: dict[Candidate, Estimate]
    failures: dict[Candidate, str]


def interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """A distribution-free interval of the median from order statistics; infinite when the values are too few.

    Examples:
        >>> interval([5, 1, 2, 3, 4, 6, 7, 8], 0.99)
        (1, 8)
        >>> interval([1, 2, 3], 0.99)
        (-inf, inf)
    """
    ordered, n = sorted(values), len(values)
    outside, rank = 0.0, -1
    # Leaving out `rank` values on each side loses P(Binomial(n, 1/2) <= rank) on each side.
    while rank + 1 < n / 2:
        outside += math.comb(n, rank + 1) / 2**n
        if 2 * outside > 1 - confidence:
            break
        rank += 1
    return (-math.inf, math.inf) if rank < 0 else (ordered[rank], ordered[n - 1 - rank])


def ratio(challenger: Seconds, before: Seconds, after: Seconds, weights: Mapping[str, float]) -> float:
    """The weighted geometric mean, over workloads, of a challenger's time over the mean of the incumbents around it."""
    total = sum(weights.values())
    logs = (
        weight * math.log(challenger[name] / statistics.mean((before[name], after[name])))
        for name, weight in weights.items()
    )
    return math.exp(sum(logs) / total)


def estimate(ratios: Sequence[float]) -> Estimate:
    """Estimate a gain from ``ratios``, which are not empty."""
    low, high = interval(ratios)
    return Estimate(ratio=statistics.median(ratios), low=low, high=high, rounds=len(ratios))


def compare(
    incumbent: Candidate,
    challengers: Sequence[Candidate],
    *,
    measure: Callable[[Candidate], Seconds],
    weights: Mapping[str, float],
    rounds: int,
    out_of_time: Callable[[], bool] = lambda: False,
    on_round: Callable[[int, dict[Candidate, Estimate]], None] = lambda _round, _estimates: None,
) -> Comparison[Candidate]:
    """Measure until every challenger is decided, ``rounds`` are over, or time is up.

    Args:
        incumbent: What is used now; it stays unless a challenger is better beyond noise.
        challengers: What could be used instead.
        measure: Seconds of a candidate by workload; called again and again.
        weights: How much each workload counts.
        rounds: The most rounds.
        out_of_time: Asked after every round.
        on_round: Called after every round with its number and the estimates so far.

    Raises:
        MeasureError: The incumbent cannot be measured.
    """
    ratios: dict[Candidate, list[float]] = {challenger: [] for challenger in challengers}
    failures: dict[Candidate, str] = {}
    running = list(challengers)
    for number in range(1, rounds + 1):
        if not running:
            break
        before, taken = measure(incumbent), {}
        # Another one goes first in each round, so that none always has the same neighbour.
        turn = number % len(running)
        for challenger in [*running[turn:], *running[:turn]]:
            try:
                taken[challenger] = measure(challenger)
            except MeasureError as error:
                failures[challenger] = str(error)
                running.remove(challenger)
        after = measure(incumbent)
        for challenger, seconds in taken.items():
            ratios[challenger].append(ratio(seconds, before, after, weights))
        estimates = _estimates(ratios)
        on_round(number, estimates)
        running = survivors(running, estimates, number)
        if out_of_time():
            break
    estimates = _estimates(ratios)
    better = {challenger: found for challenger, found in estimates.items() if found.better}
    for failed in failures:
        better.pop(failed, None)
    winner = min(better, key=lambda challenger: better[challenger].ratio, default=incumbent)
    return Comparison(incumbent=incumbent, winner=winner, estimates=estimates, failures=failures)


def survivors(running: Sequence[Candidate], estimates: Mapping[Candidate, Estimate], number: int) -> list[Candidate]:
    """Return those that are measured again after round ``number``.

    Decided candidates leave: the hopeless, and, when only one is left, a proven winner. At some rounds the worse half
    of more than two leaves, undecided, so that the rounds go to those that may win.
    """
    left = [candidate for candidate in running if not estimates[candidate].hopeless]
    if number in HALVING_ROUNDS and len(left) > 2:
        left = sorted(left, key=lambda candidate: estimates[candidate].ratio)[: math.ceil(len(left) / 2)]
    if len(left) == 1 and estimates[left[0]].better:
        return []
    return left


def _estimates(ratios: Mapping[Candidate, list[float]]) -> dict[Candidate, Estimate]:
    return {candidate: estimate(values) for candidate, values in ratios.items() if values}

"""Figures of probabilistic answers on labelled cases, with intervals. Pure numpy.

Throughout, ``probabilities`` has shape ``(cases, options)``, each row with a sum of 1, and ``labels`` has shape
``(cases,)`` with the index of the right option.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from steelyard_runtime.decisions.head import AnswerSet, Figures, Interval

Array = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]
Metric = Callable[[Array, Labels], float]

BINS = 10
RESAMPLES = 1000
SMALLEST = 1e-6
"""A probability below this counts as this in the log loss, so that one certain mistake does not hide all else."""
SEED = 0


def accuracy(probabilities: Array, labels: Labels) -> float:
    """Return the share of cases whose likeliest option is right; the first of equals counts."""
    return float((probabilities.argmax(axis=1) == labels).mean())


def log_loss(probabilities: Array, labels: Labels) -> float:
    """Return the mean of ``-log(p)`` of the right option, in nats."""
    return float(losses(probabilities, labels).mean())


def losses(probabilities: Array, labels: Labels) -> Array:
    """Return ``-log(p)`` of the right option of each case, in nats, shape ``(cases,)``."""
    return np.asarray(-np.log(np.maximum(probabilities[np.arange(len(labels)), labels], SMALLEST)))


def brier(probabilities: Array, labels: Labels) -> float:
    """Return the mean squared distance of the probabilities and the right answer, 0 to 2."""
    truth = np.eye(probabilities.shape[1])[labels]
    return float(((probabilities - truth) ** 2).sum(axis=1).mean())


def ece(probabilities: Array, labels: Labels) -> float:
    """Return the expected calibration error of the likeliest option, in ten bins of equal width; an empty one is 0."""
    top, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    bins = np.minimum(np.ceil(top * BINS).astype(int) - 1, BINS - 1)
    return float(np.abs(np.bincount(bins, right - top, BINS)).sum() / len(labels))


def confusion(probabilities: Array, labels: Labels) -> npt.NDArray[np.int64]:
    """Return counts of shape ``(options, options)``: rows are right options, columns answers."""
    options = probabilities.shape[1]
    counts = np.zeros((options, options), np.int64)
    np.add.at(counts, (labels, probabilities.argmax(axis=1)), 1)
    return counts


def macro_f1(probabilities: Array, labels: Labels) -> float:
    """Return the mean F1 of the options that are right or answered anywhere; the others have none."""
    counts = confusion(probabilities, labels)
    either = counts.sum(axis=0) + counts.sum(axis=1)
    return float((2 * counts.diagonal()[either > 0] / either[either > 0]).mean())


def risk_coverage(probabilities: Array, labels: Labels) -> tuple[Array, Array]:
    """Return coverage and risk when only the most probable answers are taken, each of shape ``(cases,)``.

    Risk is the share of wrong answers among those taken. Of equal probabilities, wrong answers are taken first.
    """
    wrong = probabilities.argmax(axis=1) != labels
    order = np.lexsort((~wrong, -probabilities.max(axis=1)))
    taken = np.arange(1, len(labels) + 1)
    return taken / len(labels), wrong[order].cumsum() / taken


def interval(metric: Metric, probabilities: Array, labels: Labels) -> Interval:
    """Return a metric with its 95 % bootstrap interval over cases; the same cases give the same interval."""
    rng = np.random.default_rng(SEED)
    values = []
    for _ in range(RESAMPLES):
        chosen = rng.integers(0, len(labels), len(labels))
        values.append(metric(probabilities[chosen], labels[chosen]))
    low, high = np.quantile(values, [0.025, 0.975])
    return Interval(value=metric(probabilities, labels), low=float(low), high=float(high))


def figures(probabilities: Array, labels: Labels) -> Figures:
    """Return accuracy (with a Wilson interval), log loss and calibration error (with bootstrap intervals)."""
    right = int((probabilities.argmax(axis=1) == labels).sum())
    low, high = wilson(right, len(labels))
    return Figures(
        accuracy=Interval(value=right / len(labels), low=low, high=high),
        log_loss=interval(log_loss, probabilities, labels),
        ece=interval(ece, probabilities, labels),
    )


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Return the 95 % Wilson interval of a share; 0 to 1 without trials.

    Examples:
        >>> tuple(round(bound, 3) for bound in wilson(0, 10))
        (0.0, 0.278)
    """
    if not trials:
        return 0.0, 1.0
    z = 1.959963984540054
    share, squared = successes / trials, z * z
    centre = (share + squared / (2 * trials)) / (1 + squared / trials)
    half = z * np.sqrt(share * (1 - share) / trials + squared / (4 * trials * trials)) / (1 + squared / trials)
    return max(0.0, float(centre - half)), min(1.0, float(centre + half))


def paired_difference(first: Array, second: Array, labels: Labels) -> Interval:
    """Return the accuracy of ``first`` less that of ``second`` on the same cases, with a 95 % bootstrap interval."""
    rights = [(each.argmax(axis=1) == labels).astype(np.float64) for each in (first, second)]
    return mean_interval(rights[0] - rights[1])


def paired_loss(first: Array, second: Array, labels: Labels, *, confidence: float = 0.95) -> Interval:
    """Return the log loss of ``first`` less that of ``second`` on the same cases, with a bootstrap interval."""
    return mean_interval(losses(first, labels) - losses(second, labels), confidence=confidence)


def mean_interval(values: Array, *, confidence: float = 0.95) -> Interval:
    """Return the mean of numbers, shape ``(cases,)``, with its bootstrap interval; the same numbers give the same."""
    rng = np.random.default_rng(SEED)
    chosen = rng.integers(0, len(values), (RESAMPLES, len(values)))
    tail = (1 - confidence) / 2
    low, high = np.quantile(values[chosen].mean(axis=1), [tail, 1 - tail])
    return Interval(value=float(values.mean()), low=float(low), high=float(high))


@dataclass(frozen=True, slots=True, kw_only=True)
class Operating:
    """A threshold that keeps the share of wrong answers among the automated ones below a target.

    Attributes:
        target_wrong: The target.
        probability: Least probability of an automated answer; None where none is proven to reach the target.
        automated: Cases at or above it.
        wrong: Of these, wrong ones; where nothing is proven, those among the most probable ``least_automated`` cases.
        share: Automated share of all cases.
        bound: Upper end of the one-sided 95 % Clopper-Pearson interval of the wrong share.
        least_automated: Automated cases that would prove the target with ``wrong`` mistakes among them.
    """

    target_wrong: float
    probability: float | None
    automated: int
    wrong: int
    share: float
    bound: float
    least_automated: int


def operating_point(probabilities: Array, labels: Labels, *, target_wrong: float) -> Operating:
    """Return the lowest threshold whose automated answers are proven to be wrong at most so often.

    Thresholds are tried from the fewest cases that can prove the target downwards, and the first that fails ends the
    search. The order does not depend on the labels, so that trying many costs no confidence.

    Args:
        probabilities: Of cases that the answers were not fitted on.
        labels: Their right options.
        target_wrong: Largest share of wrong answers, above 0 and below 1.
    """
    top = probabilities.max(axis=1)
    wrong = probabilities.argmax(axis=1) != labels
    least = cases_to_prove(0, target_wrong)
    found: Operating | None = None
    for threshold in np.unique(top)[::-1]:
        taken = top >= threshold
        count, mistakes = int(taken.sum()), int((wrong & taken).sum())
        if count < least:
            continue
        bound = clopper_upper(mistakes, count)
        if bound > target_wrong:
            if found is None:
                return _unproven(target_wrong, mistakes)
            break
        found = Operating(
            target_wrong=target_wrong,
            probability=float(threshold),
            automated=count,
            wrong=mistakes,
            share=count / len(labels),
            bound=bound,
            least_automated=cases_to_prove(mistakes, target_wrong),
        )
    return found or _unproven(target_wrong, int(wrong.sum()))


def _unproven(target_wrong: float, wrong: int) -> Operating:
    return Operating(
        target_wrong=target_wrong,
        probability=None,
        automated=0,
        wrong=wrong,
        share=0.0,
        bound=1.0,
        least_automated=cases_to_prove(wrong, target_wrong),
    )


def cases_to_prove(wrong: int, target_wrong: float) -> int:
    """Return the fewest cases that prove a target with so many mistakes among them.

    Examples:
        >>> cases_to_prove(0, 0.01), cases_to_prove(1, 0.01)
        (299, 473)
    """
    low, high = wrong, max(1, 2 * wrong)
    while clopper_upper(wrong, high) > target_wrong:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if clopper_upper(wrong, middle) > target_wrong:
            low = middle
        else:
            high = middle
    return high


def clopper_upper(wrong: int, count: int) -> float:
    """Return the upper end of the one-sided 95 % Clopper-Pearson interval of a share; 1 without trials.

    Found by halving, which needs no special functions: the probability of so few mistakes is 5 % there.
    """
    if wrong >= count:
        return 1.0
    low, high = wrong / count, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if _at_most(wrong, count, middle) > 0.05:
            low = middle
        else:
            high = middle
    return high


def answer_set(probabilities: Array, labels: Labels, folds: Labels, *, coverage: float) -> AnswerSet:
    """Return the conformal set of a stated coverage: all options that are likelier than a threshold.

    The threshold is an order statistic of the right options' probabilities, so that the next case's set holds its right
    option with at least that probability, if it comes from where these come from. How often it does is shown for each
    fold with the threshold of the others. With too few cases for the coverage every option is in the set.

    Args:
        probabilities: Held out.
        labels: Right options.
        folds: Fold of each case, shape ``(cases,)``.
        coverage: Above 0 and below 1.
    """
    right = probabilities[np.arange(len(labels)), labels]
    held, sizes = np.zeros(len(labels), bool), np.zeros(len(labels))
    for fold in range(int(folds.max()) + 1):
        own = folds == fold
        threshold = conformal_threshold(right[~own], coverage)
        held[own], sizes[own] = right[own] >= threshold, (probabilities[own] >= threshold).sum(axis=1)
    low, high = wilson(int(held.sum()), len(labels))
    return AnswerSet(
        coverage=coverage,
        probability=conformal_threshold(right, coverage),
        covered=Interval(value=float(held.mean()), low=low, high=high),
        mean_options=float(sizes.mean()),
    )


def conformal_threshold(right: Array, coverage: float) -> float:
    """Return the least probability of an option in a conformal set; 0 where the cases are too few.

    Args:
        right: The right option's probability of each case, shape ``(cases,)``.
        coverage: Stated coverage.

    Examples:
        >>> conformal_threshold(np.array([0.9, 0.8, 0.3, 0.7]), 0.75), conformal_threshold(np.array([0.9]), 0.9)
        (0.3, 0.0)
    """
    place = math.ceil((len(right) + 1) * coverage - 1e-9)
    return float(np.sort(right)[::-1][place - 1]) if place <= len(right) else 0.0


def _at_most(successes: int, trials: int, share: float) -> float:
    """Probability of at most so many successes of a binomial distribution, summed in logarithms."""
    k = np.arange(successes + 1)
    steps = np.log((trials - k[1:] + 1) / k[1:]) if successes else np.zeros(0)
    chosen = np.concatenate([[0.0], np.cumsum(steps)])
    return float(np.exp(chosen + k * np.log(share) + (trials - k) * np.log1p(-share)).sum())

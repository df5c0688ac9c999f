"""Turns logits of several parts into one calibrated probability for each option, and chooses how by held-out log loss.

A *way* is a choice of parts (hidden state, words) and of a kind of calibration. Every kind weighs the parts with one
positive factor each, which is a temperature. ``vector`` adds a factor and a shift for each option, and ``isotonic`` an
increasing step function of the probability (scikit-learn's). The logits are of predictions that were held out.

Nothing is judged by what it was chosen by: the probabilities of a fold are of the way that was best on the other folds,
each of them predicted by a calibration that had seen neither. A calibration of more numbers has to be better by one
standard error: with few cases the best of several is mostly the luckiest.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from sklearn.isotonic import IsotonicRegression
from threadpoolctl import threadpool_limits

from steelyard.decisions.metrics import Array, Labels, losses
from steelyard_runtime.decisions.head import CalibrationName, Steps, softmax

Folds = npt.NDArray[np.int64]
Logits = Mapping[str, Array]
"""Normalised logarithms of probabilities by part, each of shape ``(cases, options)``."""

KINDS: tuple[CalibrationName, ...] = ("temperature", "vector", "isotonic")
"""The simplest first: it is taken where another is no better."""
NEAR = 0.5
"""Standard deviation of the normal priors that hold factors and shifts of single options near 1 and 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """Parts, and the kind of calibration of their sum."""

    parts: tuple[str, ...]
    kind: CalibrationName


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A fitted way.

    Attributes:
        weights: Factor of each part, above 0.
        scale: Factor of each option's logit, less their mean; shape ``(options,)``.
        shift: Added to it; shape ``(options,)``.
        steps: The increasing function of the probabilities; None for the identity.
    """

    weights: Mapping[str, float]
    scale: Array
    shift: Array
    steps: Steps | None

    def apply(self, logits: Logits) -> Array:
        """Return probabilities, shape ``(cases, options)``."""
        summed = sum((weight * _centred(logits[part]) for part, weight in self.weights.items()), np.zeros(1))
        found = softmax(self.scale * summed + self.shift)
        return found if self.steps is None else self.steps.apply(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The best way, and how it does on cases that neither it nor its choice has seen.

    Attributes:
        way: The best on all folds.
        calibration: It, fitted to all cases.
        probabilities: Held out, shape ``(cases, options)``.
    """

    way: Way
    calibration: Calibration
    probabilities: Array


class Calibrator:
    """Fits ways to held-out logits, each way without the same folds once only.

    Args:
        logits: Held-out logits of all parts.
        labels: Shape ``(cases,)``.
        folds: Fold of each case, shape ``(cases,)``; three or more where ways are compared.
    """

    def __init__(self, logits: Logits, labels: Labels, folds: Folds) -> None:
        self._logits, self._labels, self._folds = logits, labels, folds
        self._count = int(folds.max()) + 1
        self._fitted: dict[tuple[Way, frozenset[int]], Calibration] = {}

    def choose(self, ways: Sequence[Way]) -> Chosen:
        """Choose a way by cross-validated log loss, nested; see ``best``."""
        # Threads of a BLAS cost more than they gain on matrices of this size, and all the more beside other work.
        with threadpool_limits(1):
            return self._choose(ways)

    def _choose(self, ways: Sequence[Way]) -> Chosen:
        held_out = [self._held_out(way) for way in ways]
        probabilities = held_out[0].copy()
        if len(ways) > 1:
            inner = self._inner_losses(ways)
            for fold in range(self._count):
                own = self._folds == fold
                probabilities[own] = held_out[best(ways, inner[fold][:, ~own])][own]
        way = ways[best(ways, np.array([losses(each, self._labels) for each in held_out]))]
        return Chosen(way=way, calibration=self._fit(way), probabilities=probabilities)

    def _fit(self, way: Way, *without: int) -> Calibration:
        """Return the way, fitted to all folds but some."""
        key = way, frozenset(without)
        if key not in self._fitted:
            learnt = ~np.isin(self._folds, without)
            logits, labels = _rows(self._logits, learnt), self._labels[learnt]
            if way.kind == "isotonic":
                plain = self._fit(replace(way, kind="temperature"), *without)
                self._fitted[key] = with_steps(plain, logits, labels)
            else:
                self._fitted[key] = calibrate(way, logits, labels)
        return self._fitted[key]

    def _held_out(self, way: Way) -> Array:
        """Return each fold's probabilities by a calibration that was fitted to the others."""
        found = np.zeros_like(self._logits[way.parts[0]])
        for fold in range(self._count):
            own = self._folds == fold
            found[own] = self._fit(way, fold).apply(_rows(self._logits, own))
        return found

    def _inner_losses(self, ways: Sequence[Way]) -> Array:
        """Return log losses of cases by calibrations that have seen neither their fold nor one more.

        Returns:
            Shape ``(folds, ways, cases)``, by the fold that was not seen either; 0 for that fold's own cases.
        """
        lost = np.zeros((self._count, len(ways), len(self._labels)))
        for first, second in itertools.combinations(range(self._count), 2):
            for index, way in enumerate(ways):
                found = self._fit(way, first, second)
                for unseen, judged in ((first, second), (second, first)):
                    inside = self._folds == judged
                    probabilities = found.apply(_rows(self._logits, inside))
                    lost[unseen, index, inside] = losses(probabilities, self._labels[inside])
        return lost


def best(ways: Sequence[Way], lost: Array) -> int:
    """Return the way to take: the best parts of the first kind, and a later kind if it is better by a standard error.

    Args:
        ways: All kinds of all parts.
        lost: Log loss of each case, paired, shape ``(ways, cases)``.
    """
    means = lost.mean(axis=1)
    simple = min((index for index, way in enumerate(ways) if way.kind == ways[0].kind), key=means.__getitem__)
    chosen = simple
    for index, way in enumerate(ways):
        saved = lost[simple] - lost[index]
        surely = saved.mean() > saved.std() / np.sqrt(len(saved))
        if way.parts == ways[simple].parts and surely and means[index] < means[chosen]:
            chosen = index
    return chosen


def _rows(logits: Logits, chosen: npt.NDArray[np.bool_]) -> dict[str, Array]:
    return {part: each[chosen] for part, each in logits.items()}


def calibrate(way: Way, logits: Logits, labels: Labels) -> Calibration:
    """Fit the factors and shifts of a way to held-out logits by log loss.

    Normal priors keep all numbers finite where every case is right: one on the logarithm of each part's factor, with
    deviation 1, and one on the logarithm of each option's factor and on its shift, with deviation ``NEAR``.
    """
    parts = [_centred(logits[part]) for part in way.parts]
    options = parts[0].shape[1]
    each_option = way.kind == "vector"
    rows, truth = np.arange(len(labels)), np.eye(options)[labels]
    start = np.full(len(parts), -np.log(len(parts)))
    if each_option:
        start = np.concatenate([start, np.zeros(2 * options)])
    deviations = np.where(np.arange(len(start)) < len(parts), 1.0, NEAR)

    def taken(numbers: Array) -> tuple[Array, Array, Array]:
        weights, rest = np.exp(numbers[: len(parts)]), numbers[len(parts) :]
        if not each_option:
            return weights, np.ones(options), np.zeros(options)
        return weights, np.exp(rest[:options]), rest[options:]

    def cost(numbers: Array) -> tuple[float, Array]:
        weights, scale, shift = taken(numbers)
        summed = np.tensordot(weights, parts, axes=1)
        logits = scale * summed + shift
        logits = logits - logits.max(axis=1, keepdims=True)
        sums = np.exp(logits).sum(axis=1, keepdims=True)
        loss = (np.log(sums[:, 0]) - logits[rows, labels]).sum()
        off = np.exp(logits) / sums - truth
        slopes = weights * np.array([(off * scale * part).sum() for part in parts])
        if each_option:
            slopes = np.concatenate([slopes, scale * (off * summed).sum(axis=0), off.sum(axis=0)])
        prior = numbers / deviations**2
        return float(loss + 0.5 * (numbers * prior).sum()), slopes + prior

    found = minimize(cost, start, jac=True, method="L-BFGS-B", options={"maxiter": 500, "ftol": 1e-10, "gtol": 1e-5})
    weights, scale, shift = taken(found.x)
    return Calibration(
        weights=dict(zip(way.parts, map(float, weights), strict=True)), scale=scale, shift=shift, steps=None
    )


def with_steps(plain: Calibration, logits: Logits, labels: Labels) -> Calibration:
    """Return a calibration followed by an increasing function of its probabilities, fitted to the same cases."""
    probabilities = plain.apply(logits)
    truth = np.eye(probabilities.shape[1])[labels]
    return replace(plain, steps=isotonic(probabilities, truth, cases=len(labels)))


def isotonic(probabilities: Array, truth: Array, *, cases: int) -> Steps:
    """Fit an increasing function of probabilities, of all options together.

    Args:
        probabilities: Shape ``(cases, options)``.
        truth: 1 where the option is right, else 0; the same shape.
        cases: Weight of the function against the identity, which counts as one case: ties keep their order.
    """
    model = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip").fit(probabilities.ravel(), truth.ravel())
    return Steps(at=model.X_thresholds_.astype(float), to=model.y_thresholds_.astype(float), cases=cases)


def _centred(logits: Array) -> Array:
    """Subtract each case's mean: what is left does not depend on how the logits were normalised."""
    return np.asarray(logits - logits.mean(axis=1, keepdims=True))

"""The growth of accuracy with labels, and the worth of the next ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from steelyard.decisions import metrics
from steelyard.decisions.fitting import Validated
from steelyard.decisions.metrics import Array
from steelyard_runtime.decisions.head import Interval

SHARES = (0.125, 0.25, 0.5, 1.0)
"""Shares of the cases of all folds but one that are learnt from."""
NEXT = 50
"""Labels whose worth is estimated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Accuracy on held-out cases against labels.

    Attributes:
        labels: Labels that were learnt from, increasing.
        accuracy: On the cases of the other folds, for each.
        next_points: Accuracy that the next ``NEXT`` labels are worth, in points, if the trend continues.
    """

    labels: tuple[int, ...]
    accuracy: tuple[Interval, ...]
    next_points: Interval

    def to_json(self) -> dict[str, Any]:
        """Return it, JSON-ready."""
        return {
            "labels": list(self.labels),
            "accuracy": [each.model_dump() for each in self.accuracy],
            "next_labels": NEXT,
            "next_points": self.next_points.model_dump(),
        }


def learning_curve(validated: Validated, weights: Mapping[str, float]) -> Curve:
    """Return the learning curve of a head with the strengths and weights that all its cases chose.

    Args:
        validated: The cross-validated regressions.
        weights: Weight of each part.
    """
    with threadpool_limits(1):
        right = np.array([_right(validated, weights, share) for share in SHARES], np.float64)
    folds = int(validated.folds.max()) + 1
    learnt = len(validated.cases) * (folds - 1) / folds
    labels = np.unique([round(learnt * share) for share in SHARES])
    right = right[-len(labels) :]
    total = right.shape[1]
    shares = [metrics.wilson(int(row.sum()), total) for row in right]
    accuracy = tuple(
        Interval(value=float(row.mean()), low=low, high=high) for row, (low, high) in zip(right, shares, strict=True)
    )
    return Curve(labels=tuple(map(int, labels)), accuracy=accuracy, next_points=_next_points(labels, right))


def _right(validated: Validated, weights: Mapping[str, float], share: float) -> npt.NDArray[np.bool_]:
    """Return which cases are right when only a share of the other folds' cases is learnt from, each option's alike."""
    labels, folds = validated.cases.labels, validated.folds
    right = np.zeros(len(labels), bool)
    for fold in range(int(folds.max()) + 1):
        inside = np.flatnonzero(folds == fold)
        learnt = _share(validated, np.flatnonzero(folds != fold), share)
        if len(learnt) == (folds != fold).sum():
            logits = {part: each[inside] for part, each in validated.logits.items()}
        else:
            logits = validated.predict(learnt, inside, tuple(weights))
        summed = sum((weight * logits[part] for part, weight in weights.items()), np.zeros(1))
        right[inside] = np.asarray(summed).argmax(axis=1) == labels[inside]
    return right


def _share(validated: Validated, indices: npt.NDArray[np.int64], share: float) -> npt.NDArray[np.int64]:
    """Return a share of the cases, but one of each option at least, in the file's order."""
    by_label: dict[int, list[int]] = defaultdict(list)
    for index in indices:
        by_label[int(validated.cases.labels[index])].append(int(index))
    kept = [each[: max(1, round(share * len(each)))] for each in by_label.values()]
    return np.array(sorted(index for each in kept for index in each), np.int64)


def _next_points(labels: npt.NDArray[np.int64], right: Array) -> Interval:
    """Fit the share of mistakes as a power of the labels, and extrapolate; the interval is of resampled cases."""
    total = right.shape[1]
    rng = np.random.default_rng(metrics.SEED)
    samples = [rng.integers(0, total, total) for _ in range(metrics.RESAMPLES)]
    means = np.array([right.mean(axis=1), *(right[:, each].mean(axis=1) for each in samples)])
    gains = np.array([gain(labels, row, total=total) for row in means])
    low, high = np.quantile(gains[1:], [0.025, 0.975])
    return Interval(value=float(100 * gains[0]), low=float(100 * low), high=float(100 * high))


def gain(labels: npt.NDArray[np.int64], accuracy: Array, *, total: int) -> float:
    """Return how much accuracy the next ``NEXT`` labels add if mistakes continue to fall as a power of the labels.

    Args:
        labels: Shape ``(sizes,)``, increasing.
        accuracy: For each of them.
        total: Cases that it was measured on: no mistake counts as half a mistake.

    Returns:
        0 where mistakes do not fall, or one size was measured only.
    """
    if len(labels) < 2:
        return 0.0
    wrong = np.maximum(1 - accuracy, 0.5 / total)
    slope, height = np.polyfit(np.log(labels), np.log(wrong), 1)
    now, then = (np.exp(height + min(slope, 0.0) * np.log(count)) for count in (labels[-1], labels[-1] + NEXT))
    return float(min(1.0, now) - min(1.0, then))


_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 640, 360, 56, 44, 16, 16
_COLOURS = ("#1f6feb", "#b35900", "#1a7f37", "#8250df")
_DASHES = ("", "6 4", "2 3", "8 3 2 3")


def svg(curves: Mapping[str, Curve], *, title: str) -> str:
    """Return a figure of learning curves with their intervals, readable on light and dark pages.

    Args:
        curves: By name; at most four can be distinguished.
        title: What it shows, for those who cannot see it as well.
    """
    most, below = max(curve.labels[-1] for curve in curves.values()), _HEIGHT - _BOTTOM + 18
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{_escaped(title)}" font-family="sans-serif" font-size="13">',
        f"<title>{_escaped(title)}</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
    ]
    for tick in np.arange(0.0, 1.01, 0.2):
        y = _y(float(tick))
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="#d0d7de"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#24292f">{tick:.1f}</text>')
    parts += [
        f'<text x="{_x(count, most):.1f}" y="{below}" text-anchor="middle" fill="#24292f">{count}</text>'
        for count in sorted({count for curve in curves.values() for count in curve.labels})
    ]
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text x="{middle:.0f}" y="{_HEIGHT - 6}" text-anchor="middle" fill="#24292f">labels</text>')
    for number, (name, curve) in enumerate(curves.items()):
        colour, dash = _COLOURS[number % len(_COLOURS)], _DASHES[number % len(_DASHES)]
        points = [(_x(count, most), each) for count, each in zip(curve.labels, curve.accuracy, strict=True)]
        line = " ".join(f"{x:.1f},{_y(each.value):.1f}" for x, each in points)
        stroke = f'stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"'
        parts.append(f'<polyline points="{line}" fill="none" {stroke}/>')
        for x, each in points:
            parts.append(f'<path d="M{x:.1f} {_y(each.low):.1f}V{_y(each.high):.1f}" stroke="{colour}"/>')
            parts.append(f'<circle cx="{x:.1f}" cy="{_y(each.value):.1f}" r="3" fill="{colour}"/>')
        y = _HEIGHT - _BOTTOM - 12 - 18 * (len(curves) - 1 - number)
        x = _WIDTH - _RIGHT - 190
        parts.append(
            f'<path d="M{x} {y - 4}h28" {stroke}/><text x="{x + 36}" y="{y}" fill="#24292f">{_escaped(name)}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _x(count: int, most: int) -> float:
    return _LEFT + 12 + (_WIDTH - _LEFT - _RIGHT - 24) * count / most


def _y(share: float) -> float:
    return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - share)


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")

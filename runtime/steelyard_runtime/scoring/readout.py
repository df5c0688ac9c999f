"""From the logits of one position to probabilities of the declared options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

NAME = "letters-raw"


@dataclass(frozen=True, slots=True)
class Readout:
    """Probabilities of the options, and how much of the model's belief they are.

    Attributes:
        probabilities: Softmax over the slots' logits; sums to 1.
        logits: The slots' logits, as llama.cpp gave them.
        slot_mass: Share of the full vocabulary's probability that lies on the slots.
        entropy: Of ``probabilities``, in nats; 0 for certainty, log(n) for none.
    """

    probabilities: tuple[float, ...]
    logits: tuple[float, ...]
    slot_mass: float
    entropy: float


def read(logits: npt.NDArray[np.floating], slots: Sequence[int]) -> Readout:
    """Read one decision.

    Args:
        logits: Over the vocabulary, shape ``(vocabulary,)``.
        slots: Token ids of the options' slots, in option order, distinct.

    Raises:
        ValueError: A logit is NaN or plus infinity; llama.cpp gave something that is no answer.

    Examples:
        >>> read(np.array([0.0, 2.0, 2.0, -1e30]), [1, 2]).probabilities
        (0.5, 0.5)
    """
    top = logits.max()  # NaN where any logit is
    chosen = logits[list(slots)].astype(np.float64)
    if not (np.isfinite(top) and np.isfinite(chosen).all()):
        raise ValueError("the model's logits are not finite")
    weights = np.exp(chosen - chosen.max())
    probabilities = weights / weights.sum()
    positive = probabilities[probabilities > 0]
    return Readout(
        probabilities=tuple(map(float, probabilities)),
        logits=tuple(map(float, chosen)),
        slot_mass=min(1.0, float(np.exp(chosen - float(top)).sum() / _mass(logits, top))),
        entropy=max(0.0, float(-(positive * np.log(positive)).sum())),
    )


def _mass(logits: npt.NDArray[np.floating], top: np.floating) -> float:
    """The vocabulary's exponentials, relative to the largest; in its own precision, because there are many."""
    return float(np.exp(logits - top).sum(dtype=np.float64))

"""Proof that a context computes what it did at the start. Asked for after a fault, before anyone else is answered."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np

from steelyard_runtime.engine.interface import Logits
from steelyard_runtime.engine.llama import Context, Run
from steelyard_runtime.engine.probe import prompt
from steelyard_runtime.legible import reason_of

TOKENS = 8


class EngineBrokenError(Exception):
    """A context does not compute what it did at the start: the engine must not answer anyone any more."""


@dataclass(frozen=True, slots=True, eq=False)
class Vitals:
    """A short text, and what a context made of it at the start.

    Attributes:
        context: The context.
        tokens: The text.
        reference: Its logits, or its embedding where the context pools.
        noise: Largest difference of a value between two evaluations at the start; 0 where they are exact.
    """

    context: Context
    tokens: tuple[int, ...]
    reference: Logits
    noise: float

    @classmethod
    def take(cls, context: Context, *, noise: float) -> Vitals:
        """Evaluate the text in the first sequence, which must be empty, and leave it empty."""
        count = min(TOKENS, context.shape.sequence_tokens, context.shape.batch_tokens)
        tokens = tuple(prompt(context.model.vocabulary, count))
        return cls(context, tokens, _evaluate(context, tokens, 0), noise)

    def prove(self, sequence: int, *, decoding: Callable[[int], AbstractContextManager[object]]) -> None:
        """Evaluate the text again, in an unused sequence; it is emptied before and after.

        Raises:
            EngineBrokenError: The values differ by more than the noise, or there are none.
        """
        try:
            with decoding(len(self.tokens)):
                found = _evaluate(self.context, self.tokens, sequence)
        except Exception as error:
            raise EngineBrokenError(f"after a fault, a fixed text cannot be evaluated: {reason_of(error)}") from error
        if np.array_equal(found, self.reference):
            return
        off = float(np.abs(found.astype(np.float64) - self.reference).max())
        if not off <= self.noise:  # written so that a NaN fails
            raise EngineBrokenError(f"after a fault, a fixed text has values that differ by {off:.3g} from the start's")


def _evaluate(context: Context, tokens: tuple[int, ...], sequence: int) -> Logits:
    if context.shape.pooling != "none":
        return context.embed(tokens)
    context.clear(sequence)
    (logits,) = context.decode([Run(tokens, sequence, 0, True)])
    context.clear(sequence)
    return logits

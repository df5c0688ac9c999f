"""Letters: each option has a letter, and the model's next token says which.

The probabilities are the softmax of the letters' logits, as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from steelyard_runtime.decision import Layout, Question
from steelyard_runtime.scoring import prompt
from steelyard_runtime.scoring.prompt import PromptFrame, Template
from steelyard_runtime.scoring.slots import Slots, derive
from steelyard_runtime.scoring.strategy import Encode, Position, Prompt, Readout, entropy_of


@dataclass(frozen=True, slots=True)
class Letters:
    """The strategy."""

    name: str = "letters-raw"
    hidden: bool = False
    in_template: bool = True
    calibrated: bool = False

    def prompt_version(self, layout: Layout) -> str:
        """See ``Strategy``."""
        return prompt.VERSIONS[layout]

    def refusal(self, question: Question) -> str:  # noqa: ARG002 - a letter stands for anything
        """See ``Strategy``."""
        return ""

    def on(self, template: Template, encode: Encode, *, max_options: int) -> LettersReader:
        """See ``Strategy``."""
        frame = prompt.frame(template)
        return LettersReader(frame, derive(encode, after=frame.after, prefix=frame.slot_prefix, wanted=max_options))


@dataclass(frozen=True, slots=True)
class LettersReader:
    """Letters on one model.

    Attributes:
        frame: The text around a decision.
        slots: The letters, and their tokens.
    """

    frame: PromptFrame
    slots: Slots

    @property
    def most_options(self) -> int:
        """See ``Reader``."""
        return len(self.slots)

    def prompts(self, layout: Layout, *, state: str, question: Question) -> tuple[Prompt]:
        """See ``Reader``."""
        labels = self.slots.labels[: len(question.options)]
        parts = prompt.parts(layout, state=state, question=question, labels=labels, prompt_frame=self.frame)
        return (Prompt(self.frame.before, parts.shared, parts.rest, private=layout == "state-first"),)

    def read(self, positions: Sequence[Position], *, state: str, question: Question) -> Readout:  # noqa: ARG002
        """See ``Reader``."""
        (position,) = positions
        return read(position.logits, self.slots.token_ids[: len(question.options)])


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
    return Readout(
        probabilities=tuple(map(float, probabilities)),
        logits=tuple(map(float, chosen)),
        slot_token_ids=tuple(slots),
        slot_mass=min(1.0, float(np.exp(chosen - float(top)).sum() / _mass(logits, top))),
        entropy=entropy_of(probabilities),
    )


def _mass(logits: npt.NDArray[np.floating], top: np.floating) -> float:
    """The vocabulary's exponentials, relative to the largest; in its own precision, because there are many."""
    return float(np.exp(logits - top).sum(dtype=np.float64))

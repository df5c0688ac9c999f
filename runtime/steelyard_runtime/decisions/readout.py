"""The readout of a fitted decision: its head, on the hidden state behind the state and its wording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from steelyard_runtime.decision import Layout, Question
from steelyard_runtime.decisions.head import Head
from steelyard_runtime.errors import Kind, Problem
from steelyard_runtime.scoring.prompt import Template
from steelyard_runtime.scoring.strategy import Encode, Position, Prompt, Readout, entropy_of
from steelyard_runtime.scoring.wordings import WORDINGS, Wording, state_prompt
from steelyard_runtime.scoring.words import TextTooLongError, check_text


@dataclass(frozen=True, slots=True)
class HeadReadout:
    """A strategy, and its reader on the model that the head was fitted on.

    Attributes:
        name: Named in answers.
        head: The head.
    """

    name: str
    head: Head
    hidden: bool = True
    in_template: bool = False
    calibrated: bool = True

    @property
    def wording(self) -> Wording:
        """The words around a state."""
        return WORDINGS[self.head.description.bound.wording]

    @property
    def most_options(self) -> int:
        """See ``Reader``."""
        return len(self.head.description.options)

    def prompt_version(self, layout: Layout) -> str:  # noqa: ARG002 - the prompt is the state alone
        """See ``Strategy``."""
        return self.wording.name

    def refusal(self, question: Question) -> str:  # noqa: ARG002 - it was fitted for its own
        """See ``Strategy``."""
        return ""

    def on(self, template: Template, encode: Encode, *, max_options: int) -> HeadReadout:  # noqa: ARG002
        """See ``Strategy``."""
        return self

    def prompts(self, layout: Layout, *, state: str, question: Question) -> tuple[Prompt]:  # noqa: ARG002
        """The state in its wording: the same for every decision about it.

        Raises:
            Problem: OVER_BUDGET; the head counts words, and the state has too many bytes for that.
        """
        if self.head.linear.words is not None:
            try:
                check_text(state)
            except TextTooLongError as error:
                raise Problem(Kind.OVER_BUDGET, str(error), counts=error.counts) from error
        return (state_prompt(self.wording, state),)

    def read(self, positions: Sequence[Position], *, state: str, question: Question) -> Readout:  # noqa: ARG002
        """See ``Reader``."""
        (position,) = positions
        if position.hidden is None:
            raise ValueError("the engine gave no hidden state")
        answer = self.head.apply(position.hidden, state)
        return Readout(
            probabilities=answer.probabilities,
            logits=answer.logits,
            slot_token_ids=(),
            slot_mass=None,
            entropy=entropy_of(np.array(answer.probabilities)),
            distance_rank=answer.distance_rank,
        )

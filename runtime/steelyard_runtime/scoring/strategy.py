"""The seam between a question and what the model gives: which prompt a readout needs, and what it reads at its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from steelyard_runtime.decision import Layout, Question
from steelyard_runtime.engine.interface import Piece
from steelyard_runtime.scoring.prompt import Template

Encode = Callable[[Sequence[Piece]], list[int]]
"""Token ids of pieces that continue a prompt."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt, in three parts that are tokenized and evaluated by themselves.

    Attributes:
        before: The beginning of every prompt of the strategy; never a caller's text.
        shared: What prompts of other questions, or on other states, may continue from, too; may be empty.
        rest: The rest, up to the position that is read.
        private: ``shared`` holds the state, so that it serves its caller only.
        kept: The hidden state at its end is kept for later decisions of all callers; it has no caller's state in it.
    """

    before: tuple[Piece, ...]
    shared: tuple[Piece, ...]
    rest: tuple[Piece, ...]
    private: bool
    kept: bool = False


@dataclass(frozen=True, slots=True)
class Position:
    """The end of one prompt.

    Attributes:
        logits: Over the vocabulary, shape ``(vocabulary,)``; empty for a prompt that is kept.
        hidden: The hidden state, shape ``(embedding_size,)``; None for a strategy that does not ask for it.
    """

    logits: npt.NDArray[np.floating]
    hidden: npt.NDArray[np.floating] | None = None


@dataclass(frozen=True, slots=True)
class Readout:
    """Probabilities of the options, and how much of the model's belief they are.

    Attributes:
        probabilities: One for each option, in order; they sum to 1.
        logits: What the probabilities are the softmax of.
        slot_token_ids: Tokens that stand for the options; empty for a readout without such.
        slot_mass: Share of the full vocabulary's probability that lies on the slots; None without slots.
        entropy: Of ``probabilities``, in nats; 0 for certainty, log(n) for none.
        distance_rank: How unlike the labelled cases the state is, 0 to 1; None for a readout that measures no distance.
    """

    probabilities: tuple[float, ...]
    logits: tuple[float, ...]
    slot_token_ids: tuple[int, ...]
    slot_mass: float | None
    entropy: float
    distance_rank: float | None = None


def entropy_of(probabilities: npt.NDArray[np.float64]) -> float:
    """Return the entropy of a distribution in nats."""
    positive = probabilities[probabilities > 0]
    return max(0.0, float(-(positive * np.log(positive)).sum()))


def without_slots(logits: npt.NDArray[np.float64]) -> Readout:
    """The readout of logits that are no tokens': their softmax."""
    weights = np.exp(logits - logits.max())
    probabilities = weights / weights.sum()
    return Readout(
        probabilities=tuple(map(float, probabilities)),
        logits=tuple(map(float, logits)),
        slot_token_ids=(),
        slot_mass=None,
        entropy=entropy_of(probabilities),
    )


class Reader(Protocol):
    """A strategy on one model."""

    @property
    def most_options(self) -> int:
        """Options that one question may have."""
        ...

    def prompts(self, layout: Layout, *, state: str, question: Question) -> tuple[Prompt, ...]:
        """The prompts to evaluate; one, or several whose ends are read together."""
        ...

    def read(self, positions: Sequence[Position], *, state: str, question: Question) -> Readout:
        """The probabilities of the question's options.

        Args:
            positions: The end of each prompt, in the order of ``prompts``.
            state: What the question is about.
            question: The question.

        Raises:
            ValueError: The model gave something that is no answer.
        """
        ...


class Strategy(Protocol):
    """A readout, before it meets a model."""

    @property
    def name(self) -> str:
        """Named in every answer."""
        ...

    @property
    def hidden(self) -> bool:
        """Tell whether it reads the hidden state."""
        ...

    @property
    def in_template(self) -> bool:
        """Tell whether its prompts are turns of the model's chat template; else they are plain text."""
        ...

    @property
    def calibrated(self) -> bool:
        """Tell whether its probabilities were fitted to labelled cases."""
        ...

    def prompt_version(self, layout: Layout) -> str:
        """Version of its prompt's words; the same for both where its prompts have no layout."""
        ...

    def refusal(self, question: Question) -> str:
        """The reason why it cannot read a question, whatever the model; empty where it can."""
        ...

    def on(self, template: Template, encode: Encode, *, max_options: int) -> Reader:
        """The strategy on a model.

        Args:
            template: The model's chat template.
            encode: The model's tokenizer.
            max_options: Options that the server allows.

        Raises:
            NoFrameError: No decision can be read behind the template's prompts.
            ValueError: The model's vocabulary has no usable answer slots.
        """
        ...

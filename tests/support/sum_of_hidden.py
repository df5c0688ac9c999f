"""A readout that nobody needs: sums over parts of the hidden state after the state alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from steelyard_runtime.decision import Layout, Question
from steelyard_runtime.engine.interface import Piece
from steelyard_runtime.scoring.prompt import Template
from steelyard_runtime.scoring.strategy import Encode, Position, Prompt, Readout


@dataclass(frozen=True)
class SumOfHidden:
    """Strategy and reader in one, since it needs nothing of the model."""

    name: str = "sum-of-hidden"
    hidden: bool = True
    in_template: bool = False
    calibrated: bool = False
    most_options: int = 3

    def prompt_version(self, layout: Layout) -> str:
        return "sum-1"

    def refusal(self, question: Question) -> str:
        return ""

    def on(self, template: Template, encode: Encode, *, max_options: int) -> SumOfHidden:
        return self

    def prompts(self, layout: Layout, *, state: str, question: Question) -> tuple[Prompt]:
        return (Prompt((Piece("Sum up: "),), (), (Piece(f"{state}."),), private=False),)

    def read(self, positions: Sequence[Position], *, state: str, question: Question) -> Readout:
        (position,) = positions
        assert position.hidden is not None
        options = len(question.options)
        logits = np.array([position.hidden[index::options].sum() for index in range(options)], np.float64)
        weights = np.exp(logits - logits.max())
        probabilities = tuple(map(float, weights / weights.sum()))
        return Readout(probabilities, tuple(map(float, logits)), (), 1.0, 0.0)

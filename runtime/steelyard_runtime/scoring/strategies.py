"""The readouts that there are. A new one is a file here and an entry in ``STRATEGIES``."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from steelyard_runtime.decision import Layout, Question
from steelyard_runtime.errors import Kind, Problem
from steelyard_runtime.scoring.letters import Letters
from steelyard_runtime.scoring.options_as_cases import OptionsAsCases
from steelyard_runtime.scoring.question_as_case import QuestionAsCase
from steelyard_runtime.scoring.strategy import Strategy

Strategies = Mapping[str, Strategy]
"""By name. The first one that can read a question reads it where none is named."""

STRATEGIES: Strategies = MappingProxyType({each.name: each for each in (OptionsAsCases(), QuestionAsCase(), Letters())})

SMALL_MODEL_PARAMETERS = 1_000_000_000
"""Below this a model names letters by habit, and the likeness of texts is better on every set that was measured."""


def in_order(strategies: Strategies, *, setting: str, parameters: int) -> Strategies:
    """The strategies in the order in which they are asked whether they can read a question that names none.

    Args:
        strategies: The server's.
        setting: ``auto``, or the name of the one that comes first.
        parameters: Of the model. Letters come first for ``auto`` where it is not small.
    """
    first = setting
    if setting == "auto":
        if parameters < SMALL_MODEL_PARAMETERS:
            return strategies
        first = Letters().name
    return {first: strategies[first], **strategies}


def choose(name: str | None, question: Question, strategies: Strategies, layout: Layout | None = None) -> Strategy:
    """The strategy that a question is read with.

    Args:
        name: Asked for; None takes the first one that can read the question.
        question: The question.
        strategies: Those of the server.
        layout: Asked for; without a name it takes the first one whose prompts have a layout.

    Raises:
        Problem: INVALID; there is none of that name, or it cannot read the question.
    """
    if name is None:
        able = [each for each in strategies.values() if not each.refusal(question)]
        return next((each for each in able if layout is not None and _has_layouts(each)), able[0])
    if (found := strategies.get(name)) is None:
        raise Problem(Kind.INVALID, f"there is no readout {name!r}; there are: {', '.join(strategies)}")
    if refusal := found.refusal(question):
        raise Problem(
            Kind.INVALID,
            f"the readout {name} cannot read the question: {refusal}. Another one, such as {Letters().name}, can",
        )
    return found


def _has_layouts(strategy: Strategy) -> bool:
    """Tell whether the layout changes its prompts."""
    return strategy.prompt_version("state-first") != strategy.prompt_version("options-first")

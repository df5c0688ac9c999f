"""The question as a case: yes, where the state is more like the question's own text than reference texts are.

Yes and no say nothing of a state, but the question does. State and question are read as options and states are
(``options_as_cases``): the state is seen from the mean of the reference texts, and the question from the mean of
reference questions, so that a state is not like a question because it asks something. Their cosine is counted in
standard deviations of the reference texts' cosines with the question. Yes is as likely as no at ``EVEN`` of them: most
states are not what a question asks for.

It sees what a state is about, and no negation: it is for models that are too small to read the question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from steelyard_runtime.decision import Layout, Option, Question
from steelyard_runtime.scoring.options_as_cases import (
    REFERENCES,
    WORDING,
    Array,
    cosines,
    kept_prompt,
    says_something,
    vector_of,
)
from steelyard_runtime.scoring.prompt import Template
from steelyard_runtime.scoring.strategy import Encode, Position, Prompt, Readout, without_slots
from steelyard_runtime.scoring.wordings import state_prompt

VERSION = "question-as-case-2"
EVEN = 1.0
"""Standard deviations at which yes and no are equally likely; chosen on labelled cases of two public sets."""
QUESTIONS = (
    "Is the message about a holiday?",
    "Does the text mention a date?",
    "Is the customer a child?",
    "Is this written in French?",
    "Did the caller ask for a manager?",
    "Is the document signed?",
    "Does the user want to know the time?",
    "Is the request about food?",
)
"""Questions of no subject in particular: what all questions have in common is where they lie."""
NAMES = ("yes", "no")


@dataclass(frozen=True, slots=True)
class QuestionAsCase:
    """The strategy, and its reader: it needs nothing of a model but hidden states."""

    name: str = "question-as-case"
    hidden: bool = True
    in_template: bool = False
    calibrated: bool = False
    most_options: int = len(NAMES)

    def prompt_version(self, layout: Layout) -> str:  # noqa: ARG002 - the state stands alone
        """See ``Strategy``."""
        return VERSION

    def refusal(self, question: Question) -> str:
        """See ``Strategy``: the options are yes and no, and the question has a text."""
        if sorted(map(_answer, question.options)) != sorted(NAMES):
            return "its options are not yes and no"
        return "" if says_something(_case(question)) else "its text has no words; say what is asked"

    def on(self, template: Template, encode: Encode, *, max_options: int) -> QuestionAsCase:  # noqa: ARG002
        """See ``Strategy``."""
        return self

    def prompts(self, layout: Layout, *, state: str, question: Question) -> tuple[Prompt, ...]:  # noqa: ARG002
        """The state, the question, the reference questions, and the reference texts."""
        return (
            state_prompt(WORDING, state),
            *(kept_prompt(text) for text in (_case(question), *QUESTIONS, *REFERENCES)),
        )

    def read(self, positions: Sequence[Position], *, state: str, question: Question) -> Readout:  # noqa: ARG002
        """See ``Reader``."""
        asked_of, asked, *others = map(vector_of, positions)
        questions, references = np.array(others[: len(QUESTIONS)]), np.array(others[len(QUESTIONS) :])
        yes = likeness(asked_of, asked - questions.mean(axis=0), references) - EVEN
        logits = np.array([yes if _answer(option) == "yes" else 0.0 for option in question.options])
        return without_slots(logits)


def likeness(state: Array, question: Array, references: Array) -> float:
    """The likeness of state and question, in standard deviations of the reference texts' likeness; 0 if equal.

    Args:
        state: Shape ``(embedding_size,)``.
        question: Less the mean of reference questions, shape ``(embedding_size,)``.
        references: Shape ``(texts, embedding_size)``; each is seen from the mean of the others.
    """
    spread = references.std(axis=0)
    usual = np.array(
        [
            _cosine(reference, question, np.delete(references, index, axis=0).mean(axis=0), spread)
            for index, reference in enumerate(references)
        ]
    )
    away = _cosine(state, question, references.mean(axis=0), spread) - usual.mean()
    return float(away / usual.std()) if usual.std() > 0 else 0.0


def _cosine(one: Array, question: Array, middle: Array, spread: Array) -> float:
    """The cosine of a text, seen from the middle, and a question that was seen from its own."""
    return float(cosines(one, (question + middle)[None], spread=spread, middle=middle)[0])


def _answer(option: Option) -> str:
    return (option.name or option.id).lower()


def _case(question: Question) -> str:
    """The description of yes, where there is one; else the question."""
    for option in question.options:
        if _answer(option) == "yes" and (said := option.text[len(option.name) :].removeprefix(":").strip()):
            return said
    return question.instructions.strip()

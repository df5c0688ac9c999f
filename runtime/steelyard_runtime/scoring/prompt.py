"""The words of a decision's prompt. To change them, change them here and give the layout's version a new number.

Two layouts, because what comes first can be evaluated once and used again. State first: instructions, the state, then
question and options, right before the answer, where a small model heeds them best. Options first: instructions,
question and options, then the state and the options' names once more: a new state costs little more than itself. The
prompt is plain text without JSON, and in a chat template without headings or brackets: every token costs time, and on
labelled cases small models decided better without them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from steelyard_runtime.decision import Layout, Option, Question
from steelyard_runtime.engine.interface import Piece
from steelyard_runtime.errors import Problem
from steelyard_runtime.generation import Message
from steelyard_runtime.templates.answer_position import AnswerPosition

VERSIONS: Mapping[Layout, str] = MappingProxyType(
    {"state-first": "state-first-letters-2", "options-first": "options-first-letters-2"}
)
INSTRUCTIONS = "Read the input and answer the question with the letter of exactly one option."
ASK_WITHOUT_QUESTION = "Which option describes the input best?"
_PLACE = "\ue000input\ue001"


class NoFrameError(ValueError):
    """No decision can be read from the template's prompts; the message is the reason."""


class Template(Protocol):
    """The part of ``chat_template.ChatTemplate`` that prompts need."""

    @property
    def name(self) -> str:
        """``"plain"`` for a model without a template."""
        ...

    @property
    def answer_position(self) -> AnswerPosition:
        """The end of its prompts."""
        ...

    def render(self, messages: Sequence[Message]) -> list[Piece]:
        """The pieces of a prompt that ends where the assistant's answer begins."""
        ...


@dataclass(frozen=True, slots=True)
class Headings:
    """The words that name each part; ``mark`` follows an option's label."""

    state: str = ""
    question: str = ""
    options: str = ""
    mark: str = ""


PLAIN_HEADINGS = Headings(state="Input:\n", question="Question: ", options="Options:\n", mark=")")
"""A model without a template only continues a text. Without these it does not see that the letters are labels."""


@dataclass(frozen=True, slots=True)
class PromptFrame:
    """The fixed text around a decision: before the input, after the options, and what precedes a slot's label.

    ``slot_prefix`` is a space where the model has to write " A" after "Answer:", and nothing after a template's
    assistant header.
    """

    before: tuple[Piece, ...]
    after: tuple[Piece, ...]
    slot_prefix: str
    headings: Headings = Headings()


def frame(template: Template) -> PromptFrame:
    """The frame in the model's own chat template, or the plain one for a model without a template.

    Raises:
        NoFrameError: The template does not take the frame's messages as they are, or its prompts end in a place where
            it puts no answers.
    """
    if template.name == "plain":
        return PromptFrame((Piece(INSTRUCTIONS + "\n\n"),), (Piece("Answer:"),), " ", PLAIN_HEADINGS)
    try:
        pieces = template.render([Message("system", INSTRUCTIONS), Message("user", _PLACE)])
    except Problem as problem:
        raise NoFrameError(problem.message) from problem
    places = [i for i, piece in enumerate(pieces) if not piece.control and _PLACE in piece.text]
    if len(places) != 1 or pieces[places[0]].text.count(_PLACE) != 1:
        raise NoFrameError("the chat template does not show a user's text once and unchanged")
    if template.answer_position.rule == "unknown" or places[0] == len(pieces) - 1:
        raise NoFrameError(template.answer_position.sentence)
    at = places[0]
    head, _, rest = pieces[at].text.partition(_PLACE)
    before = [*pieces[:at], Piece(head)]
    return PromptFrame(
        tuple(p for p in before if p.text), tuple(p for p in (Piece(rest), *pieces[at + 1 :]) if p.text), ""
    )


@dataclass(frozen=True, slots=True)
class Parts:
    """The text between the frame's two sides: first a part that other prompts may share, then the rest."""

    shared: tuple[Piece, ...]
    rest: tuple[Piece, ...]


def parts(layout: Layout, *, state: str, question: Question, labels: Sequence[str], prompt_frame: PromptFrame) -> Parts:
    """One question about one state, up to where the model has to name a label."""
    headings = prompt_frame.headings
    marked = [f"{label}{headings.mark}" for label in labels]
    asked = _asked(question, marked, headings)
    end = "\n" if prompt_frame.slot_prefix else ""
    if layout == "state-first":
        return Parts((Piece(f"{headings.state}{state}\n\n"),), (Piece(asked + end), *prompt_frame.after))
    reminder = _reminder(question.options, marked)
    return Parts((Piece(f"{asked}\n\n{headings.state}"),), (Piece(f"{state}\n\n{reminder}{end}"), *prompt_frame.after))


def _asked(question: Question, labels: Sequence[str], headings: Headings) -> str:
    options = "\n".join(f"{label} {option.text}" for label, option in zip(labels, question.options, strict=True))
    asked = question.instructions.strip() or ASK_WITHOUT_QUESTION
    return f"{headings.question}{asked}\n{headings.options}{options}"


def _reminder(options: Sequence[Option], labels: Sequence[str]) -> str:
    """The options once more, by name, or by letter alone where they have no names."""
    if all(option.name for option in options):
        return "\n".join(f"{label} {option.name}" for label, option in zip(labels, options, strict=True))
    return " ".join(labels)

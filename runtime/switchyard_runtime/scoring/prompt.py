"""The words of a decision's prompt. To change them, change them here and give the layout's version a new number.

Two layouts, because what comes first can be evaluated once and used again. Options first: instructions, question and
options, then the state, so that a new state costs little more than its own tokens. State first: instructions, the
state, then question and options, so that many questions share one long state. The prompt is plain text without JSON
around it, because every token costs time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, Protocol

from switchyard_runtime.decision import Layout, Question
from switchyard_runtime.engine.interface import Piece
from switchyard_runtime.generation import Message

Order = Literal["options-first", "state-first"]
VERSIONS: Mapping[Order, str] = MappingProxyType(
    {"options-first": "options-first-letters-1", "state-first": "state-first-letters-1"}
)
LONG_STATE_TOKENS = 256
"""A longer state comes first: evaluating it again for another question would cost more than the question itself."""
INSTRUCTIONS = "Read the input and answer the question with the letter of exactly one option."
ASK_WITHOUT_QUESTION = "Which option describes the input best?"
_PLACE = "\ue000input\ue001"


class Template(Protocol):
    """What is needed of ``chat_template.ChatTemplate``."""

    @property
    def name(self) -> str:
        """``"plain"`` for a model without a template."""
        ...

    def render(self, messages: Sequence[Message]) -> list[Piece]:
        """The pieces of a prompt that ends where the assistant's answer begins."""
        ...


@dataclass(frozen=True, slots=True)
class PromptFrame:
    """The fixed text around a decision: before the input, after the options, and what precedes a slot's label.

    ``slot_prefix`` is a space where the model has to write " A" after "Answer:", and nothing after a template's
    assistant header.
    """

    before: tuple[Piece, ...]
    after: tuple[Piece, ...]
    slot_prefix: str


def frame(template: Template) -> PromptFrame:
    """The frame in the model's own chat template, or the plain one for a model without a template."""
    if template.name == "plain":
        return PromptFrame((Piece(INSTRUCTIONS + "\n\n"),), (Piece("Answer:"),), " ")
    pieces = template.render([Message("system", INSTRUCTIONS), Message("user", _PLACE)])
    at = next(i for i, piece in enumerate(pieces) if not piece.control and _PLACE in piece.text)
    head, _, rest = pieces[at].text.partition(_PLACE)
    before = [*pieces[:at], Piece(head)]
    return PromptFrame(
        tuple(p for p in before if p.text), tuple(p for p in (Piece(rest), *pieces[at + 1 :]) if p.text), ""
    )


def order_of(layout: Layout, *, state_tokens: int) -> Order:
    """What comes first. ``auto`` looks at the state alone, so that a question's company does not change its prompt."""
    if layout != "auto":
        return layout
    return "state-first" if state_tokens > LONG_STATE_TOKENS else "options-first"


@dataclass(frozen=True, slots=True)
class Parts:
    """What lies between the frame's two sides: first a part that other prompts may share, then the rest."""

    shared: tuple[Piece, ...]
    rest: tuple[Piece, ...]


def parts(order: Order, *, state: str, question: Question, labels: Sequence[str], prompt_frame: PromptFrame) -> Parts:
    """One question about one state, up to where the model has to name a label."""
    asked = _question_text(question, labels)
    end = "\n" if prompt_frame.slot_prefix else ""
    if order == "state-first":
        return Parts((Piece(f"Input:\n{state}\n\n"),), (Piece(asked + end), *prompt_frame.after))
    return Parts((Piece(f"{asked}\n\nInput:\n"),), (Piece(f"{state}\n{end}"), *prompt_frame.after))


def _question_text(question: Question, labels: Sequence[str]) -> str:
    lines = [f"Question: {question.instructions.strip() or ASK_WITHOUT_QUESTION}", "Options:"]
    lines += [f"{label}) {option.text}" for label, option in zip(labels, question.options, strict=True)]
    return "\n".join(lines)

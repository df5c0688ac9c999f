"""The words of a decision's prompt. To change them, change them here and give the version a new number.

State first: instructions, then the state, then question and options, so that many questions share one state. The
prompt is plain text without JSON around it, because every token costs time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from switchyard_runtime.decision import Question
from switchyard_runtime.engine.interface import Piece
from switchyard_runtime.generation import Message

VERSION = "state-first-letters-1"
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


def state_pieces(state: str) -> list[Piece]:
    """The input, which all questions of a request share."""
    return [Piece(f"Input:\n{state}\n\n")]


def tail_pieces(question: Question, labels: Sequence[str], prompt_frame: PromptFrame) -> list[Piece]:
    """One question with its labelled options, up to where the model has to name a label."""
    lines = [f"Question: {question.instructions.strip() or ASK_WITHOUT_QUESTION}", "Options:"]
    lines += [f"{label}) {option.text}" for label, option in zip(labels, question.options, strict=True)]
    end = "\n" if prompt_frame.slot_prefix else ""
    return [Piece("\n".join(lines) + end), *prompt_frame.after]

"""The text that the model reads of a request."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from steelyard_runtime.contracts.contract import AskedDecisions
from steelyard_runtime.contracts.limits import Limits
from steelyard_runtime.contracts.openai_decisions.request import (
    AnyQuestion,
    AssistantMessage,
    Choice,
    ChoiceModel,
    CustomToolCall,
    FunctionCall,
    InputJSON,
    Level,
    Message,
    Predicate,
    Refusal,
    Registered,
    Score,
    parse,
)
from steelyard_runtime.contracts.text import labelled, render
from steelyard_runtime.decision import DecisionRequest, Option, Question

# What a reader may take for the end of a line: those of str.splitlines().
_LINE_BREAKS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded(AskedDecisions):
    """A valid request; ``questions`` are as the caller sent them, in the order of ``request.questions``.

    For a registered decision a question stands there that is answered as its contract has it.
    """

    questions: tuple[Predicate | Choice | Score, ...]


def decode(body: Any, limits: Limits) -> Decoded:
    """The questions of a body.

    Raises:
        Problem: ``INVALID`` (or ``UNSUPPORTED`` for images); names the field.
    """
    parsed = parse(body, limits=limits)
    return Decoded(
        request=DecisionRequest(
            state=parsed.input if isinstance(parsed.input, str) else "\n".join(map(_block, parsed.input)),
            questions=tuple(_question(question, limits) for question in parsed.questions),
            layout=parsed.x_layout,
            readout=parsed.x_readout,
        ),
        questions=tuple(_answered_as(question, limits) for question in parsed.questions),
        model=parsed.model,
    )


def _block(item: Any) -> str:
    match item:
        case Message():
            return _headed(item.role, {}, _content(item.content))
        case AssistantMessage():
            return _headed(item.role, {"phase": item.phase}, _content(item.content))
        case FunctionCall():
            return _headed(item.type, _call_header(item), item.arguments)
        case CustomToolCall():
            return _headed(item.type, _call_header(item), item.input)
        case _:
            return _headed(item.type, {"call_id": item.call_id, "status": item.status}, _content(item.output))


def _call_header(call: FunctionCall | CustomToolCall) -> dict[str, str | None]:
    return {"namespace": call.namespace, "name": call.name, "call_id": call.call_id, "status": call.status}


def _headed(title: str, fields: dict[str, str | None], content: str) -> str:
    header = "".join(
        f" {name}={json.dumps(value, ensure_ascii=False)}" for name, value in fields.items() if value is not None
    )
    return f"{title}{_indented(header)}: {_indented(content)}"


def _indented(text: str) -> str:
    for line_break in _LINE_BREAKS:
        text = text.replace(line_break, line_break + "  ")
    return text.replace("\r  \n", "\r\n")


def _content(content: str | Sequence[Any]) -> str:
    return content if isinstance(content, str) else "\n".join(map(_part, content))


def _part(part: Any) -> str:
    match part:
        case InputJSON():
            return render(part.data)
        case Refusal():
            return f"refusal: {part.refusal}"
        case _:
            return str(part.text)


def _question(question: AnyQuestion, limits: Limits) -> Question:
    if isinstance(question, Registered):
        return limits.registered()[question.use]
    instructions = _content(question.instructions)
    match question:
        case Predicate():
            options: tuple[Option, ...] = tuple(Option(id=name, text=name, name=name) for name in ("yes", "no"))
        case Choice():
            options = tuple(
                Option(id=label, text=labelled(label, choice.description or ""), name=label)
                for label, choice in zip(_labels(question.choices), question.choices, strict=True)
            )
        case Score():
            options = tuple(
                Option(id=str(index), text=labelled(level.label, level.description or ""), name=level.label)
                for index, level in enumerate(question.levels)
            )
    return Question(instructions=instructions, options=options, ordered=isinstance(question, Score))


def _answered_as(question: AnyQuestion, limits: Limits) -> Predicate | Choice | Score:
    if not isinstance(question, Registered):
        return question
    registered = limits.registered()[question.use]
    kind = registered.registration.type if registered.registration else "choice"
    instructions, name, options = registered.instructions, question.name, registered.options
    match kind:
        case "yesno":
            return Predicate(type="predicate", instructions=instructions, name=name)
        case "score":
            levels = [Level(label=option.id) for option in options]
            return Score.model_construct(type="score", instructions=instructions, levels=levels, name=name)
        case "choice":
            choices = [ChoiceModel(value=option.id) for option in options]
            return Choice.model_construct(type="choice", instructions=instructions, choices=choices, name=name)


def _labels(choices: Sequence[ChoiceModel]) -> list[str]:
    """Distinct labels; JSON strings where plain ones would coincide with a boolean."""
    plain = [render(choice.value) for choice in choices]
    if len(set(plain)) == len(plain):
        return plain
    return [json.dumps(choice.value, ensure_ascii=False) for choice in choices]

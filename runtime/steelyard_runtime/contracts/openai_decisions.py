"""OpenAI Decisions: a list of predicates, choices and scores on one input.

What the model reads:

- ``input`` as a string, verbatim. As a list, one block per item, in order; every line of an item's content after the
  first is indented by two spaces, so that no content can pass for the start of another item::

      user: My order is late.
        It was due on Monday.
      function_call name="track" call_id="c1": {"order":7}
      function_call_output call_id="c1": in transit
      assistant phase="final_answer": It arrives today.

  Values in a header are JSON strings. ``phase``, ``status`` and ``namespace`` are shown when given; an item's ``id``
  only identifies it to the API and is not. Parts are joined by line breaks, ``input_json`` as compact JSON, a refusal
  as ``refusal: ...``. Messages of every role are evidence, never instructions to this server. JSON parts are accepted
  wherever text parts are.
- A predicate has the options ``yes`` and ``no``. A choice shows its value, a level its label, followed by
  ``: description`` when there is one. A boolean is shown as ``true`` or ``false``; when a string of the same spelling
  is also a choice, the strings are shown as JSON strings.

Caching: ``prompt_cache_breakpoint``, ``prompt_cache_key`` and ``prompt_cache_options`` (``mode`` implicit, ``ttl``) are
accepted as hints. They change no answer; the server keeps the prefixes that its memory allows, by caller, at boundaries
of its own, and ``usage`` says what was reused. The mode ``explicit`` is refused: a request cannot switch the reuse of
its own prefixes off. ``safety_identifier`` asks for nothing; it is accepted, not stored and not shown to the model.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    PlainValidator,
    StrictStr,
    StringConstraints,
    Tag,
    ValidationError,
    WithJsonSchema,
)

from steelyard_runtime.contracts import model_names
from steelyard_runtime.contracts.answer_details import (
    ModelIdentity,
    argmax,
    choice_confidence,
    expected_level,
    extensions,
    score_confidence,
)
from steelyard_runtime.contracts.limits import MAX_OPTIONS, Limits
from steelyard_runtime.contracts.model_names import MODEL
from steelyard_runtime.contracts.neutral import IgnoredText
from steelyard_runtime.contracts.option_names import PATTERN, RULE, check_names
from steelyard_runtime.contracts.text import labelled, render
from steelyard_runtime.contracts.validation import (
    LAYOUT,
    Checking,
    NonEmpty,
    Path,
    Strict,
    fault,
    from_pydantic,
    invalid,
    quote,
    refuse_repeated,
    sized,
    unsupported,
)
from steelyard_runtime.decision import Answer, DecisionRequest, Layout, Option, Question
from steelyard_runtime.errors import Problem, openai_error

NAME = "openai_decisions"
GENERIC_NAMES = model_names.GENERIC_NAMES

MAX_QUESTIONS = 400

_UNIONS: tuple[Path, ...] = (
    ("input",),
    ("input", ...),
    ("input", ..., "content"),
    ("input", ..., "content", ...),
    ("input", ..., "output"),
    ("input", ..., "output", ...),
    ("questions", ...),
    ("questions", ..., "instructions"),
    ("questions", ..., "instructions", ...),
)
# What a reader may take for the end of a line: those of str.splitlines().
_LINE_BREAKS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"


def _text_or_parts(value: Any) -> str | None:
    return "text" if isinstance(value, str) else "parts" if isinstance(value, list) else None


_TEXT_OR_PARTS = Discriminator(
    _text_or_parts,
    custom_error_type="text_or_parts",
    custom_error_message="must be a string or an array",
)


class CacheBreakpoint(Strict):
    """A hint that a reusable prefix ends here."""

    mode: Literal["explicit"]


class InputText(Strict):
    """Text."""

    type: Literal["input_text"]
    text: StrictStr
    prompt_cache_breakpoint: CacheBreakpoint | None = None


class QuestionText(Strict):
    """Text of a question."""

    type: Literal["input_text"]
    text: StrictStr


def _objects(data: Any) -> Any:
    if isinstance(data, dict) or (isinstance(data, list) and all(isinstance(item, dict) for item in data)):
        return data
    raise fault("json_data", f"must be an object or an array of objects; got {quote(data)}")


class InputJSON(Strict):
    """JSON, shown as compact text."""

    type: Literal["input_json"]
    data: Annotated[
        Any,
        PlainValidator(_objects),
        WithJsonSchema({"anyOf": [{"type": "object"}, {"type": "array", "items": {"type": "object"}}]}),
    ]


class OutputText(Strict):
    """Text that an assistant wrote."""

    type: Literal["output_text"]
    text: StrictStr


class Refusal(Strict):
    """A refusal that an assistant wrote."""

    type: Literal["refusal"]
    refusal: StrictStr


def _no_image(part: Any) -> Any:
    # Before the union looks at the part, so that the fault is named at the part itself.
    if isinstance(part, dict) and part.get("type") == "input_image":
        raise unsupported("image parts are not supported: this server's models read text only; remove the part")
    return part


InputPart: TypeAlias = Annotated[InputText | InputJSON, Discriminator("type"), BeforeValidator(_no_image)]
QuestionPart: TypeAlias = Annotated[QuestionText | InputJSON, Discriminator("type"), BeforeValidator(_no_image)]
AssistantPart: TypeAlias = Annotated[OutputText | Refusal, Discriminator("type"), BeforeValidator(_no_image)]

InputContent: TypeAlias = Annotated[
    Annotated[StrictStr, Tag("text")] | Annotated[list[InputPart], Field(fail_fast=True), Tag("parts")], _TEXT_OR_PARTS
]
AssistantContent: TypeAlias = Annotated[
    Annotated[StrictStr, Tag("text")] | Annotated[list[AssistantPart], Field(fail_fast=True), Tag("parts")],
    _TEXT_OR_PARTS,
]
Instructions: TypeAlias = Annotated[
    Annotated[NonEmpty, Tag("text")] | Annotated[list[QuestionPart], Field(min_length=1, fail_fast=True), Tag("parts")],
    _TEXT_OR_PARTS,
]
Status: TypeAlias = Literal["in_progress", "completed", "incomplete"]


class Message(Strict):
    """What a user, a developer or the system wrote."""

    role: Literal["user", "developer", "system"]
    content: InputContent
    type: Literal["message"] | None = "message"


class AssistantMessage(Strict):
    """What an assistant wrote."""

    role: Literal["assistant"]
    content: AssistantContent
    phase: Literal["commentary", "final_answer"] | None = None
    type: Literal["message"] | None = "message"


class _ToolItem(Strict):
    call_id: NonEmpty
    id: StrictStr | None = None
    status: Status | None = None


class FunctionCall(_ToolItem):
    """A call of a function."""

    type: Literal["function_call"]
    name: StrictStr
    arguments: StrictStr
    namespace: StrictStr | None = None


class FunctionCallOutput(_ToolItem):
    """What a function returned."""

    type: Literal["function_call_output"]
    output: InputContent


class CustomToolCall(_ToolItem):
    """A call of a custom tool."""

    type: Literal["custom_tool_call"]
    name: StrictStr
    input: StrictStr
    namespace: StrictStr | None = None


class CustomToolCallOutput(_ToolItem):
    """What a custom tool returned."""

    type: Literal["custom_tool_call_output"]
    output: InputContent


def _item_tag(item: Any) -> str | None:
    if not isinstance(item, dict):
        return None
    kind = item.get("type")
    if kind not in (None, "message"):
        return kind if isinstance(kind, str) and kind in _CALL_TYPES else None
    role = item.get("role")
    return {"user": "message", "developer": "message", "system": "message", "assistant": "assistant"}.get(
        role if isinstance(role, str) else ""
    )


_CALL_TYPES = frozenset({"function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"})

Item: TypeAlias = Annotated[
    Annotated[Message, Tag("message")]
    | Annotated[AssistantMessage, Tag("assistant")]
    | Annotated[FunctionCall, Tag("function_call")]
    | Annotated[FunctionCallOutput, Tag("function_call_output")]
    | Annotated[CustomToolCall, Tag("custom_tool_call")]
    | Annotated[CustomToolCallOutput, Tag("custom_tool_call_output")],
    Discriminator(
        _item_tag,
        custom_error_type="input_item",
        custom_error_message="must be a message with the role user, developer, system or assistant, or an item of type "
        "function_call, function_call_output, custom_tool_call or custom_tool_call_output",
    ),
]


class Predicate(Strict):
    """How likely a statement about the input is true."""

    type: Literal["predicate"]
    instructions: Instructions
    name: StrictStr | None = None


def _choice_value(value: Any) -> Any:
    if isinstance(value, bool) or (isinstance(value, str) and value):
        return value
    raise fault("choice_value", f"must be true, false or a string that is not empty; got {quote(value)}")


class ChoiceModel(Strict):
    """One choice. A string and a boolean of the same spelling are two choices."""

    value: Annotated[
        Any,
        Field(description=RULE),
        PlainValidator(_choice_value),
        WithJsonSchema({"anyOf": [{"type": "string", "minLength": 1, "pattern": PATTERN}, {"type": "boolean"}]}),
    ]
    description: StrictStr | None = None


def _unique_choices(choices: list[ChoiceModel]) -> list[ChoiceModel]:
    refuse_repeated((choice.value for choice in choices), "choice")
    check_names((choice.value for choice in choices if isinstance(choice.value, str)), "choice")
    return choices


class Choice(Strict):
    """Choose from the supplied choices."""

    type: Literal["choice"]
    instructions: Instructions
    choices: Annotated[
        list[ChoiceModel],
        Field(json_schema_extra={"minItems": 2, "maxItems": MAX_OPTIONS}),
        AfterValidator(_unique_choices),
        sized(list, "choice", low=2, high=lambda limits: limits.max_options, setting="max_options", bound=MAX_OPTIONS),
    ]
    name: StrictStr | None = None


class Level(Strict):
    """One level."""

    label: NonEmpty = Field(description="No control characters.", json_schema_extra={"pattern": PATTERN})
    description: StrictStr | None = None


def _readable_levels(levels: list[Level]) -> list[Level]:
    # Levels are told apart by their order, so that equal ones are allowed.
    for level in levels:
        check_names([level.label], "label")
    return levels


class Score(Strict):
    """Rate the input against ordered levels, low to high; the first has the value 0."""

    type: Literal["score"]
    instructions: Instructions
    levels: Annotated[
        list[Level],
        AfterValidator(_readable_levels),
        Field(json_schema_extra={"minItems": 2, "maxItems": MAX_OPTIONS}),
        sized(list, "level", low=2, high=lambda limits: limits.max_options, setting="max_options", bound=MAX_OPTIONS),
    ]
    name: StrictStr | None = None


def _no_explicit_mode(mode: Any) -> Any:
    if mode == "explicit":
        raise unsupported(
            "the mode 'explicit' is not supported: the server reuses prefixes at boundaries of its own, which never "
            "changes an answer; send 'implicit' or leave the field out"
        )
    return mode


class CacheOptions(Strict):
    """Hints for the prefix cache."""

    mode: Annotated[Literal["implicit"] | None, BeforeValidator(_no_explicit_mode)] = None
    ttl: Literal["30m"] | None = None


class Request(Strict):
    """The body."""

    model: StrictStr | None = MODEL
    input: Annotated[
        Annotated[StrictStr, Tag("text")] | Annotated[list[Item], Field(min_length=1, fail_fast=True), Tag("parts")],
        _TEXT_OR_PARTS,
    ]
    questions: Annotated[
        list[Annotated[Predicate | Choice | Score, Discriminator("type")]],
        Field(json_schema_extra={"minItems": 1, "maxItems": MAX_QUESTIONS}),
        sized(
            list,
            "question",
            low=1,
            high=lambda limits: limits.max_questions,
            setting="max_questions",
            bound=MAX_QUESTIONS,
        ),
    ]
    prompt_cache_key: IgnoredText = None
    prompt_cache_options: CacheOptions | None = None
    safety_identifier: Annotated[StrictStr, StringConstraints(max_length=64)] | None = None
    x_layout: Layout | None = LAYOUT


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """A valid request; ``questions`` are as the caller sent them, in the order of ``request.questions``."""

    request: DecisionRequest
    questions: tuple[Predicate | Choice | Score, ...]
    model: str | None = None
    """The name that the caller gave the model."""


def decode(body: Any, *, limits: Limits) -> Decoded:
    """The questions of a body.

    Raises:
        Problem: ``INVALID`` (or ``UNSUPPORTED`` for images); names the field.
    """
    try:
        parsed = Request.model_validate(body, context=Checking(limits))
    except ValidationError as error:
        raise from_pydantic(error, unions=_UNIONS) from None
    if not isinstance(parsed.input, str):
        _refuse_unmatched_outputs(parsed.input)
    return Decoded(
        request=DecisionRequest(
            state=parsed.input if isinstance(parsed.input, str) else "\n".join(map(_block, parsed.input)),
            questions=tuple(_question(question) for question in parsed.questions),
            layout=parsed.x_layout,
        ),
        questions=tuple(parsed.questions),
        model=parsed.model,
    )


def encode(decoded: Decoded, answers: Sequence[Answer], *, identity: ModelIdentity, timing_ms: float) -> dict[str, Any]:
    """The response body. ``usage.input_tokens`` is the sum of the questions' prompts, ``cached_tokens`` of them reused.

    ``cache_write_tokens`` is 0: nothing is billed for a write.
    """
    prompt_tokens = sum(answer.tokens.prompt for answer in answers)
    return {
        "answers": [
            _answer(question, answer) | extensions(answer)
            for question, answer in zip(decoded.questions, answers, strict=True)
        ],
        "model": identity.model_id,
        "usage": {
            "input_tokens": prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": sum(answer.tokens.reused for answer in answers),
                "cache_write_tokens": 0,
            },
            "output_tokens": 0,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt_tokens,
        },
        "x_identity": identity.summary(),
        "x_timing": {"total_ms": timing_ms},
    }


def error(problem: Problem) -> tuple[int, dict[str, Any]]:
    """Status and body of a request that failed."""
    return openai_error(problem)


def _refuse_unmatched_outputs(items: Sequence[Any]) -> None:
    calls: set[tuple[str, str]] = set()
    for index, item in enumerate(items):
        if isinstance(item, FunctionCall | CustomToolCall):
            calls.add((item.type, item.call_id))
        elif isinstance(item, FunctionCallOutput | CustomToolCallOutput):
            wanted = item.type.removesuffix("_output")
            if (wanted, item.call_id) not in calls:
                raise invalid(
                    ("input", index, "call_id"),
                    f"no {wanted} before this output has the call_id {quote(item.call_id)}",
                    "unmatched_call_id",
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


def _question(question: Predicate | Choice | Score) -> Question:
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
    return Question(instructions=instructions, options=options)


def _labels(choices: Sequence[ChoiceModel]) -> list[str]:
    """Distinct labels; JSON strings where plain ones would coincide with a boolean."""
    plain = [render(choice.value) for choice in choices]
    if len(set(plain)) == len(plain):
        return plain
    return [json.dumps(choice.value, ensure_ascii=False) for choice in choices]


def _answer(question: Predicate | Choice | Score, answer: Answer) -> dict[str, Any]:
    probabilities = answer.probabilities
    match question:
        case Predicate():
            return {"type": "predicate", "name": question.name, "probability": probabilities[0]}
        case Choice():
            return {
                "type": "choice",
                "name": question.name,
                "choice": question.choices[argmax(probabilities)].value,
                "confidence": choice_confidence(probabilities),
                "probabilities": [
                    {"value": choice.value, "probability": p}
                    for choice, p in zip(question.choices, probabilities, strict=True)
                ],
            }
        case Score():
            return {
                "type": "score",
                "name": question.name,
                "score": expected_level(probabilities),
                "confidence": score_confidence(probabilities),
                "probabilities": [
                    {"label": level.label, "value": index, "probability": p}
                    for index, (level, p) in enumerate(zip(question.levels, probabilities, strict=True))
                ],
            }

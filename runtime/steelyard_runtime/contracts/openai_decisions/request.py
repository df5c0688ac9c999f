"""The body of a request."""

from __future__ import annotations

from collections.abc import Sequence
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
    WithJsonSchema,
)

from steelyard_runtime.contracts.limits import Limits
from steelyard_runtime.contracts.model_names import MODEL
from steelyard_runtime.contracts.neutral import IgnoredText
from steelyard_runtime.contracts.option_names import PATTERN, RULE, check_names
from steelyard_runtime.contracts.validation import (
    LAYOUT,
    READOUT,
    USE,
    NonEmpty,
    Path,
    Sized,
    Strict,
    Use,
    fault,
    invalid,
    quote,
    refuse_repeated,
    unsupported,
    validated,
)
from steelyard_runtime.decision import Layout, Readout
from steelyard_runtime.settings import MAX_OPTIONS, MAX_QUESTIONS

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
    """A message of a user, a developer or the system."""

    role: Literal["user", "developer", "system"]
    content: InputContent
    type: Literal["message"] | None = "message"


class AssistantMessage(Strict):
    """A message of an assistant."""

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
    """The result of a function."""

    type: Literal["function_call_output"]
    output: InputContent


class CustomToolCall(_ToolItem):
    """A call of a custom tool."""

    type: Literal["custom_tool_call"]
    name: StrictStr
    input: StrictStr
    namespace: StrictStr | None = None


class CustomToolCallOutput(_ToolItem):
    """The result of a custom tool."""

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
    """Ask for the probability that a statement about the input is true."""

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
        AfterValidator(_unique_choices),
        Sized("choice", low=2, most=MAX_OPTIONS, setting="max_options"),
    ]
    name: StrictStr | None = None


class Level(Strict):
    """One level."""

    label: NonEmpty = Field(description="No control characters.", json_schema_extra={"pattern": PATTERN})
    description: StrictStr | None = None


def _readable_levels(levels: list[Level]) -> list[Level]:
    # Levels are distinguished by their order, so that equal ones are allowed.
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
        Sized("level", low=2, most=MAX_OPTIONS, setting="max_options"),
    ]
    name: StrictStr | None = None


class Registered(Strict):
    """A registered decision; the answer is a predicate, a choice or a score, as its contract has it."""

    type: Literal["registered"]
    use: Use = Field(description=USE)
    name: StrictStr | None = None


AnyQuestion: TypeAlias = Predicate | Choice | Score | Registered


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
        list[Annotated[AnyQuestion, Discriminator("type")]],
        Sized("question", low=1, most=MAX_QUESTIONS, setting="max_questions"),
    ]
    prompt_cache_key: IgnoredText = None
    prompt_cache_options: CacheOptions | None = None
    safety_identifier: Annotated[StrictStr, StringConstraints(max_length=64)] | None = None
    x_layout: Layout | None = LAYOUT
    x_readout: Readout | None = READOUT


def parse(body: Any, *, limits: Limits) -> Request:
    """Return the request in a body.

    Raises:
        Problem: ``INVALID`` (or ``UNSUPPORTED`` for images); names the field.
    """
    parsed = validated(Request, body, limits, unions=_UNIONS)
    if not isinstance(parsed.input, str):
        _refuse_unmatched_outputs(parsed.input)
    return parsed


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

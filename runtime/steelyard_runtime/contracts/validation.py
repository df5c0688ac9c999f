"""From pydantic's errors to a Problem that a person can act on, and the parts that request models share.

A message quotes the offending value, at most 80 characters of it, and describes arrays and objects by their size.
Paths hold the caller's own names only: the segments that pydantic adds for unions are taken out.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Annotated, Any, Literal, TypeVar, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainValidator,
    StrictStr,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, core_schema

from steelyard_runtime.contracts.limits import Limits
from steelyard_runtime.errors import Detail, Kind, Problem

SHOWN = 80
MAX_DETAILS = 100
MAX_FAULTS = 1000
_MAX_MESSAGE = 400
_MAX_UNKNOWN_FIELDS = 32
_SHOWN_NAMES = 20
_UNSUPPORTED = "unsupported"

Path = tuple[str | int | EllipsisType, ...]
"""A place in a body; ``...`` stands for any key or index."""

_SHOULD = re.compile(r"^[A-Za-z]+ should")
_PLAIN = {
    "missing": "is required and missing",
    "string_type": "must be a string",
    "bool_type": "must be true or false",
    "int_type": "must be an integer",
    "float_type": "must be a number",
    "list_type": "must be an array",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "none_required": "must be null or absent",
    "string_unicode": "must be text that UTF-8 can carry",
}


def shorten(text: str) -> str:
    """At most 80 characters of ``text``, with its length when it is longer; half surrogates made visible."""
    shown = text[:SHOWN].encode("utf-8", "backslashreplace").decode()
    return shown if len(text) <= SHOWN else f"{shown}…"


def quote(value: Any) -> str:
    """A JSON value as an error message may show it: short, on one line, whatever the caller sent."""
    if isinstance(value, str):
        shown = json.dumps(shorten(value), ensure_ascii=False)
        return shown if len(value) <= SHOWN else f"{shown} ({len(value)} characters)"
    if isinstance(value, dict):
        return f"an object with {count(len(value), 'field')}"
    if isinstance(value, list):
        return f"an array with {count(len(value), 'item')}"
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of about {int(value.bit_length() * 0.30103) + 1} digits"
    if value is None or isinstance(value, bool | int | float):
        return json.dumps(value)
    return f"a {type(value).__name__}"


def count(number: int, noun: str) -> str:
    """``1 option``, ``2 options``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def path(loc: Iterable[str | int]) -> str:
    """``decision.options.1.id``; the empty path is ``the body``."""
    return ".".join(map(str, loc)) or "the body"


def fault(kind: str, message: str) -> PydanticCustomError:
    """An error for validators to raise whose message is already fit for the caller."""
    return PydanticCustomError(kind, "{message}", {"message": message})


def unsupported(message: str) -> PydanticCustomError:
    """A valid request that this server cannot serve; makes the whole Problem ``UNSUPPORTED``."""
    return fault(_UNSUPPORTED, message)


def invalid(loc: tuple[str | int, ...], message: str, kind: str = "value_error") -> Problem:
    """A Problem with one fault."""
    return _problem([Detail(_shortened(loc), message, kind)], total=1)


def from_pydantic(exc: ValidationError, *, unions: Collection[Path] = ()) -> Problem:
    """The Problem that says what pydantic found.

    Args:
        exc: From a model of a request body. Lists that callers can make long should fail fast or be bounded, because
            pydantic builds every error.
        unions: Places of tagged unions in the body. Behind each of them pydantic puts the tag into the path.

    Returns:
        ``INVALID`` with every fault (the first 100 when there are more, and a last one that says how many), or
        ``UNSUPPORTED`` when a fault came from :func:`unsupported`.
    """
    errors = exc.errors(include_url=False)
    details = [
        Detail(_shortened(_without_tags(error["loc"], unions)), _message(error), error["type"])
        for error in errors[:MAX_DETAILS]
    ]
    return _problem(details, total=len(errors))


def _problem(details: list[Detail], *, total: int) -> Problem:
    first = details[0]
    message = f"{path(first.loc)}: {first.message}"
    if total > 1:
        message += f" ({count(total - 1, 'more fault')})"
    if total > len(details):
        details.append(Detail((), f"{total - len(details)} more faults are not listed", "more"))
    kind = Kind.UNSUPPORTED if any(detail.type == _UNSUPPORTED for detail in details) else Kind.INVALID
    return Problem(kind, message, details=tuple(details), param=path(first.loc) if first.loc else None)


def _shortened(loc: tuple[str | int, ...]) -> tuple[str | int, ...]:
    return tuple(shorten(segment) if isinstance(segment, str) else segment for segment in loc)


def _without_tags(loc: tuple[str | int, ...], unions: Collection[Path]) -> tuple[str | int, ...]:
    kept: list[str | int] = []
    segments = iter(loc)
    for segment in segments:
        if any(_matches(kept, union) for union in unions):
            following = next(segments, None)
            if following is None:
                break
            segment = following
        kept.append(segment)
    return tuple(kept)


def _matches(loc: Sequence[str | int], pattern: Path) -> bool:
    return len(loc) == len(pattern) and all(
        expected is ... or expected == segment for segment, expected in zip(loc, pattern, strict=True)
    )


def _message(error: ErrorDetails) -> str:
    kind = error["type"]
    context: dict[str, Any] = error.get("ctx", {})
    if error["msg"] == context.get("message"):
        return str(context["message"])
    if kind == "missing":
        return _PLAIN[kind]
    if kind == "extra_forbidden":
        return f"unknown field {quote(str(error['loc'][-1]))}; remove it, or check its spelling"
    got = f"; got {quote(error['input'])}"
    if kind in _PLAIN:
        return _PLAIN[kind] + got
    if kind in ("literal_error", "enum"):
        return f"must be {context['expected']}{got}"
    if kind == "union_tag_invalid":
        return f"must have a {context['discriminator']} of {context['expected_tags']}; got {quote(context['tag'])}"
    if kind == "union_tag_not_found":
        return f"must have the field {context['discriminator']}, which says what it is{got}"
    if kind in ("string_too_short", "too_short") and context.get("min_length") == 1:
        return "must not be empty"
    if kind == "value_error":
        return _capped(error["msg"].removeprefix("Value error, "))
    return _capped(_SHOULD.sub("must", error["msg"])) + got


def _capped(message: str) -> str:
    return message if len(message) <= _MAX_MESSAGE else message[:_MAX_MESSAGE] + "…"


@dataclass(slots=True)
class Checking:
    """The context that decoders hand to pydantic: the server's limits, and a count of faults.

    pydantic gathers every fault, which for a hostile body takes seconds; after ``MAX_FAULTS`` of the kinds that a body
    can repeat without bound, checking ends with a Problem.
    """

    limits: Limits
    faults: int = 0


def _limits(info: ValidationInfo) -> Limits:
    return info.context.limits if isinstance(info.context, Checking) else Limits()


def _count_faults(info: ValidationInfo, number: int) -> None:
    if isinstance(info.context, Checking):
        info.context.faults += number
        if info.context.faults > MAX_FAULTS:
            raise invalid(
                (), f"more than {MAX_FAULTS} fields are wrong or unknown; checking ended there", "too_many_faults"
            )


class Strict(BaseModel):
    """A part of a request: nothing is converted, and an unknown field is a fault."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _few_unknown_fields(cls, value: Any, info: ValidationInfo) -> Any:
        # Each unknown field is one fault, and a body has room for hundreds of thousands.
        if isinstance(value, dict) and cls.model_config.get("extra") == "forbid":
            excess = len(value) - len(cls.model_fields)
            if excess > 0:
                _count_faults(info, min(excess, _MAX_UNKNOWN_FIELDS))
            if excess > _MAX_UNKNOWN_FIELDS:
                known = ", ".join(cls.model_fields)
                raise fault("extra_forbidden", f"has at least {excess} unknown fields; the fields are {known}")
        return value


ModelT = TypeVar("ModelT", bound=Strict)


class Lenient(Strict):
    """As :class:`Strict`, but unknown fields are ignored, where a contract demands it."""

    model_config = ConfigDict(extra="ignore")


LAYOUT: Any = Field(
    None,
    description="What comes first in the prompt: state-first decides better on small models, options-first makes new "
    "states cheap. The server's setting unless given.",
)
"""A request's choice of the prompt's layout, the same in every decision contract."""

READOUT: Any = Field(
    None,
    description="How decisions are read that are not registered: options-as-cases compares the state with the options' "
    "texts, question-as-case with the question's (yes or no), letters-raw has the model name an option's letter. The "
    "server's setting unless given.",
)
"""A request's choice of the readout, the same in every decision contract."""

NonEmpty = Annotated[StrictStr, StringConstraints(min_length=1)]
"""A string of at least one character."""


def _false(value: Any) -> bool:
    if value is not False:
        raise fault("literal_error", f"must be false; got {quote(value)}")
    return False


OnlyFalse = Annotated[bool, PlainValidator(_false), WithJsonSchema({"type": "boolean", "const": False})]
"""``false``. Not ``Literal[False]``, which takes the numbers 0 and 0.0 too: to Python they are equal."""


def _content(*, null: bool, empty: bool) -> Callable[[Any, ValidationInfo], Any]:
    def check(value: Any, info: ValidationInfo) -> Any:
        if value is None and null:
            return value
        if not isinstance(value, str | dict | list):
            _count_faults(info, 1)
            allowed = "a string, an object, an array or null" if null else "a string, an object or an array"
            raise fault("content_type", f"must be {allowed}; got {quote(value)}")
        if not empty and not value:
            raise fault("content_empty", "must not be empty")
        return value

    return check


def _few_wrong_texts(value: Any, info: ValidationInfo) -> Any:
    if isinstance(value, dict):
        _count_faults(info, sum(not isinstance(text, str) for text in value.values()))
    return value


Texts = Annotated[dict[StrictStr, StrictStr], BeforeValidator(_few_wrong_texts)]
"""An object of any number of strings; of many values that are none, not each is a fault of its own."""

_TEXT_OR_JSON: list[dict[str, Any]] = [{"type": "string"}, {"type": "object"}, {"type": "array", "items": {}}]
_TEXT_OR_JSON_NOT_EMPTY: list[dict[str, Any]] = [
    {"type": "string", "minLength": 1},
    {"type": "object", "minProperties": 1},
    {"type": "array", "items": {}, "minItems": 1},
]

Content = Annotated[Any, PlainValidator(_content(null=False, empty=True)), WithJsonSchema({"anyOf": _TEXT_OR_JSON})]
"""A string, an object or an array."""

FilledContent = Annotated[
    Any, PlainValidator(_content(null=False, empty=False)), WithJsonSchema({"anyOf": _TEXT_OR_JSON_NOT_EMPTY})
]
"""A string, an object or an array that is not empty."""

MaybeContent = Annotated[
    Any,
    PlainValidator(_content(null=True, empty=True)),
    WithJsonSchema({"anyOf": [*_TEXT_OR_JSON, {"type": "null"}]}),
]
"""A string, an object, an array or null."""


def validated(model: type[ModelT], body: Any, limits: Limits, *, unions: Collection[Path] = ()) -> ModelT:
    """Return ``body`` as ``model``.

    Args:
        model: The model of a contract's bodies.
        body: Any JSON value.
        limits: How much it may ask.
        unions: Places of tagged unions in it, as :func:`from_pydantic` wants them.

    Raises:
        Problem: ``INVALID`` or ``UNSUPPORTED``, with a fault for every field that is wrong.
    """
    try:
        return model.model_validate(body, context=Checking(limits))
    except ValidationError as error:
        raise from_pydantic(error, unions=unions) from None


SETTING = "x-setting"
"""In a JSON schema: the server's setting that lowers the limit beside it."""
Setting = Literal["max_questions", "max_options", "max_choices"]


def _registered(use: str, info: ValidationInfo) -> str:
    known = _limits(info).registered()
    if use not in known:
        names = ", ".join(map(quote, list(known)[:_SHOWN_NAMES]))
        more = f" and {len(known) - _SHOWN_NAMES} more" if len(known) > _SHOWN_NAMES else ""
        there = f"there are: {names}{more}" if known else "it has none (the server's setting decisions)"
        raise fault("not_registered", f"no decision named {quote(use)} is registered on this server; {there}")
    return use


Use = Annotated[NonEmpty, AfterValidator(_registered)]
"""The name of a registered decision: ``NAME@VERSION``, or ``NAME`` for the latest version."""
USE = "Name of a registered decision, NAME@VERSION or NAME for the latest version; /v1/identity lists them."


class Sized:
    """An annotation of an array or object: its size is bounded before its items are looked at.

    Args:
        noun: What is counted, singular.
        low: Fewest.
        most: Most in the contract, which no setting raises.
        setting: The server's setting that allows fewer, if any; named to the caller where it is what limits.
    """

    def __init__(self, noun: str, *, low: int = 0, most: int, setting: Setting | None = None) -> None:
        self._noun = noun
        self._low = low
        self._most = most
        self._setting = setting

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Check the size before anything else."""
        container = get_origin(source)

        def check(value: Any, info: ValidationInfo) -> Any:
            if isinstance(value, container):  # anything else is left to the type's own check
                self._check(len(value), _limits(info))
            return value

        return core_schema.with_info_before_validator_function(check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Give the bounds, and the setting that lowers the upper one."""
        found = handler(schema)
        counted = "Items" if found["type"] == "array" else "Properties"
        found |= {f"min{counted}": self._low} if self._low else {}
        return found | {f"max{counted}": self._most} | ({SETTING: self._setting} if self._setting else {})

    def _check(self, size: int, limits: Limits) -> None:
        allowed: int = getattr(limits, self._setting) if self._setting else self._most
        most = min(allowed, self._most)
        remedy = "" if most == self._most else f" (the server's setting {self._setting})"
        if size < self._low:
            wanted = f"at least {self._low}" if remedy else f"{self._low} to {most}"
            raise fault("too_short", f"{count(size, self._noun)}; {wanted} must be given")
        if size > most:
            raise fault("too_long", f"{count(size, self._noun)}; the limit is {most}{remedy}")


def refuse_repeated(values: Iterable[str | bool], what: str) -> None:
    """Raises a fault that lists the values which occur more than once; ``True`` and ``"true"`` are two values."""
    times = Counter((type(value), value) for value in values)
    repeated = [quote(value) for (_, value), number in times.items() if number > 1]
    if repeated:
        more = f" and {len(repeated) - 3} more" if len(repeated) > 3 else ""
        raise fault("repeated", f"every {what} must be unique; repeated: {', '.join(repeated[:3])}{more}")

"""Fields of which only the values that change nothing are accepted, and fields that never change an answer."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, StrictBool, StrictFloat, StrictInt, StrictStr
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from steelyard_runtime.contracts.validation import quote, unsupported


class Neutral:
    """An annotation of a field that this server does not have: null and ``values`` are accepted, and read as null.

    Args:
        values: JSON values that ask for what this server does anyway.
        because: Why no other value is accepted, a clause without a full stop.
    """

    def __init__(self, *values: Any, because: str) -> None:
        self._values = values
        self._because = because

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Accept the neutral values only."""
        return core_schema.no_info_plain_validator_function(self._check)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """List the neutral values."""
        return {"enum": [None, *self._values], "description": f"Only these values: {self._because}."}

    def _check(self, value: Any) -> None:
        if value is None or any(_equal(value, neutral) for neutral in self._values):
            return
        allowed = " or ".join(["null", *(json.dumps(neutral) for neutral in self._values)])
        raise unsupported(f"{quote(value)} is not supported: {self._because}; send {allowed}, or leave the field out")


def _equal(value: Any, neutral: Any) -> bool:
    """Equality of JSON values: 1 and 1.0 are equal, 1 and true are not."""
    return isinstance(value, bool) == isinstance(neutral, bool) and bool(value == neutral)


def is_neutral(field: FieldInfo) -> bool:
    """Tell whether a field is one that this server does not have."""
    return any(isinstance(part, Neutral) for part in field.metadata)


IgnoredText = Annotated[StrictStr | None, Field(description="Accepted, not stored, not shown to the model.")]
"""Text that names something to the sender, and asks for nothing."""

IgnoredFlag = Annotated[StrictBool | None, Field(description="Accepted; it changes no answer.")]
"""A wish about how an answer is computed, never about what it is."""

IgnoredInteger = Annotated[StrictInt | None, Field(description="Accepted; what it belongs to is off.")]
IgnoredNumber = Annotated[StrictFloat | None, Field(description="Accepted; what it belongs to is off.")]
"""A parameter of a step that another field would have to switch on, and cannot."""

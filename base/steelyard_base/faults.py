"""Faults that pydantic found in a file, worded for the person who wrote it."""

from __future__ import annotations

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from steelyard_runtime.settings import listed


def sentences(error: ValidationError) -> str:
    """Return one line for each fault: its place in the file, what is wrong, and the value where it is short."""
    return listed(
        f"{'.'.join(str(step) for step in fault['loc']) or 'file'}: {_said(fault)}{_value(fault)}"
        for fault in error.errors(include_url=False)
    )


def first_fault(error: ValidationError, *, whole: str) -> str:
    """Return the first fault: its place in the file, and what is wrong.

    Args:
        error: The faults.
        whole: The place of a fault that is of no one field.
    """
    fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(map(str, fault['loc'])) or whole}: {_said(fault)}"


def _said(fault: ErrorDetails) -> str:
    if fault["type"] in _UNKNOWN_FIELD:
        return "there is no such field; see docs/reference for those that there are"
    if fault["type"] in _NO_TABLE:
        return "this is a table of fields, not a single value"
    return fault["msg"].removeprefix("Value error, ")


def _value(fault: ErrorDetails) -> str:
    value = fault["input"]
    if fault["type"] in _TELLING or isinstance(value, (dict, list, tuple)):
        return ""
    shown = repr(value)
    return f" (it is {shown})" if len(shown) <= 100 else ""


# Of a model, and of a dataclass.
_UNKNOWN_FIELD = frozenset({"extra_forbidden", "unexpected_keyword_argument"})

_NO_TABLE = frozenset({"model_type", "dataclass_type"})

# Kinds whose message tells the value already, or where there is none.
_TELLING = frozenset({"value_error", "missing"}) | _UNKNOWN_FIELD

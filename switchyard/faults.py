"""What pydantic found wrong with a file, for the person who wrote the file."""

from __future__ import annotations

from pydantic import ValidationError


def sentences(error: ValidationError) -> str:
    """One line for each fault: its place in the file, what is wrong, and the value where it is short."""
    return "\n".join(
        f"- {'.'.join(str(step) for step in fault['loc']) or 'file'}: {_said(fault['msg'])}{_value(fault)}"
        for fault in error.errors(include_url=False)
    )


def _said(message: str) -> str:
    return message.removeprefix("Value error, ")


def _value(fault: object) -> str:
    value = fault.get("input") if isinstance(fault, dict) and fault.get("type") not in _TELLING else None
    shown = "" if value is None or isinstance(value, (dict, list, tuple)) else repr(value)
    return f" (it is {shown})" if 0 < len(shown) <= 100 else ""


# Kinds whose message tells the value already, or where there is none.
_TELLING = frozenset({"value_error", "missing", "extra_forbidden"})

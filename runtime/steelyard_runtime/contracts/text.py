"""The text that the model reads for a JSON value."""

from __future__ import annotations

import json
from typing import Any


def render(value: Any) -> str:
    """A string verbatim; any other JSON value as compact JSON, keys in the caller's order, no ASCII escapes.

    >>> render("as it is"), render({"a": [1, "é", None]})
    ('as it is', '{"a":[1,"é",null]}')
    """
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def labelled(label: str, description: str) -> str:
    """An option as the model reads it: ``label: description``, or the label alone when there is no description."""
    return f"{label}: {description}" if description else label

"""TOML from strangers: what the standard library would read in quadratic time, or not at all, is refused."""

from __future__ import annotations

import re
import tomllib
from typing import Any

MAX_KEY_PARTS = 100
"""Parts of a dotted key: reading takes the square of their number, and the tables of our files are a few deep."""

_LONG_KEY = re.compile(
    r"""(?<![A-Za-z0-9_-])(?:(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){%d}""" % MAX_KEY_PARTS  # noqa: UP031
)


def parse(text: str) -> dict[str, Any]:
    """Return the table of a TOML document.

    Raises:
        ValueError: It is no TOML, has a number with more digits than Python reads, or is nested too deeply.
    """
    if (found := _LONG_KEY.search(text)) is not None:
        line = text.count("\n", 0, found.start()) + 1
        raise ValueError(f"line {line} has a key of more than {MAX_KEY_PARTS} parts with dots between them")
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error

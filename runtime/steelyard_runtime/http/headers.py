"""Headers with all their lines: of two values that differ, none is better than the other, so neither is taken.

A gateway that adds its line to the client's own would lose to it, or win, by their order alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from starlette.datastructures import Headers

from steelyard_runtime.contracts.validation import quote
from steelyard_runtime.errors import Kind, Problem

# What stands between commas; those in quoted strings separate nothing. It always matches, so it never goes back.
_ELEMENT = re.compile(r'(?:\A|,)((?:[^,"]|"(?:[^"\\]|\\.)*(?:"|\\?\Z))*)', re.DOTALL)
_SHOWN = 3


def elements(headers: Headers, name: str) -> list[str]:
    """The values of a header in all its lines, empty ones too. A proxy may join lines with commas, so these divide."""
    return [match[1].strip(" \t") for line in headers.getlist(name) for match in _ELEMENT.finditer(line)]


def only(values: Iterable[str], what: str) -> str | None:
    """The one value there is, however often; None when there is none.

    Args:
        values: In the order in which they came.
        what: Where they were found, for the message.

    Raises:
        Problem: ``REPEATED_HEADER``: there are several.
    """
    distinct = list(dict.fromkeys(values))
    if len(distinct) > 1:
        shown = ", ".join(map(quote, distinct[:_SHOWN]))
        more = f" and {len(distinct) - _SHOWN} more" if len(distinct) > _SHOWN else ""
        raise Problem(
            Kind.REPEATED_HEADER,
            f"{what} has {len(distinct)} different values, {shown}{more}, and may have one; send it once, and let "
            "whatever passes requests on (a gateway, a proxy) replace it instead of adding to it",
        )
    return distinct[0] if distinct else None

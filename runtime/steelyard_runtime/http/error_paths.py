"""The report of a problem at a path, whether or not there is such a route."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from steelyard_runtime.contracts.error_formats import OPENAI, OWN, ErrorFormat, FormatOf
from steelyard_runtime.http.routes.table import Operation


def format_of_paths(operations: Iterable[Operation]) -> FormatOf:
    """Return the function from a path to the format of its errors.

    The first segments decide, the longest known beginning first: those of a route, then its first one, with and without
    ``/v1``, which some clients leave out of a base URL. OpenAI's clients also ask for routes that are not served.
    """
    families: dict[tuple[str, ...], ErrorFormat[Any]] = {("v1",): OPENAI, ("responses",): OPENAI}
    for operation in operations:
        segments = tuple(part for part in operation.path.split("/") if part and not part.startswith("{"))
        families.setdefault(segments, operation.errors)
        families.setdefault((segments[1:] if segments[0] == "v1" else segments)[:1], operation.errors)
    longest = max(map(len, families))

    def format_of(path: str) -> ErrorFormat[Any]:
        segments = tuple(part for part in path.split("/", longest + 2) if part)
        for length in range(longest, 0, -1):
            if (found := families.get(segments[:length])) is not None:
                return found
        return OWN

    return format_of

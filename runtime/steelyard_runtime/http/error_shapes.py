"""Which contract's error shape a path, and after dispatch a contract, gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from steelyard_runtime.errors import Problem, openai_error, semif_error, systemone_error

ErrorShape = Callable[[Problem], tuple[int, dict[str, Any]]]

# The first segments decide, the longest listed beginning first. All else is the walkthrough's: /invocations before
# dispatch, and the routes for whoever runs the server.
FAMILIES: dict[tuple[str, ...], ErrorShape] = {
    ("v1",): openai_error,
    ("openai",): openai_error,
    ("v1", "systemone"): systemone_error,
    ("v1", "identity"): semif_error,
    # Base URLs without /v1.
    ("systemone",): systemone_error,
    **{(name,): openai_error for name in ("chat", "completions", "decisions", "embeddings", "models", "responses")},
}
_LONGEST = max(map(len, FAMILIES))


def shape_for_path(path: str) -> ErrorShape:
    """The error shape of the family that ``path`` belongs to, whether or not there is such a route."""
    segments = tuple(segment for segment in path.split("/", _LONGEST + 2) if segment)
    for length in range(_LONGEST, 0, -1):
        shape = FAMILIES.get(segments[:length])
        if shape is not None:
            return shape
    return semif_error

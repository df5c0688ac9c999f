"""Which contract's error shape a path, and after dispatch a contract, gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from steelyard_runtime.errors import Problem, openai_error, semif_error, systemone_error

ErrorShape = Callable[[Problem], tuple[int, dict[str, Any]]]

# The longest matching prefix decides; everything else, /invocations before dispatch included, is the walkthrough's.
PATH_SHAPES: dict[str, ErrorShape] = {
    "/v1/systemone": systemone_error,
    "/v1/decisions": openai_error,
    "/v1/chat": openai_error,
    "/openai": openai_error,
    "/v1/completions": openai_error,
    "/v1/embeddings": openai_error,
    "/v1/models": openai_error,
}


def shape_for_path(path: str) -> ErrorShape:
    """The error shape of the routes at or under ``path``."""
    for prefix, shape in PATH_SHAPES.items():
        if path == prefix or path.startswith(prefix + "/"):
            return shape
    return semif_error

"""How much one decision request may ask."""

from __future__ import annotations

from dataclasses import dataclass

MAX_OPTIONS = 255
"""Options of one question in every contract, whatever the server allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of the server; a contract's own bounds apply as well.

    Attributes:
        max_questions: Questions (or decisions) in one request.
        max_options: Options of one question.
    """

    max_questions: int = 64
    max_options: int = MAX_OPTIONS

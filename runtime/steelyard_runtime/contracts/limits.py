"""The limits of one request, whatever its contract."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from steelyard_runtime.decision import Question
from steelyard_runtime.settings import Settings

Registered = Callable[[], Mapping[str, Question]]

_FIELDS = Settings.model_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of the server, each with the name of its setting; a contract's own bounds apply as well.

    Attributes:
        max_questions: Questions (or decisions) in one request.
        max_options: Options of one question.
        max_choices: Answers that one request may have generated.
        registered: Gives the registered decisions by the names that a request may use; raises while the server loads.
    """

    max_questions: int = _FIELDS["max_questions"].default
    max_options: int = _FIELDS["max_options"].default
    max_choices: int = _FIELDS["max_choices"].default
    registered: Registered = dict

    @classmethod
    def of(cls, settings: Settings, *, registered: Registered = dict) -> Limits:
        """Return the limits of a server with these settings."""
        return cls(
            max_questions=settings.max_questions,
            max_options=settings.max_options,
            max_choices=settings.max_choices,
            registered=registered,
        )

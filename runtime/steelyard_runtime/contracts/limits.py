"""How much one request may ask, whatever its contract."""

from __future__ import annotations

from dataclasses import dataclass

from steelyard_runtime.settings import Settings

_FIELDS = Settings.model_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of the server, each with the name of its setting; a contract's own bounds apply as well.

    Attributes:
        max_questions: Questions (or decisions) in one request.
        max_options: Options of one question.
        max_choices: Answers that one request may have generated.
    """

    max_questions: int = _FIELDS["max_questions"].default
    max_options: int = _FIELDS["max_options"].default
    max_choices: int = _FIELDS["max_choices"].default

    @classmethod
    def of(cls, settings: Settings) -> Limits:
        """Return the limits of a server with these settings."""
        return cls(
            max_questions=settings.max_questions, max_options=settings.max_options, max_choices=settings.max_choices
        )

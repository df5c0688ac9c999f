"""The names that a request may give the one model of a server."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from steelyard_runtime.contracts.validation import quote
from steelyard_runtime.errors import Kind, Problem

GENERIC_NAMES = frozenset({"default"})
"""Names that mean the model that is served, in every contract."""
MODEL: Any = Field(
    None,
    description="The model's id, an alias of it, or 'default'; empty and absent are the model that is served. Another "
    "name is a 404.",
)
"""The field of OpenAI's contracts."""
_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelNames:
    """Names under which a server is asked.

    Attributes:
        model_id: The id that answers report.
        aliases: Other names, from the setting ``model_aliases``.
        accept_any: Whether any name is answered.
    """

    model_id: str
    aliases: tuple[str, ...] = ()
    accept_any: bool = False

    @property
    def listed(self) -> tuple[str, ...]:
        """The id, then the aliases, without repetitions."""
        return tuple(dict.fromkeys((self.model_id, *self.aliases)))

    def check(self, asked: str | None, *, generic: Collection[str] = GENERIC_NAMES) -> None:
        """Refuse a name of another model. No name, and the empty one, mean the model that is served.

        Args:
            asked: What the request says.
            generic: The contract's names for whatever is served.

        Raises:
            Problem: MODEL_NOT_FOUND.
        """
        if self.accept_any or not asked or asked in generic or asked in self.listed:
            return
        names = ", ".join(quote(name) for name in self.listed[:_SHOWN])
        raise Problem(
            Kind.MODEL_NOT_FOUND,
            f"The model {quote(asked)} is not served here; this server has {names}. Send that name or "
            f"{quote(sorted(generic)[0])}, leave the field empty, or give the server the name as one of its "
            "model_aliases (accept_any_model for all names).",
            param="model",
        )

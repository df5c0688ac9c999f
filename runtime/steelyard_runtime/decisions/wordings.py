"""The fixed words around a state whose last hidden state a head reads.

They name no question, so that one evaluation of a state serves every registered decision about it. What stands before
the state is evaluated once and kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from steelyard_runtime.engine.interface import Piece


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """One wording. Its name changes with every change of its words.

    Attributes:
        name: Named by contracts and heads.
        before: Before the state; the prompt's start.
        after: After the state; the hidden state of its last token is read.
    """

    name: str
    before: tuple[Piece, ...]
    after: tuple[Piece, ...]


WORDINGS: Mapping[str, Wording] = MappingProxyType(
    {
        wording.name: wording
        for wording in (
            Wording(
                name="one-word-1",
                before=(
                    Piece(
                        "The essence of a message is often captured by its main subjects and actions, while "
                        "descriptive terms provide additional but less central details. With this in mind, this "
                        'message : "'
                    ),
                ),
                after=(Piece('" means in one word:"'),),
            ),
        )
    }
)
"""By name."""

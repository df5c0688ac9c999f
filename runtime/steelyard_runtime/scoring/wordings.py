"""The fixed words around a state whose last hidden state a head reads.

They name no question, so that one evaluation of a state serves every registered decision about it. What stands before
the state is evaluated once and kept. ``one-word-1`` asks for a topic, and is for every model. ``chatml-1`` is for
models of that chat format, which read it as a message to answer: better where a decision is about tone or intention.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from steelyard_runtime.engine.interface import Piece
from steelyard_runtime.scoring.strategy import Prompt


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
            Wording(
                name="chatml-1",
                before=(
                    Piece(
                        "<|im_start|>system\nRead the input and think about what it means.<|im_end|>\n"
                        "<|im_start|>user\n",
                        control=True,
                    ),
                ),
                after=(Piece("<|im_end|>\n<|im_start|>assistant\n", control=True),),
            ),
        )
    }
)
"""By name."""


def state_prompt(wording: Wording, state: str) -> Prompt:
    """The prompt of everything that reads the state's hidden state with that wording."""
    return Prompt(wording.before, (Piece(state),), wording.after, private=True)

"""Answer slots: labels that are one token each, where the model has to write them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from string import ascii_lowercase, ascii_uppercase

from steelyard_runtime.engine.interface import Piece


@dataclass(frozen=True, slots=True)
class Slots:
    """Labels and their token ids, in the order in which options get them."""

    labels: tuple[str, ...]
    token_ids: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.labels)


def candidates() -> Iterator[str]:
    """A to Z, then AA to ZZ, then pairs that mix cases: more than any vocabulary needs for 255 slots."""
    yield from ascii_uppercase
    for first in ascii_uppercase:
        yield from (first + second for second in ascii_uppercase)
    for first in ascii_uppercase:
        yield from (first + second for second in ascii_lowercase)
    yield from ascii_lowercase
    for first in ascii_lowercase:
        yield from (first + second for second in ascii_lowercase)


def derive(
    encode: Callable[[Sequence[Piece]], list[int]], *, after: Sequence[Piece], prefix: str, wanted: int
) -> Slots:
    """The first ``wanted`` labels that are a single token of their own after ``after``.

    A label is taken only if the text with it tokenizes to the text without it plus one token: a label that would
    merge with what stands before it would never be what the model writes.

    Args:
        encode: Token ids of pieces that continue a prompt.
        after: The end of the prompt, up to the slot.
        prefix: What stands between the prompt and the label, a space or nothing.
        wanted: Slots needed.

    Raises:
        ValueError: The vocabulary has fewer than two such labels.
    """
    context = encode(after)
    labels: list[str] = []
    token_ids: list[int] = []
    for label in candidates():
        tokens = encode([*after, Piece(prefix + label)])
        if len(tokens) == len(context) + 1 and tokens[:-1] == context and tokens[-1] not in token_ids:
            labels.append(label)
            token_ids.append(tokens[-1])
            if len(labels) == wanted:
                break
    if len(labels) < 2:
        raise ValueError("this vocabulary has no letters that are single tokens, so no decision can be read from it")
    return Slots(tuple(labels), tuple(token_ids))

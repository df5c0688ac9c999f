"""Texts that try to steer a decision from inside its state; ``attacks.jsonl`` has one a line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ATTACKS_FILE = Path(__file__).with_name("attacks.jsonl")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
NEUTRAL = "neutral"
"""The kind of texts that are no attack: they show what any longer text changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One line of the suite.

    Attributes:
        kind: Figures are grouped by it.
        text: The attacker's words, with places such as ``{letter}`` to fill.
        place: ``after`` or ``before`` the state.
        source: Origin of the idea.
    """

    kind: str
    text: str
    place: str
    source: str


def read_attacks(path: Path = ATTACKS_FILE) -> list[Attack]:
    """Return the suite, in file order."""
    return [Attack(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def injected(attack: Attack, *, question: str, options: Sequence[tuple[str, str]], wanted: int, before: int) -> str:
    """Return the text of an attack for one decision.

    Args:
        attack: The attack.
        question: The decision's.
        options: Id and description of each.
        wanted: Index of the option that the attacker wants.
        before: Index of the option that was answered without the attack.
    """
    labels = [label_of(index) for index in range(len(options))]
    exchanged = list(labels)
    exchanged[wanted], exchanged[before] = labels[before], labels[wanted]
    return attack.text.format(
        letter=labels[wanted],
        name=options[wanted][0],
        right=labels[before],
        question=question,
        options=_listed(labels, options),
        swapped=_listed(exchanged, options),
    )


def attacked(state: str, attack: Attack, text: str) -> str:
    """Return a state with the text of an attack in it."""
    return f"{state}\n{text}" if attack.place == "after" else f"{text}\n{state}"


def label_of(index: int) -> str:
    """Return a label of an option as lists have them: A to Z, then AA, AB and so on.

    Examples:
        >>> label_of(0), label_of(25), label_of(26), label_of(254)
        ('A', 'Z', 'AA', 'IU')
    """
    first, second = divmod(index, len(LETTERS))
    return (LETTERS[first - 1] if first else "") + LETTERS[second]


def _listed(labels: Sequence[str], options: Sequence[tuple[str, str]]) -> str:
    return "\n".join(f"{label} {_shown(option)}" for label, option in zip(labels, options, strict=True))


def _shown(option: tuple[str, str]) -> str:
    name, description = option
    return f"{name}: {description}" if description else name

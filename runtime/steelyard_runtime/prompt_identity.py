"""The identity of a decision's prompt words: a hash of the prompts themselves, for decisions that use every word.

A comment or a docstring does not change it. A word of a strategy does, and so does a word that a contract adds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import get_args

from steelyard_runtime.contracts.contract import DecisionContract
from steelyard_runtime.contracts.limits import Limits
from steelyard_runtime.contracts.registry import CONTRACTS
from steelyard_runtime.decision import DecisionRequest, Layout
from steelyard_runtime.engine.interface import Piece
from steelyard_runtime.generation import Message
from steelyard_runtime.scoring.prompt import Template
from steelyard_runtime.scoring.strategies import STRATEGIES, Strategies
from steelyard_runtime.scoring.strategy import Prompt, Strategy
from steelyard_runtime.scoring.wordings import WORDINGS, state_prompt
from steelyard_runtime.settings import MAX_OPTIONS
from steelyard_runtime.templates.answer_position import PLAIN, AnswerPosition

_TURN = AnswerPosition(rule="turn")
LAYOUTS: tuple[Layout, ...] = get_args(Layout)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptIdentity:
    """The words of one strategy's prompts in one layout.

    Attributes:
        strategy: The strategy's name.
        layout: What comes first.
        version: The version that the words say of themselves.
        in_template: They are turns of the model's chat template.
        sha256: Hash of the prompts of the contracts' golden bodies, as pieces of text.
    """

    strategy: str
    layout: Layout
    version: str
    in_template: bool
    sha256: str


@dataclass(frozen=True, slots=True)
class _Plain:
    """A model without a template."""

    name: str = "plain"
    answer_position: AnswerPosition = PLAIN

    def render(self, messages: Sequence[Message]) -> list[Piece]:
        """The texts, one after another."""
        return [Piece(message.content) for message in messages]


@dataclass(frozen=True, slots=True)
class _Turns:
    """A template that shows which message is whose."""

    name: str = "turns"
    answer_position: AnswerPosition = _TURN

    def render(self, messages: Sequence[Message]) -> list[Piece]:
        """Each text between marks."""
        turns = [(Piece(f"<{each.role}>", control=True), Piece(each.content)) for each in messages]
        return [piece for turn in turns for piece in turn] + [Piece("<assistant>", control=True)]


def prompt_identities(strategies: Strategies = STRATEGIES) -> tuple[PromptIdentity, ...]:
    """The words of every strategy, in every layout."""
    return tuple(
        PromptIdentity(
            strategy=strategy.name,
            layout=layout,
            version=strategy.prompt_version(layout),
            in_template=strategy.in_template,
            sha256=rendered_sha256(strategy, layout),
        )
        for strategy in strategies.values()
        for layout in LAYOUTS
    )


def wording_hashes() -> dict[str, str]:
    """The hash of each wording's prompts, by its name: the words around a state that a head reads."""
    states = [request.state for request in _golden_requests()]
    return {name: _sha256(state_prompt(wording, state) for state in states) for name, wording in WORDINGS.items()}


def rendered_sha256(strategy: Strategy, layout: Layout) -> str:
    """The hash of a strategy's prompts in a layout; it depends on no model."""
    return _sha256(prompt for template in (_Plain(), _Turns()) for prompt in _rendered(strategy, layout, template))


def _sha256(prompts: Iterable[Prompt]) -> str:
    digest = hashlib.sha256()
    for prompt in prompts:
        parts = [
            [(piece.text, piece.control) for piece in part] for part in (prompt.before, prompt.shared, prompt.rest)
        ]
        digest.update(json.dumps(parts, ensure_ascii=True, separators=(",", ":")).encode() + b"\n")
    return digest.hexdigest()


def _rendered(strategy: Strategy, layout: Layout, template: Template) -> Iterator[Prompt]:
    """Every golden prompt."""
    ids: dict[str, int] = {}

    def encode(pieces: Sequence[Piece]) -> list[int]:
        return [ids.setdefault(piece.text, len(ids)) for piece in pieces]

    reader = strategy.on(template, encode, max_options=MAX_OPTIONS)
    for request in _golden_requests():
        for question in request.questions:
            yield from reader.prompts(layout, state=request.state, question=question)


def _golden_requests() -> Iterator[DecisionRequest]:
    """Every golden body, decoded by its contract."""
    for contract in CONTRACTS:
        if isinstance(contract, DecisionContract):
            for body in contract.golden:
                yield contract.decode(body, Limits()).request

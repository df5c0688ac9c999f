"""The numbers common to all decision contracts: confidences, expected level, and how an answer came about."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NotRequired, Protocol

from steelyard_runtime.contracts.wire import Count, Milliseconds, Open, Probability, Sha256, Wire
from steelyard_runtime.decision import Action, Answer, Timing


class ModelIdentity(Protocol):
    """The part of ``steelyard_runtime.identity.Identity`` that codecs need."""

    @property
    def model_id(self) -> str:
        """The name in answers."""
        ...

    def summary(self) -> Open:
        """The short identity that goes into every answer, JSON-ready."""
        ...


def argmax(probabilities: Sequence[float]) -> int:
    """Index of the largest probability; the first of several."""
    return max(range(len(probabilities)), key=probabilities.__getitem__)


def choice_confidence(probabilities: Sequence[float]) -> float:
    """``(p_max - 1/n) / (1 - 1/n)``, 0 for an even spread and 1 for certainty; 1 when there is one option."""
    n = len(probabilities)
    if n == 1:
        return 1.0
    return _clamp((max(probabilities) - 1 / n) / (1 - 1 / n))


def score_confidence(probabilities: Sequence[float]) -> float:
    """``1 - sum p_i * |i - mode| / D`` with ``D`` the mean distance from the middle level, in [0, 1]."""
    n = len(probabilities)
    if n == 1:
        return 1.0
    mode = argmax(probabilities)
    spread = math.fsum(p * abs(i - mode) for i, p in enumerate(probabilities))
    even_spread = math.fsum(abs(i - (n - 1) / 2) for i in range(n)) / n
    return _clamp(1 - spread / even_spread)


def expected_level(probabilities: Sequence[float]) -> float:
    """``sum i * p_i``, between 0 and the highest level."""
    return min(math.fsum(i * p for i, p in enumerate(probabilities)), float(len(probabilities) - 1))


class Times(Wire):
    """Milliseconds of one answer."""

    queue_ms: Milliseconds
    engine_ms: Milliseconds
    total_ms: Milliseconds


class TotalTime(Wire):
    """Milliseconds of the whole request."""

    total_ms: Milliseconds


class Tokens(Wire):
    """Tokens of one answer's prompt."""

    prompt: Count
    evaluated: Count
    reused: Count


class Extensions(Wire):
    """The details of how an answer came about. Lists are in the order of the question's options.

    ``x_logits`` are the raw logits of the answer slots, ``x_slot_mass`` the share of the whole vocabulary's probability
    on them (null where no token stands for an option), ``x_entropy`` is in nats. The fields from ``x_decision`` on are
    those of a registered decision: what its policy does with the answer, and why.
    """

    x_logits: list[float]
    x_slot_token_ids: list[Count]
    x_slot_mass: Probability | None
    x_entropy: float
    x_tokens: Tokens
    x_prompt_sha256: Sha256
    x_prompt_version: str
    x_readout: str
    x_cached: bool
    x_probability_status: str
    x_timing: Times
    x_decision: NotRequired[str]
    x_action: NotRequired[Action]
    x_reason: NotRequired[str]
    x_distance_rank: NotRequired[Probability | None]
    x_contract_sha256: NotRequired[Sha256]
    x_head_sha256: NotRequired[Sha256 | None]


def timing(value: Timing) -> Times:
    """Return the times of one answer."""
    return {"queue_ms": value.queue_ms, "engine_ms": value.engine_ms, "total_ms": value.total_ms}


def tokens(answer: Answer) -> Tokens:
    """Return the token counts of one answer."""
    return {
        "prompt": answer.tokens.prompt,
        "evaluated": answer.tokens.evaluated,
        "reused": answer.tokens.reused,
    }


def extensions(answer: Answer) -> Extensions:
    """Return the ``x_`` fields of one answer."""
    found: Extensions = {
        "x_logits": list(answer.logits),
        "x_slot_token_ids": list(answer.slot_token_ids),
        "x_slot_mass": answer.slot_mass,
        "x_entropy": answer.entropy,
        "x_tokens": tokens(answer),
        "x_prompt_sha256": answer.prompt_sha256,
        "x_prompt_version": answer.prompt_version,
        "x_readout": answer.readout,
        "x_cached": answer.cached,
        "x_probability_status": answer.probability_status,
        "x_timing": timing(answer.timing),
    }
    if (ruling := answer.ruling) is not None:
        found["x_decision"] = ruling.decision
        found["x_action"] = ruling.action
        found["x_reason"] = ruling.reason
        found["x_distance_rank"] = ruling.distance_rank
        found["x_contract_sha256"] = ruling.contract_sha256
        found["x_head_sha256"] = ruling.head_sha256
    return found


def _clamp(value: float) -> float:
    return min(max(value, 0.0), 1.0)

"""The one internal form of a decision, between the contracts' codecs and the scoring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Layout = Literal["state-first", "options-first"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One declared answer.

    Attributes:
        id: What the caller calls it; echoed byte for byte.
        text: What the model reads beside the option's slot; never empty.
        name: The short name that ``text`` begins with; empty when it has none.
    """

    id: str
    text: str
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question with its declared options, in the caller's order (2 to 255).

    Attributes:
        instructions: The question's text.
        options: The declared answers.
        readout: Name of the strategy that reads it; None leaves it to the server.
    """

    instructions: str
    options: tuple[Option, ...]
    readout: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRequest:
    """Questions on one state. Texts are what the model reads: strings verbatim, other values as compact JSON.

    Attributes:
        state: What the questions are about.
        questions: The questions.
        layout: What comes first in the prompt; None leaves it to the server's settings.
    """

    state: str
    questions: tuple[Question, ...]
    layout: Layout | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCounts:
    """Tokens of one answer's prompt.

    ``evaluated`` is what went through ``llama_decode`` for this answer by the engine's own counter; ``reused`` was
    already in a kept prefix. ``prompt = evaluated + reused``.
    """

    prompt: int
    evaluated: int
    reused: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Milliseconds: waiting for the engine, inside the engine, and both with the tokenization around it."""

    queue_ms: float
    engine_ms: float
    total_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The probabilities of one question's options, and how they came about.

    Attributes:
        probabilities: One per option, in the request's order; finite, sum 1 within 1e-6, unrounded.
        logits: Raw logits of the options' answer slots.
        slot_token_ids: Vocabulary ids of those slots.
        slot_mass: Share of the full vocabulary's probability that lies on the slots, 0 to 1.
        entropy: Of ``probabilities``, in nats.
        prompt_sha256: Hash of the exact token ids that were scored.
        prompt_version: Version of the prompt's words.
        readout: Name of the readout strategy.
        cached: The answer was given before, to exactly this prompt, and was kept; nothing was evaluated.
        probability_status: ``"uncalibrated"`` until a calibration is bound to this decision.
    """

    probabilities: tuple[float, ...]
    logits: tuple[float, ...]
    slot_token_ids: tuple[int, ...]
    slot_mass: float
    entropy: float
    prompt_sha256: str
    prompt_version: str
    readout: str
    tokens: TokenCounts
    timing: Timing
    cached: bool = False
    probability_status: str = "uncalibrated"

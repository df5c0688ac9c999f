"""The one internal form of a decision, between the contracts' codecs and the scoring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Layout = Literal["state-first", "options-first"]
Readout = Literal["options-as-cases", "question-as-case", "letters-raw"]
DecisionType = Literal["choice", "yesno", "score"]
Action = Literal["automate", "review", "abstain"]
Cause = Literal["probability", "margin", "distance", "uncalibrated", "never"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One declared answer.

    Attributes:
        id: What the caller calls it; echoed byte for byte.
        text: What the model reads beside the option's slot; never empty.
        name: The short name that ``text`` begins with; empty when it has none.
        way_out: It is for states that no other option fits, whatever its name.
    """

    id: str
    text: str
    name: str = ""
    way_out: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """The registered decision that a question is.

    Attributes:
        name: ``NAME@VERSION``.
        type: Of its answers; ``yesno`` has the options ``yes`` and ``no``, a ``score`` levels from low to high.
    """

    name: str
    type: DecisionType


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question with its declared options, in the caller's order (2 to 255).

    Attributes:
        instructions: The question's text.
        options: The declared answers.
        ordered: The options are levels, from low to high.
        readout: Name of the strategy that reads it, for a registered decision; None leaves it to the request.
        registration: The registered decision that it is; None for a question of the request's own.
    """

    instructions: str
    options: tuple[Option, ...]
    ordered: bool = False
    readout: str | None = None
    registration: Registration | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRequest:
    """Questions on one state. Texts are what the model reads: strings verbatim, other values as compact JSON.

    Attributes:
        state: What the questions are about.
        questions: The questions.
        layout: What comes first in the prompt; None leaves it to the server's settings.
        readout: How questions are read that are not registered; None leaves it to the server's settings.
    """

    state: str
    questions: tuple[Question, ...]
    layout: Layout | None = None
    readout: Readout | None = None


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
class Ruling:
    """The ruling of a registered decision's policy on an answer.

    Attributes:
        decision: ``NAME@VERSION``.
        contract_sha256: Hash of its contract.
        head_sha256: Hash of the head that gave the probabilities; None for letters.
        action: ``automate``: act on it without a person. ``review``: a person confirms it. ``abstain``: no answer.
        reason: The requirement that decided, with both numbers.
        cause: The requirement that kept the answer from being automated; None where it is automated.
        option: Id of the likeliest option; the first of equals.
        probability: Of that option.
        distance_rank: Share of held-out cases that lay nearer to the labelled ones, 0 to 1; None where the readout
            measures no distance.
    """

    decision: str
    contract_sha256: str
    head_sha256: str | None
    action: Action
    reason: str
    cause: Cause | None
    option: str
    probability: float
    distance_rank: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shadowed:
    """The answer of a version that is only recorded.

    Attributes:
        decision: ``NAME@VERSION`` that answered.
        shadow: ``NAME@VERSION`` that did not.
        outcome: Whether both have the same likeliest option; ``failed`` where the shadow could not be decided.
        action: What the shadow's policy would have done; None where it failed.
        evaluated: Tokens that were evaluated for the shadow alone: 0 where both read one prompt.
    """

    decision: str
    shadow: str
    outcome: Literal["agrees", "differs", "failed"]
    action: Action | None = None
    evaluated: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The probabilities of one question's options, and how they came about.

    Attributes:
        probabilities: One per option, in the request's order; finite, sum 1 within 1e-6, unrounded.
        logits: Raw logits of the options' answer slots, or those of a head.
        slot_token_ids: Vocabulary ids of those slots; empty for a readout without.
        slot_mass: Share of the full vocabulary's probability that lies on the slots, 0 to 1; None without slots.
        entropy: Of ``probabilities``, in nats.
        prompt_sha256: Hash of the exact token ids that were scored.
        prompt_version: Version of the prompt's words.
        readout: Name of the readout strategy.
        cached: The answer was given before, to exactly this prompt, and was kept; nothing was evaluated.
        probability_status: ``"calibrated"`` where labelled cases were fitted for this decision, else
            ``"uncalibrated"``.
        ruling: What the policy of a registered decision does with it; None for a question of the request's own.
        shadow: What the decision's shadow would have said; None where it has none.
    """

    probabilities: tuple[float, ...]
    logits: tuple[float, ...]
    slot_token_ids: tuple[int, ...]
    slot_mass: float | None
    entropy: float
    prompt_sha256: str
    prompt_version: str
    readout: str
    tokens: TokenCounts
    timing: Timing
    cached: bool = False
    probability_status: str = "uncalibrated"
    ruling: Ruling | None = None
    shadow: Shadowed | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """A person's word on an answer to a registered decision.

    Attributes:
        decision: ``NAME@VERSION``.
        right: Id of the right option.
        answered: Id of the option that had been answered; None where it was not given.
        record: Id of the request or of its record; None where it was not given.
        state: The state, any JSON value; None where it was not given.
    """

    decision: str
    right: str
    answered: str | None = None
    record: str | None = None
    state: Any = None

    @property
    def overridden(self) -> bool | None:
        """Tell whether another option was right than was answered; None where that is not known."""
        return None if self.answered is None else self.answered != self.right

    @property
    def model(self) -> None:
        """Name no model: feedback is about a decision, whatever answered it."""
        return None

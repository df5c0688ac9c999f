"""Steelyard's own decision contract, of ``/invocations``: ``{"decision": {...}}`` or ``{"decisions": [...]}``.

The model reads an option as ``id: description``, or as its id when the description is absent, null or empty. In
``decisions`` the states must be equal as JSON values, where the order of an object's keys does not count but ``1``,
``1.0`` and ``true`` are three values; the model reads the first one.

A registered decision is asked by its name: ``{"decision": {"use": "support-route@3", "state": ...}}``. Its result has
an action, too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NotRequired

from pydantic import AfterValidator, Discriminator, Field, RootModel, StrictStr, Tag, TypeAdapter

from steelyard_runtime.contracts.answer_details import (
    ModelIdentity,
    Times,
    Tokens,
    TotalTime,
    argmax,
    timing,
    tokens,
)
from steelyard_runtime.contracts.contract import AskedDecisions, DecisionContract, Shape
from steelyard_runtime.contracts.error_formats import OWN
from steelyard_runtime.contracts.limits import Limits
from steelyard_runtime.contracts.option_names import PATTERN, RULE, check_names
from steelyard_runtime.contracts.text import labelled, render
from steelyard_runtime.contracts.validation import (
    LAYOUT,
    READOUT,
    USE,
    FilledContent,
    NonEmpty,
    Path,
    Sized,
    Strict,
    Use,
    invalid,
    quote,
    refuse_repeated,
    validated,
)
from steelyard_runtime.contracts.wire import Count, Open, Probability, Sha256, Wire
from steelyard_runtime.decision import Action, Answer, DecisionRequest, Layout, Option, Question, Readout
from steelyard_runtime.settings import MAX_OPTIONS, MAX_QUESTIONS


class OptionModel(Strict):
    """One declared answer."""

    id: NonEmpty = Field(description="Returned unchanged. " + RULE, json_schema_extra={"pattern": PATTERN})
    description: StrictStr | None = Field(None, description="What the option means; the model reads it after the id.")


def _unique_options(options: list[OptionModel]) -> list[OptionModel]:
    refuse_repeated((option.id for option in options), "option id")
    check_names((option.id for option in options), "option id")
    return options


class DecisionModel(Strict):
    """One question on one state."""

    id: NonEmpty = Field(description="Returned unchanged; the model does not see it.")
    state: FilledContent = Field(description="What the question is about.")
    question: NonEmpty
    options: Annotated[
        list[OptionModel],
        AfterValidator(_unique_options),
        Sized("option", low=2, most=MAX_OPTIONS, setting="max_options"),
    ]


class UseModel(Strict):
    """A registered decision on one state."""

    use: Use = Field(description=USE)
    state: FilledContent = Field(description="What the decision is about.")
    id: NonEmpty | None = Field(None, description="Returned unchanged; the value of use when it is absent.")


def _tag(decision: Any) -> str:
    return "registered" if isinstance(decision, dict) and "use" in decision else "asked"


AnyDecision = Annotated[
    Annotated[DecisionModel, Tag("asked")] | Annotated[UseModel, Tag("registered")], Discriminator(_tag)
]
_UNIONS: tuple[Path, ...] = (("decision",), ("decisions", ...))


def _unique_decisions(decisions: list[DecisionModel | UseModel]) -> list[DecisionModel | UseModel]:
    refuse_repeated(map(_id, decisions), "decision id")
    return decisions


def _id(decision: DecisionModel | UseModel) -> str:
    return decision.id or decision.use if isinstance(decision, UseModel) else decision.id


class Single(Strict):
    """One decision."""

    decision: AnyDecision
    layout: Layout | None = LAYOUT
    readout: Readout | None = READOUT


class Several(Strict):
    """Several decisions on one state, which is evaluated once."""

    decisions: Annotated[
        list[AnyDecision],
        AfterValidator(_unique_decisions),
        Sized("decision", low=1, most=MAX_QUESTIONS, setting="max_questions"),
    ]
    layout: Layout | None = LAYOUT
    readout: Readout | None = READOUT


class Request(RootModel[Single | Several]):
    """The body: exactly one of ``decision`` and ``decisions``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded(AskedDecisions):
    """A valid request; ``ids`` are the decisions', and ``single`` says which of the two forms it had."""

    ids: tuple[str, ...]
    single: bool


def decode(body: Any, limits: Limits) -> Decoded:
    """The decisions of a body.

    Raises:
        Problem: ``INVALID``, with a fault for every field that is wrong.
    """
    if not isinstance(body, dict):
        raise invalid((), f"must be an object; got {quote(body)}", "model_type")
    if ("decision" in body) == ("decisions" in body):
        found = "both are" if "decision" in body else "neither is"
        raise invalid((), f"exactly one of 'decision' and 'decisions' is needed; {found} present")
    model: type[Single | Several] = Single if "decision" in body else Several
    parsed = validated(model, body, limits, unions=_UNIONS)
    decisions = [parsed.decision] if isinstance(parsed, Single) else parsed.decisions
    _refuse_different_states(decisions)
    return Decoded(
        request=DecisionRequest(
            state=render(decisions[0].state),
            questions=tuple(_question(decision, limits) for decision in decisions),
            layout=parsed.layout,
            readout=parsed.readout,
        ),
        ids=tuple(map(_id, decisions)),
        single="decision" in body,
    )


class Result(Wire):
    """The answer to one decision; every list is in the order of its options.

    ``allowed_token_mass`` is null where no token stands for an option. The fields from ``decision`` on are those of a
    registered decision: what its policy does with the answer, and why.
    """

    id: str
    choice: str
    option_ids: list[str]
    probabilities: list[Probability]
    option_logits: list[float]
    answer_token_ids: list[Count]
    input_tokens: Count
    tokens: Tokens
    allowed_token_mass: Probability | None
    entropy: float
    prompt_sha256: Sha256
    prompt_version: str
    model: Open
    readout: str
    cached: bool
    probability_status: str
    timing: Times
    decision: NotRequired[str]
    action: NotRequired[Action]
    reason: NotRequired[str]
    distance_rank: NotRequired[Probability | None]
    contract_sha256: NotRequired[Sha256]
    head_sha256: NotRequired[Sha256 | None]


class SingleAnswer(Wire):
    """The answer to ``decision``."""

    result: Result


class SeveralAnswers(Wire):
    """The answers to ``decisions``, in their order."""

    results: list[Result]
    timing: TotalTime


def encode(
    decoded: Decoded, answers: Sequence[Answer], identity: ModelIdentity, timing_ms: float
) -> SingleAnswer | SeveralAnswers:
    """The response body."""
    results = [
        _result(decision_id, question, answer, identity)
        for decision_id, question, answer in zip(decoded.ids, decoded.request.questions, answers, strict=True)
    ]
    if decoded.single:
        return {"result": results[0]}
    return {"results": results, "timing": {"total_ms": timing_ms}}


def _refuse_different_states(decisions: Sequence[DecisionModel | UseModel]) -> None:
    first = _canonical(decisions[0].state)
    for index, decision in enumerate(decisions[1:], start=1):
        if _canonical(decision.state) != first:
            raise invalid(
                ("decisions", index, "state"),
                "differs from the state of the first decision; all decisions of one request share one state, "
                "so send this one in a request of its own",
                "different_state",
            )


def _canonical(state: Any) -> str:
    return json.dumps(state, sort_keys=True)


def _question(decision: DecisionModel | UseModel, limits: Limits) -> Question:
    if isinstance(decision, UseModel):
        return limits.registered()[decision.use]
    return Question(
        instructions=decision.question,
        options=tuple(
            Option(id=option.id, text=labelled(option.id, option.description or ""), name=option.id)
            for option in decision.options
        ),
    )


def _result(decision_id: str, question: Question, answer: Answer, identity: ModelIdentity) -> Result:
    result: Result = {
        "id": decision_id,
        "choice": question.options[argmax(answer.probabilities)].id,
        "option_ids": [option.id for option in question.options],
        "probabilities": list(answer.probabilities),
        "option_logits": list(answer.logits),
        "answer_token_ids": list(answer.slot_token_ids),
        "input_tokens": answer.tokens.prompt,
        "tokens": tokens(answer),
        "allowed_token_mass": answer.slot_mass,
        "entropy": answer.entropy,
        "prompt_sha256": answer.prompt_sha256,
        "prompt_version": answer.prompt_version,
        "model": identity.summary(),
        "readout": answer.readout,
        "cached": answer.cached,
        "probability_status": answer.probability_status,
        "timing": timing(answer.timing),
    }
    if (ruling := answer.ruling) is not None:
        result["decision"] = ruling.decision
        result["action"] = ruling.action
        result["reason"] = ruling.reason
        result["distance_rank"] = ruling.distance_rank
        result["contract_sha256"] = ruling.contract_sha256
        result["head_sha256"] = ruling.head_sha256
    return result


_TEAMS = [{"id": "billing", "description": "money"}, {"id": "other"}]
CONTRACT = DecisionContract(
    name="decide",
    prefix="Decide",
    shape=Shape(
        title="decisions",
        example="{'decision': {...}} or {'decisions': [...]}",
        fields=("decision", "decisions"),
    ),
    request=Request,
    answer=TypeAdapter[SingleAnswer | SeveralAnswers](SingleAnswer | SeveralAnswers),
    errors=OWN,
    decode=decode,
    encode=encode,
    golden=(
        {
            "decision": {
                "id": "a",
                "state": "My card was charged twice.",
                "question": "Which team?",
                "options": _TEAMS,
            }
        },
        {"decision": {"id": "a", "state": {"order": [7, None]}, "question": " ", "options": _TEAMS}},
    ),
)

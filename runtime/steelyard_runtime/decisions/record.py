"""Records of decisions and of people's corrections: one JSON line each, without texts unless they are asked for.

A record says what was asked by hashes, what was answered to the last bit, and by whom; whoever has the texts can ask
again and compare. A hash of a short text can be guessed by trying texts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from steelyard_runtime.contracts.text import render
from steelyard_runtime.decision import Action, Answer, Cause, Correction, DecisionRequest, Layout, Option, Question


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    def line(self) -> str:
        """Return it as JSON, with the line's end."""
        return self.model_dump_json() + "\n"


class RecordedOption(_Record):
    """One option, as the model read it."""

    id: str
    text: str
    name: str = ""


class RecordedText(_Record):
    """The texts of a decision; only where `record_text` is on."""

    state: Annotated[str, Field(description="The state, as the model read it.")]
    instructions: Annotated[str, Field(description="The question.")]
    options: Annotated[tuple[RecordedOption, ...], Field(description="The options.")]


class RecordedTokens(_Record):
    """Tokens of a decision's prompt."""

    prompt: int
    evaluated: int
    reused: int


class DecisionRecord(_Record):
    """One answer to one question."""

    event: Literal["decision"] = "decision"
    format: Annotated[Literal[1], Field(description="Version of these fields.")] = 1
    time: Annotated[str, Field(description="When it was answered, ISO 8601 in UTC.")]
    id: Annotated[str, Field(description="`REQUEST_ID/INDEX`, by which feedback names it.")]
    contract: Annotated[str, Field(description="The wire contract.")]
    decision: Annotated[str | None, Field(description="`NAME@VERSION`; null for a question of the request's own.")]
    contract_sha256: Annotated[str | None, Field(description="Hash of the registered decision's contract.")]
    head_sha256: Annotated[str | None, Field(description="Hash of its head.")]
    state_sha256: Annotated[str, Field(description="Hash of the state's text.")]
    question_sha256: Annotated[str, Field(description="Hash of question, options and readout.")]
    prompt_sha256: Annotated[str, Field(description="Hash of the token ids that were scored.")]
    prompt_version: Annotated[str, Field(description="Version of the words around them.")]
    readout: Annotated[str, Field(description="The strategy that read them.")]
    layout: Annotated[Layout, Field(description="What came first in the prompt.")]
    answer: Annotated[int, Field(description="Index of the likeliest option, from 0; the first of equals.")]
    option: Annotated[str | None, Field(description="Its id; null for a question of the request's own.")]
    probabilities: Annotated[tuple[float, ...], Field(description="Of each option, unrounded.")]
    logits: Annotated[tuple[float, ...], Field(description="Of each option, unrounded.")]
    probability_status: Annotated[str, Field(description="`calibrated` or `uncalibrated`.")]
    action: Annotated[Action | None, Field(description="What the policy did with it.")]
    cause: Annotated[Cause | None, Field(description="The requirement that kept it from being automated.")]
    distance_rank: Annotated[float | None, Field(description="How far the state lies from the cases.")]
    cached: Annotated[bool, Field(description="It had been answered before, and was given again.")]
    tokens: Annotated[RecordedTokens, Field(description="Tokens of the prompt.")]
    queue_ms: float
    engine_ms: float
    identity: Annotated[dict[str, Any], Field(description="Everything that the answer depends on, by name.")]
    text: Annotated[RecordedText | None, Field(description="The texts, where `record_text` is on.")] = None


class FeedbackRecord(_Record):
    """A person's word on one answer."""

    event: Literal["feedback"] = "feedback"
    format: Annotated[Literal[1], Field(description="Version of these fields.")] = 1
    time: Annotated[str, Field(description="When it came, ISO 8601 in UTC.")]
    id: Annotated[str, Field(description="Id of the request that brought it.")]
    decision: Annotated[str, Field(description="`NAME@VERSION`.")]
    contract_sha256: Annotated[str, Field(description="Hash of its contract.")]
    record: Annotated[str | None, Field(description="Id of the answer's request or record; null if not given.")]
    right: Annotated[str, Field(description="Id of the right option.")]
    answered: Annotated[str | None, Field(description="Id of the option that had been answered.")]
    overridden: Annotated[bool | None, Field(description="Another option was right; null where that is not known.")]
    state_sha256: Annotated[str | None, Field(description="Hash of the state's text.")]
    state: Annotated[Any, Field(description="The state, where `record_text` is on.")] = None

    def line(self) -> str:
        """Return it as JSON, with the line's end. pydantic writes no state that is as deep as a body may be."""
        said = self.model_dump(mode="json", exclude={"state"}) | {"state": self.state}
        return json.dumps(said, ensure_ascii=False, separators=(",", ":")) + "\n"


def feedback_record(
    correction: Correction, *, request_id: str, contract_sha256: str, time: datetime, with_text: bool
) -> FeedbackRecord:
    """Return the record of a correction.

    Args:
        correction: What a person said.
        request_id: Id of the request that brought it.
        contract_sha256: Hash of the decision's contract.
        time: When it came, in UTC.
        with_text: Keep the state, too.
    """
    state = correction.state
    return FeedbackRecord(
        time=time.isoformat().replace("+00:00", "Z"),
        id=request_id,
        decision=correction.decision,
        contract_sha256=contract_sha256,
        record=correction.record,
        right=correction.right,
        answered=correction.answered,
        overridden=correction.overridden,
        state_sha256=None if state is None else sha256_of_state(render(state)),
        state=state if with_text else None,
    )


def decision_records(
    request: DecisionRequest,
    answers: Sequence[Answer],
    *,
    request_id: str,
    contract: str,
    layout: Layout,
    identity: Mapping[str, Any],
    time: datetime,
    with_text: bool,
) -> list[DecisionRecord]:
    """Return the records of a request's answers, in order.

    Args:
        request: The questions.
        answers: One for each.
        request_id: The request's id.
        contract: Name of the wire contract.
        layout: The one that was used.
        identity: What the answers depend on besides the request.
        time: When they were given, in UTC.
        with_text: Keep the texts, too.
    """
    stamp = time.isoformat().replace("+00:00", "Z")
    state_sha256 = sha256_of_state(request.state)
    return [
        _decision_record(
            question,
            answer,
            state_sha256=state_sha256,
            state=request.state if with_text else None,
            common={
                "time": stamp,
                "id": f"{request_id}/{index}",
                "contract": contract,
                "layout": layout,
                "identity": dict(identity),
            },
        )
        for index, (question, answer) in enumerate(zip(request.questions, answers, strict=True))
    ]


def _decision_record(
    question: Question, answer: Answer, *, state_sha256: str, state: str | None, common: dict[str, Any]
) -> DecisionRecord:
    ruling, registered = answer.ruling, question.registration is not None
    likeliest = max(range(len(answer.probabilities)), key=answer.probabilities.__getitem__)
    return DecisionRecord(
        **common,
        decision=None if ruling is None else ruling.decision,
        contract_sha256=None if ruling is None else ruling.contract_sha256,
        head_sha256=None if ruling is None else ruling.head_sha256,
        state_sha256=state_sha256,
        question_sha256=sha256_of_question(question),
        prompt_sha256=answer.prompt_sha256,
        prompt_version=answer.prompt_version,
        readout=answer.readout,
        answer=likeliest,
        option=question.options[likeliest].id if registered else None,
        probabilities=answer.probabilities,
        logits=answer.logits,
        probability_status=answer.probability_status,
        action=None if ruling is None else ruling.action,
        cause=None if ruling is None else ruling.cause,
        distance_rank=None if ruling is None else ruling.distance_rank,
        cached=answer.cached,
        tokens=RecordedTokens(
            prompt=answer.tokens.prompt, evaluated=answer.tokens.evaluated, reused=answer.tokens.reused
        ),
        queue_ms=answer.timing.queue_ms,
        engine_ms=answer.timing.engine_ms,
        text=None if state is None else _text_of(state, question),
    )


def _text_of(state: str, question: Question) -> RecordedText:
    return RecordedText(
        state=state,
        instructions=question.instructions,
        options=tuple(RecordedOption(id=each.id, text=each.text, name=each.name) for each in question.options),
    )


def question_of(record: DecisionRecord) -> Question | None:
    """Return the question of a record with texts; None where it has none, or is of a registered decision."""
    if record.text is None or record.decision is not None:
        return None
    return Question(
        instructions=record.text.instructions,
        options=tuple(Option(id=each.id, text=each.text, name=each.name) for each in record.text.options),
        readout=record.readout,
    )


def sha256_of_state(state: str) -> str:
    """Return the hash of a state's text."""
    return hashlib.sha256(state.encode()).hexdigest()


def sha256_of_question(question: Question) -> str:
    """Return the hash of what a question asks: its words, its options, and the registered decision that it is."""
    said = [
        question.instructions,
        [[each.id, each.text, each.name] for each in question.options],
        None if question.registration is None else question.registration.name,
    ]
    return hashlib.sha256(json.dumps(said, ensure_ascii=False).encode()).hexdigest()

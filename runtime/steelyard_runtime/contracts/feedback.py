"""Feedback: what a person found right about an answer to a registered decision. ``POST /v1/feedback``.

The server keeps no answers: whoever was asked says what had been answered. So it does not matter which instance of an
endpoint gets the feedback.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, StrictStr, StringConstraints, TypeAdapter

from steelyard_runtime.contracts.contract import FeedbackContract, Shape
from steelyard_runtime.contracts.error_formats import OWN
from steelyard_runtime.contracts.limits import Limits
from steelyard_runtime.contracts.validation import USE, MaybeContent, NonEmpty, Strict, Use, invalid, quote, validated
from steelyard_runtime.contracts.wire import Sha256, Wire
from steelyard_runtime.decision import Correction

RECORD_PATTERN = r"^[A-Za-z0-9._-]{1,64}(/[0-9]{1,3})?$"
_SHOWN_OPTIONS = 20


class FeedbackModel(Strict):
    """One answer and what would have been right."""

    use: Use = Field(description=USE)
    right: NonEmpty = Field(description="Id of the right option.")
    answered: NonEmpty | None = Field(
        None, description="Id of the option that had been answered. Unless given, it is not known whether it was wrong."
    )
    record: Annotated[StrictStr, StringConstraints(pattern=RECORD_PATTERN)] | None = Field(
        None, description="The request's id (`x-request-id`), with `/INDEX` where it had several decisions."
    )
    state: MaybeContent = Field(
        None,
        description="The state, as it was asked about. It is recorded where the setting record_text is on; its hash "
        "always is.",
    )


class Request(Strict):
    """The body of feedback."""

    feedback: FeedbackModel


class Response(Wire):
    """The fate of a correction: counted, recorded, with its state or without."""

    decision: str
    right: str
    overridden: bool | None
    state_sha256: Sha256 | None
    recorded: bool
    state_recorded: bool


def decode(body: Any, limits: Limits) -> Correction:
    """Return the correction in a body.

    Raises:
        Problem: INVALID, with each fault.
    """
    given = validated(Request, body, limits).feedback
    question = limits.registered()[given.use]
    for name, value in (("right", given.right), ("answered", given.answered)):
        options = [option.id for option in question.options]
        if value is not None and value not in options:
            shown = ", ".join(map(quote, options[:_SHOWN_OPTIONS]))
            more = f" and {len(options) - _SHOWN_OPTIONS} more" if len(options) > _SHOWN_OPTIONS else ""
            raise invalid(("feedback", name), f"{quote(value)} is no option of {given.use}; they are: {shown}{more}")
    return Correction(
        decision=question.registration.name if question.registration else given.use,
        right=given.right,
        answered=given.answered,
        record=given.record,
        state=given.state,
    )


def encode(correction: Correction, *, state_sha256: str | None, recorded: bool, with_state: bool) -> Response:
    """Return the body of an answer."""
    return {
        "decision": correction.decision,
        "right": correction.right,
        "overridden": correction.overridden,
        "state_sha256": state_sha256,
        "recorded": recorded,
        "state_recorded": with_state,
    }


CONTRACT = FeedbackContract(
    name="feedback",
    prefix="Feedback",
    paths={"/v1/feedback": "What would have been right about a registered decision"},
    shape=Shape(title="feedback", example="{'feedback': {...}}", fields=("feedback",)),
    request=Request,
    answer=TypeAdapter(Response),
    errors=OWN,
    decode=decode,
    encode=encode,
)

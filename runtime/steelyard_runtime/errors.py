"""The one error table: every way in which a request can fail, its HTTP status, and whether to repeat the request."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pydantic import Field
from typing_extensions import TypedDict


class Kind(StrEnum):
    """Outcome classes. They appear in logs and metrics under these names."""

    MALFORMED_JSON = "malformed_json"
    INVALID = "invalid"
    UNSUPPORTED = "unsupported"
    UNKNOWN_SHAPE = "unknown_shape"
    MODEL_NOT_FOUND = "model_not_found"
    OVER_BUDGET = "over_budget"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    UPLOAD_TIMEOUT = "upload_timeout"
    UNREAD = "unread"
    BODY_TOO_LARGE = "body_too_large"
    MEDIA_TYPE = "media_type"
    REPEATED_HEADER = "repeated_header"
    BUSY = "busy"
    DEADLINE = "deadline"
    DRAINING = "draining"
    NOT_READY = "not_ready"
    REQUEST_FAILED = "request_failed"
    ENGINE_FAILED = "engine_failed"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class Row:
    """HTTP status of a kind, and whether repeating the same request can succeed.

    A contract may give a kind another status: ``contracts/error_formats.py``.
    """

    status: int
    retryable: bool = False


# SDKs retry 408, 409, 429 and 5xx, so nothing that the caller must change may use one of those. [contracts: System One]
TABLE: dict[Kind, Row] = {
    Kind.MALFORMED_JSON: Row(400),
    Kind.INVALID: Row(422),
    Kind.UNSUPPORTED: Row(400),
    Kind.UNKNOWN_SHAPE: Row(400),
    Kind.MODEL_NOT_FOUND: Row(404),
    Kind.OVER_BUDGET: Row(413),
    Kind.NOT_FOUND: Row(404),
    Kind.METHOD_NOT_ALLOWED: Row(405),
    Kind.UPLOAD_TIMEOUT: Row(408, retryable=True),
    Kind.UNREAD: Row(408, retryable=True),
    Kind.BODY_TOO_LARGE: Row(413),
    Kind.MEDIA_TYPE: Row(415),
    Kind.REPEATED_HEADER: Row(400),
    Kind.BUSY: Row(503, retryable=True),
    Kind.DEADLINE: Row(503, retryable=True),
    Kind.DRAINING: Row(503, retryable=True),
    Kind.NOT_READY: Row(503, retryable=True),
    # A fault of ours; but the same request would meet it again, and might end the engine for everyone. SDKs repeat a
    # request that got a 5xx by themselves, so this is the 4xx that says "understood, and cannot be processed".
    Kind.REQUEST_FAILED: Row(422),
    Kind.ENGINE_FAILED: Row(503, retryable=True),
    Kind.INTERNAL: Row(500),
}


@dataclass(frozen=True, slots=True)
class Detail:
    """One fault at one place of the body.

    Attributes:
        loc: Path into the body, without a leading "body": ``("questions", "team", "criteria")``.
        message: What was wrong, the value or limit, and what to do.
        type: A short machine-readable class, as pydantic names them (``"missing"``, ``"too_long"``).
    """

    loc: tuple[str | int, ...]
    message: str
    type: str = "value_error"


_Count = Annotated[int, Field(ge=0)]


class Counts(TypedDict, total=False):
    """Numbers of a problem that a program may want."""

    counted_tokens: _Count
    allowed_tokens: _Count
    counted_bytes: _Count
    allowed_bytes: _Count
    prompt_tokens: _Count
    max_tokens: _Count
    limit: _Count


class Problem(Exception):  # noqa: N818 - the term of RFC 9457
    """A request that cannot be answered, in terms that no contract owns yet.

    Args:
        kind: The outcome class; the table above gives statuses.
        message: One sentence for the person who reads it.
        details: Faults by place, for contracts that list them.
        param: The offending field, for contracts that name one.
        retry_after_ms: When to try again, in milliseconds; only for retryable kinds.
        headers: Extra response headers (``Allow`` for 405).
        counts: Numbers a program may want.
    """

    def __init__(
        self,
        kind: Kind,
        message: str,
        *,
        details: tuple[Detail, ...] = (),
        param: str | None = None,
        retry_after_ms: int | None = None,
        headers: dict[str, str] | None = None,
        counts: Counts | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.details = details
        self.param = param
        self.retry_after_ms = retry_after_ms
        self.headers = headers or {}
        self.counts: Counts = counts or {}

    @property
    def row(self) -> Row:
        """The row of this problem's kind."""
        return TABLE[self.kind]


def over_budget(*, counted: int, allowed: int, what: str = "The prompt", param: str | None = None) -> Problem:
    """A request of more tokens than fit; names both numbers, because nothing is ever truncated."""
    return Problem(
        Kind.OVER_BUDGET,
        f"{what} has {counted} tokens and {allowed} are allowed; shorten it, or raise context_tokens on the server. "
        "Nothing is truncated.",
        param=param,
        counts={"counted_tokens": counted, "allowed_tokens": allowed},
    )

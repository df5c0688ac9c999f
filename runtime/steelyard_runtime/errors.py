"""The one error table: every way in which a request can fail, and what each contract says about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


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
    """HTTP status by contract family, and whether repeating the same request can succeed."""

    status: int
    systemone_status: int
    openai_status: int
    openai_type: str
    retryable: bool = False


# SDKs retry 408, 409, 429 and 5xx, so nothing that the caller must change may use one of those. [contracts: System One]
TABLE: dict[Kind, Row] = {
    Kind.MALFORMED_JSON: Row(400, 422, 400, "invalid_request_error"),
    Kind.INVALID: Row(422, 422, 400, "invalid_request_error"),
    Kind.UNSUPPORTED: Row(400, 422, 400, "invalid_request_error"),
    Kind.UNKNOWN_SHAPE: Row(400, 400, 400, "invalid_request_error"),
    Kind.MODEL_NOT_FOUND: Row(404, 404, 404, "invalid_request_error"),
    Kind.OVER_BUDGET: Row(413, 413, 400, "invalid_request_error"),
    Kind.NOT_FOUND: Row(404, 404, 404, "invalid_request_error"),
    Kind.METHOD_NOT_ALLOWED: Row(405, 405, 405, "invalid_request_error"),
    Kind.UPLOAD_TIMEOUT: Row(408, 408, 408, "invalid_request_error", retryable=True),
    Kind.UNREAD: Row(408, 408, 408, "invalid_request_error", retryable=True),
    Kind.BODY_TOO_LARGE: Row(413, 413, 413, "invalid_request_error"),
    Kind.MEDIA_TYPE: Row(415, 415, 415, "invalid_request_error"),
    Kind.REPEATED_HEADER: Row(400, 400, 400, "invalid_request_error"),
    Kind.BUSY: Row(503, 503, 503, "overloaded_error", retryable=True),
    Kind.DEADLINE: Row(503, 503, 503, "overloaded_error", retryable=True),
    Kind.DRAINING: Row(503, 503, 503, "overloaded_error", retryable=True),
    Kind.NOT_READY: Row(503, 503, 503, "overloaded_error", retryable=True),
    # A fault of ours; but the same request would meet it again, and might end the engine for everyone. SDKs repeat a
    # request that got a 5xx by themselves, so this is the 4xx that says "understood, and cannot be processed".
    Kind.REQUEST_FAILED: Row(422, 422, 422, "server_error"),
    Kind.ENGINE_FAILED: Row(503, 503, 503, "server_error", retryable=True),
    Kind.INTERNAL: Row(500, 500, 500, "server_error"),
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


class Problem(Exception):  # noqa: N818 - the term of RFC 9457
    """A request that cannot be answered, in terms that no contract owns yet.

    Args:
        kind: The outcome class; the table above gives statuses.
        message: One sentence for the person who reads it.
        details: Faults by place, for contracts that list them.
        param: The offending field, for contracts that name one.
        retry_after_ms: When to try again, in milliseconds; only for retryable kinds.
        headers: Extra response headers (``Allow`` for 405).
        counts: Numbers a program may want (``counted_tokens``, ``allowed_tokens``, ``limit``).
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
        counts: dict[str, int] | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.details = details
        self.param = param
        self.retry_after_ms = retry_after_ms
        self.headers = headers or {}
        self.counts = counts or {}

    @property
    def row(self) -> Row:
        """The statuses of this problem's kind."""
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


def semif_error(problem: Problem) -> tuple[int, dict[str, Any]]:
    """Status and body as the walkthrough's contract has them: ``error``, ``retryable``, ``retry_after_ms``."""
    body: dict[str, Any] = {"error": problem.message, "type": problem.kind.value, "retryable": problem.row.retryable}
    if problem.retry_after_ms is not None:
        body["retry_after_ms"] = problem.retry_after_ms
    if problem.details:
        body["detail"] = [{"loc": list(d.loc), "msg": d.message, "type": d.type} for d in problem.details]
    return problem.row.status, body | problem.counts


def systemone_error(problem: Problem) -> tuple[int, dict[str, Any]]:
    """Status and body as System One has them: a ``detail`` list for 422, else ``detail.error_type`` and ``message``."""
    status = problem.row.systemone_status
    if status == 422:
        details = problem.details or (Detail((), problem.message, problem.kind.value),)
        return status, {"detail": [{"loc": ["body", *d.loc], "msg": d.message, "type": d.type} for d in details]}
    detail: dict[str, Any] = {"error_type": problem.kind.value, "message": problem.message} | problem.counts
    if problem.row.retryable:
        detail["retryable"] = True
    if problem.retry_after_ms is not None:
        detail["retry_after_ms"] = problem.retry_after_ms
    return status, {"detail": detail}


def openai_error(problem: Problem) -> tuple[int, dict[str, Any]]:
    """Status and body as OpenAI has them: ``error`` with ``message``, ``type``, ``param``, ``code``."""
    code = "context_length_exceeded" if problem.kind is Kind.OVER_BUDGET else problem.kind.value
    param = problem.param
    if param is None and problem.details:
        param = ".".join(map(str, problem.details[0].loc)) or None
    error: dict[str, Any] = {
        "message": problem.message,
        "type": problem.row.openai_type,
        "param": param,
        "code": code,
    }
    if problem.retry_after_ms is not None:
        error["retry_after_ms"] = problem.retry_after_ms
    return problem.row.openai_status, {"error": error | problem.counts}

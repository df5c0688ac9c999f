"""The bodies in which contracts report a problem, and the statuses that they give to some kinds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, NotRequired, TypeVar

from pydantic import TypeAdapter

from steelyard_runtime.contracts.wire import Count, Wire
from steelyard_runtime.errors import TABLE, Counts, Detail, Kind, Problem

BodyT = TypeVar("BodyT")


@dataclass(frozen=True, eq=False, kw_only=True)
class ErrorFormat(Generic[BodyT]):
    """The form in which a family of contracts reports problems.

    Attributes:
        name: Of the body's schema in the OpenAPI document.
        title: For people.
        body_type: The type of the bodies.
        body: The body for a problem and its status.
        statuses: Of the kinds whose status is not the one of the error table.
    """

    name: str
    title: str
    body_type: TypeAdapter[BodyT]
    body: Callable[[Problem, int], BodyT]
    statuses: Mapping[Kind, int]

    def status(self, kind: Kind) -> int:
        """Return the HTTP status of a kind."""
        return self.statuses.get(kind, TABLE[kind].status)

    def render(self, problem: Problem) -> tuple[int, BodyT]:
        """Return status and body, JSON-ready."""
        status = self.status(problem.kind)
        return status, self.body(problem, status)


FormatOf = Callable[[str], ErrorFormat[Any]]
"""From a path to the format of its errors."""


class Fault(Wire):
    """One fault at one place of the body."""

    loc: list[str | int]
    msg: str
    type: str


class ErrorBody(Wire, Counts):
    """A problem in the server's own format."""

    error: str
    type: Kind | Literal["malformed_http", "head_timeout"]
    retryable: bool
    retry_after_ms: NotRequired[Count]
    detail: NotRequired[list[Fault]]


class SystemOneProblem(Wire, Counts):
    """A problem other than a list of faults."""

    error_type: Kind
    message: str
    retryable: NotRequired[Literal[True]]
    retry_after_ms: NotRequired[Count]


class SystemOneErrorBody(Wire):
    """A list of faults for 422, else one problem."""

    detail: list[Fault] | SystemOneProblem


OpenAIType = Literal["invalid_request_error", "overloaded_error", "server_error"]


class OpenAIProblem(Wire, Counts):
    """The fields that OpenAI's clients read of a problem."""

    message: str
    type: OpenAIType
    param: str | None
    code: Kind | Literal["context_length_exceeded"]
    retry_after_ms: NotRequired[Count]


class OpenAIErrorBody(Wire):
    """A problem as OpenAI reports it."""

    error: OpenAIProblem


_OPENAI_TYPES: dict[Kind, OpenAIType] = {
    Kind.BUSY: "overloaded_error",
    Kind.DEADLINE: "overloaded_error",
    Kind.DRAINING: "overloaded_error",
    Kind.NOT_READY: "overloaded_error",
    Kind.REQUEST_FAILED: "server_error",
    Kind.ENGINE_FAILED: "server_error",
    Kind.INTERNAL: "server_error",
}


def _own_body(problem: Problem, _: int) -> ErrorBody:
    body: ErrorBody = {"error": problem.message, "type": problem.kind, "retryable": problem.row.retryable}
    if problem.retry_after_ms is not None:
        body["retry_after_ms"] = problem.retry_after_ms
    if problem.details:
        body["detail"] = [_fault(detail) for detail in problem.details]
    return {**body, **problem.counts}


def _systemone_body(problem: Problem, status: int) -> SystemOneErrorBody:
    if status == 422:
        details = problem.details or (Detail((), problem.message, problem.kind.value),)
        return {"detail": [_fault(detail, within=("body",)) for detail in details]}
    single: SystemOneProblem = {"error_type": problem.kind, "message": problem.message}
    if problem.row.retryable:
        single["retryable"] = True
    if problem.retry_after_ms is not None:
        single["retry_after_ms"] = problem.retry_after_ms
    return {"detail": {**single, **problem.counts}}


def _openai_body(problem: Problem, _: int) -> OpenAIErrorBody:
    param = problem.param
    if param is None and problem.details:
        param = ".".join(map(str, problem.details[0].loc)) or None
    error: OpenAIProblem = {
        "message": problem.message,
        "type": _OPENAI_TYPES.get(problem.kind, "invalid_request_error"),
        "param": param,
        "code": "context_length_exceeded" if problem.kind is Kind.OVER_BUDGET else problem.kind,
    }
    if problem.retry_after_ms is not None:
        error["retry_after_ms"] = problem.retry_after_ms
    return {"error": {**error, **problem.counts}}


def _fault(detail: Detail, *, within: tuple[str, ...] = ()) -> Fault:
    return {"loc": [*within, *detail.loc], "msg": detail.message, "type": detail.type}


OWN = ErrorFormat(
    name="Error",
    title="`/invocations`",
    body_type=TypeAdapter(ErrorBody),
    body=_own_body,
    statuses={},
)
"""The server's own format, for every path that has no other."""

SYSTEM_ONE = ErrorFormat(
    name="SystemOneError",
    title="System One",
    body_type=TypeAdapter(SystemOneErrorBody),
    body=_systemone_body,
    statuses={Kind.MALFORMED_JSON: 422, Kind.UNSUPPORTED: 422},
)

OPENAI = ErrorFormat(
    name="OpenAIError",
    title="OpenAI",
    body_type=TypeAdapter(OpenAIErrorBody),
    body=_openai_body,
    statuses={Kind.INVALID: 400, Kind.OVER_BUDGET: 400},
)

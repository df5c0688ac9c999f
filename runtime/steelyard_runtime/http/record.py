"""What one request leaves behind for the log line and the metrics; the routes fill it while they work."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request

from steelyard_runtime.decision import Answer, TokenCounts
from steelyard_runtime.http.error_shapes import ErrorShape

OK = "ok"
CLIENT_LEFT = "client_left"
_SCOPE_KEY = "steelyard.record"


@dataclass(slots=True, kw_only=True)
class RequestRecord:
    """One request, without any text of the caller's.

    Attributes:
        request_id: Sent back in the response's headers.
        shape: How an error is written for this request.
        contract: Name of the contract, ``"none"`` for routes without one and before dispatch.
        outcome: ``"ok"``, ``"client_left"`` or the name of an error kind.
        raw_body: The caller's body, only filled when the settings ask for raw text.
    """

    request_id: str
    shape: ErrorShape
    contract: str = "none"
    outcome: str = OK
    body_bytes: int = 0
    prompt_sha256: list[str] = field(default_factory=list)
    tokens_prompt: int = 0
    tokens_evaluated: int = 0
    tokens_reused: int = 0
    generated_tokens: int = 0
    queue_ms: float | None = None
    engine_ms: float | None = None
    raw_body: str | None = None

    def add_tokens(self, counts: TokenCounts) -> None:
        """Count one prompt's tokens."""
        self.tokens_prompt += counts.prompt
        self.tokens_evaluated += counts.evaluated
        self.tokens_reused += counts.reused

    def add_answers(self, answers: Iterable[Answer]) -> None:
        """Note hashes, tokens and times of a decision's answers; they waited together and were evaluated in turn."""
        for answer in answers:
            self.prompt_sha256.append(answer.prompt_sha256)
            self.add_tokens(answer.tokens)
            self.queue_ms = max(self.queue_ms or 0.0, answer.timing.queue_ms)
            self.engine_ms = (self.engine_ms or 0.0) + answer.timing.engine_ms


def attach(scope: MutableMapping[str, Any], record: RequestRecord) -> None:
    """Make ``record`` the one of this ASGI scope."""
    scope[_SCOPE_KEY] = record


def record_of(request: Request) -> RequestRecord:
    """The record of ``request``."""
    record: RequestRecord = request.scope[_SCOPE_KEY]
    return record

"""The record of one request, for the log line and the metrics; the routes fill it while they work."""

from __future__ import annotations

import time
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request

from steelyard_runtime.contracts.error_formats import ErrorFormat
from steelyard_runtime.decision import Answer, Correction, Ruling, Shadowed, TokenCounts
from steelyard_runtime.engine.interface import Done
from steelyard_runtime.metrics_table import OK

_SCOPE_KEY = "steelyard.record"


@dataclass(slots=True, kw_only=True)
class RequestRecord:
    """One request, without any text of the caller's.

    Attributes:
        request_id: Sent back in the response's headers.
        errors: How a problem is reported to this request.
        trace_id: Of the caller's trace; None where it names none.
        contract: Name of the contract, ``"none"`` for routes without one and before dispatch.
        outcome: ``"ok"``, ``"client_left"`` or the name of an error kind.
        started: ``time.perf_counter()`` when its headers had arrived.
        first_token_s: From then to the first generated token, in seconds.
        token_s: Seconds for each generated token after the first, of one choice.
        rulings: What the policies of registered decisions did with the answers, in order.
        shadows: What versions that are only recorded would have said, in the same order.
        corrections: What people found right, by this request.
        raw_body: The caller's body, only filled when the settings ask for raw text.
    """

    request_id: str
    errors: ErrorFormat[Any]
    trace_id: str | None = None
    started: float = field(default_factory=time.perf_counter)
    contract: str = "none"
    outcome: str = OK
    prompt_sha256: list[str] = field(default_factory=list)
    tokens_prompt: int = 0
    tokens_evaluated: int = 0
    tokens_reused: int = 0
    generated_tokens: int = 0
    queue_ms: float | None = None
    engine_ms: float | None = None
    first_token_s: float | None = None
    token_s: float | None = None
    rulings: list[Ruling] = field(default_factory=list)
    shadows: list[Shadowed] = field(default_factory=list)
    corrections: list[Correction] = field(default_factory=list)
    raw_body: str | None = None

    def add_tokens(self, counts: TokenCounts) -> None:
        """Count one prompt's tokens."""
        self.tokens_prompt += counts.prompt
        self.tokens_evaluated += counts.evaluated
        self.tokens_reused += counts.reused

    def add_generation(self, done: Done, *, submitted: float, choices: int) -> None:
        """Note tokens and times of a finished generation.

        Args:
            done: The engine's counts.
            submitted: ``time.perf_counter()`` when the engine was given the prompt.
            choices: Continuations of it, which are generated side by side.
        """
        self.add_tokens(done.tokens)
        self.generated_tokens += done.generated_tokens
        self.queue_ms = done.queue_ms
        self.engine_ms = done.prefill_ms + done.generate_ms
        if done.generated_tokens:
            self.first_token_s = submitted - self.started + (done.queue_ms + done.prefill_ms) / 1000
        if done.generated_tokens > choices:
            self.token_s = done.generate_ms / 1000 / (done.generated_tokens / choices - 1)

    def add_answers(self, answers: Iterable[Answer]) -> None:
        """Note hashes, tokens and times of a decision's answers; they waited together and were evaluated in turn."""
        for answer in answers:
            self.prompt_sha256.append(answer.prompt_sha256)
            self.add_tokens(answer.tokens)
            self.queue_ms = max(self.queue_ms or 0.0, answer.timing.queue_ms)
            self.engine_ms = (self.engine_ms or 0.0) + answer.timing.engine_ms
            if answer.ruling is not None:
                self.rulings.append(answer.ruling)
            if answer.shadow is not None:
                self.shadows.append(answer.shadow)


def attach(scope: MutableMapping[str, Any], record: RequestRecord) -> None:
    """Make ``record`` the one of this ASGI scope."""
    scope[_SCOPE_KEY] = record


def record_of(request: Request) -> RequestRecord:
    """The record of ``request``."""
    record: RequestRecord = request.scope[_SCOPE_KEY]
    return record

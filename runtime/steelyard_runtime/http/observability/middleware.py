"""Our outermost layer: request ids, the last resort for exceptions, one log line and one count per request."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from http import HTTPStatus
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.typing import FilteringBoundLogger

from steelyard_runtime.contracts.error_formats import FormatOf
from steelyard_runtime.errors import Kind, Problem
from steelyard_runtime.http.observability.logs import LineBudget, Repeats, describe_exception
from steelyard_runtime.http.observability.metrics import Metrics
from steelyard_runtime.http.record import RequestRecord, attach
from steelyard_runtime.http.request_id import INVOCATIONS, request_id_from, response_headers, trace_id_from
from steelyard_runtime.http.responses import problem_response
from steelyard_runtime.http.runtime import Runtime
from steelyard_runtime.metrics_table import CLIENT_LEFT

UNMATCHED = "unmatched"
# nginx's status for a client that closed the connection; logged and counted, never sent.
CLIENT_LEFT_STATUS = 499
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"})
_DIGITS = 3


class Observe:
    """ASGI middleware around everything that is ours."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        runtime: Runtime,
        log: FilteringBoundLogger,
        metrics: Metrics,
        format_of: FormatOf,
    ) -> None:
        self.app = app
        self._format_of = format_of
        self._runtime = runtime
        self._log = log
        self._metrics = metrics
        self._repeats = Repeats()
        self._cheap_lines = LineBudget()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; nothing but the server's own cancellation gets past here."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"]
        headers = Headers(scope=scope)
        record = RequestRecord(
            request_id=request_id_from(headers), trace_id=trace_id_from(headers), errors=self._format_of(path)
        )
        attach(scope, record)
        ids = response_headers(record.request_id, with_attributes=path == INVOCATIONS)
        status = 0

        async def send_with_ids(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message["headers"], *ids]}
            await send(message)

        async def answer(problem: Problem) -> None:
            request = Request(scope, receive)
            response = problem_response(request, problem)
            if not status:
                await response(scope, receive, send_with_ids)

        try:
            await self.app(scope, receive, send_with_ids)
        except ClientDisconnect:
            record.outcome = CLIENT_LEFT
            status = status or CLIENT_LEFT_STATUS
        except asyncio.CancelledError:
            # uvicorn cancels what is left at the end of the drain: an honest answer instead of a closed connection.
            await answer(Problem(Kind.DRAINING, "The server stopped before this was finished.", retry_after_ms=1000))
            if status < 500:
                raise
        except Exception as error:
            self._log_exception(error, record)
            await answer(Problem(Kind.INTERNAL, "The server failed on this request; its log has the reason."))
        finally:
            self._finish(scope, record, status, time.perf_counter() - record.started)

    def _log_exception(self, error: Exception, record: RequestRecord) -> None:
        described = describe_exception(error, self._runtime.settings)
        left_out = self._repeats.due((described["exception"], *described["traceback"][-1:]))
        if left_out is not None:
            repeated = {"repeated": left_out} if left_out else {}
            self._log.error("exception", request_id=record.request_id, **repeated, **described)

    def _finish(self, scope: Scope, record: RequestRecord, status: int, duration_s: float) -> None:
        matched = scope.get("route")
        route = matched.path_format if isinstance(matched, Route) else UNMATCHED
        self._metrics.observe(
            record, route=route, status=status, duration_s=duration_s, asked=scope["method"] == "POST"
        )
        method = scope["method"] if scope["method"] in _METHODS else "other"
        left_out: int | None = 0
        if not record.tokens_prompt and status != HTTPStatus.INTERNAL_SERVER_ERROR:
            left_out = self._cheap_lines.take()
        if left_out is not None:
            more = {"left_out": left_out} if left_out else {}
            self._log.info("request", **self._line(record, route, method, status, duration_s), **more)

    def _line(self, record: RequestRecord, route: str, method: str, status: int, duration_s: float) -> dict[str, Any]:
        line: dict[str, Any] = {
            "request_id": record.request_id,
            "route": route,
            "contract": record.contract,
            "method": method,
            "status": status,
            "outcome": record.outcome,
            "duration_ms": round(duration_s * 1000, _DIGITS),
        }
        if record.trace_id is not None:
            line["trace_id"] = record.trace_id
        if record.queue_ms is not None:
            line["queue_ms"] = round(record.queue_ms, _DIGITS)
        if record.engine_ms is not None:
            line["engine_ms"] = round(record.engine_ms, _DIGITS)
        if record.first_token_s is not None:
            line["first_token_ms"] = round(record.first_token_s * 1000, _DIGITS)
        if record.token_s is not None:
            line["token_ms"] = round(record.token_s * 1000, _DIGITS)
        if record.prompt_sha256:
            line["prompt_sha256"] = record.prompt_sha256
        if record.rulings:
            line["decisions"] = [
                {
                    "decision": each.decision,
                    "option": each.option,
                    "probability": round(each.probability, _DIGITS),
                    "action": each.action,
                    "distance_rank": each.distance_rank,
                }
                for each in record.rulings
            ]
        if record.shadows:
            line["shadows"] = [asdict(each) for each in record.shadows]
        if record.tokens_prompt:
            line["tokens"] = {
                "prompt": record.tokens_prompt,
                "evaluated": record.tokens_evaluated,
                "reused": record.tokens_reused,
                "generated": record.generated_tokens,
            }
        if self._runtime.services is not None:
            line["model_sha256"] = self._runtime.services.engine.identity.model.sha256[:12]
        if record.raw_body is not None:
            line["raw_body"] = record.raw_body
        return line

"""The three kinds of response: JSON, a problem in its contract's format, a stream of server-sent events."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from steelyard_runtime.errors import Kind, Problem
from steelyard_runtime.http.disconnect import while_connected
from steelyard_runtime.http.record import RequestRecord, record_of


class Json(Response):
    """A JSON body in UTF-8; refuses NaN, because no JSON reader has to accept it."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Serialise ``content`` compactly."""
        return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8")


class EventStream(Response):
    """Server-sent events, not to be cached or buffered on the way.

    Args:
        events: The encoded events; closed when the client leaves, so that whatever makes them can stop.
        longest_s: A client that has not read everything after this many seconds is treated as gone.
        unread_s: A client that reads nothing for so long has its events closed; it may still read why.
        unread: The last event for that client.
    """

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncGenerator[bytes, None], *, longest_s: float, unread_s: float, unread: bytes
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._longest_s = longest_s
        self._unread_s = unread_s
        self._unread = unread

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events as they come.

        Raises:
            ClientDisconnect: The client left, or stopped reading.
        """
        request = Request(scope, receive)
        await while_connected(request, self._send_all(send, record_of(request)))

    async def _send_all(self, send: Send, record: RequestRecord) -> None:
        async with aclosing(self._events) as events:
            try:
                async with asyncio.timeout(self._longest_s):
                    await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                    async for event in events:
                        if not await self._sent(send, event):
                            await events.aclose()
                            record.outcome = Kind.UNREAD.value
                            await send({"type": "http.response.body", "body": self._unread, "more_body": True})
                            break
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
            except TimeoutError:
                raise ClientDisconnect from None

    async def _sent(self, send: Send, event: bytes) -> bool:
        """Send an event; False when there was no room for it in time, and then it was not sent."""
        limit = asyncio.timeout(self._unread_s)
        try:
            async with limit:
                await send({"type": "http.response.body", "body": event, "more_body": True})
        except TimeoutError:
            if not limit.expired():
                raise
            return False
        return True


def problem_response(request: Request, problem: Problem) -> Response:
    """The one place where a problem becomes a response: status and body of the contract, ``Retry-After``, outcome."""
    record = record_of(request)
    record.outcome = problem.kind.value
    status, body = record.errors.render(problem)
    headers = dict(problem.headers)
    if problem.retry_after_ms is not None:
        headers["retry-after"] = str(math.ceil(problem.retry_after_ms / 1000))
    return Json(body, status_code=status, headers=headers)

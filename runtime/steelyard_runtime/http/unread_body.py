"""Answering before the whole body has arrived (404, 413, 415, ...) without losing the answer or the connection.

Closing a socket with unread data resets the connection, and the reset can overtake the answer. So a short rest is read
first, which keeps the connection usable; with a long one the answer says ``Connection: close``, and whatever still
comes is read and dropped for a moment before the connection closes.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from steelyard_runtime.http.headers import elements

SHORT_BYTES = 64 << 10
SHORT_WAIT_S = 0.25
LINGER_S = 2.0


class UnreadBody:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request, and see to the rest of its body when the answer starts early."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = _Exchange(Headers(scope=scope), receive, send)
        await self.app(scope, exchange.receive, exchange.send)


class _Exchange:
    def __init__(self, headers: Headers, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        length = headers.get("content-length", "")
        self._length = int(length) if length.isascii() and length.isdigit() and len(length) < 20 else None
        self._complete = "transfer-encoding" not in headers and self._length in (None, 0)
        self._waits_for_continue = "100-continue" in map(str.lower, elements(headers, "expect"))
        self._close = False

    async def receive(self) -> Message:
        message = await self._receive()
        self._waits_for_continue = False
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            self._complete = True
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start" and not self._complete:
            if self._length is not None and self._length <= SHORT_BYTES and not self._waits_for_continue:
                await self._discard(SHORT_WAIT_S)
            if not self._complete:
                self._close = True
                message["headers"] = [*message["headers"], (b"connection", b"close")]
        if self._close and message["type"] == "http.response.body" and not message.get("more_body", False):
            # The client has the whole answer after this; the connection ends with the empty message below.
            await self._send({**message, "more_body": True})
            if not self._waits_for_continue:
                await self._discard(LINGER_S)
            message = {"type": "http.response.body", "body": b"", "more_body": False}
        await self._send(message)

    async def _discard(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self._complete:
                    await self.receive()

"""uvicorn's HTTP/1.1 protocol with what it lacks: RFC 9112 to the letter, limits of time, JSON for broken requests."""

from __future__ import annotations

import asyncio
import http
import json
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from steelyard_runtime.contracts.error_formats import ErrorBody
from steelyard_runtime.http.connections import Connections
from steelyard_runtime.http.request_head import (
    MAX_CHUNKS,
    MAX_HEAD_BYTES,
    Refused,
    check_bytes,
    check_request,
    without_empty_lines,
)

HEADERS_TIMEOUT_S = 20.0
LINGER_S = 2.0
"""Seconds in which a refused client's remaining bytes are read and dropped, so that it gets to read the answer."""
READ_BYTES = 16 << 10
"""Bytes taken from a connection before the others have their turn: parsing more at once would hold up /ping."""
SEND_BUFFER_BYTES = 128 << 10
"""Of an answer, what the operating system may hold for a client that does not read."""
FULL = "full"
"""Key of a request's ``state``: whether as many requests were in progress as may be when it came."""
SPARE = "spare"
"""Key of a request's ``state``: a function that lets the connection be closed for another one; for what is refused."""


class _Connection(h11.Connection):
    """h11's state machine behind our checks of each head."""

    def __init__(self, on_request: Callable[[], None]) -> None:
        super().__init__(h11.SERVER, MAX_HEAD_BYTES)
        self.fault: h11.RemoteProtocolError | None = None
        self._on_request = on_request
        self._chunks = 0

    def next_event(self) -> Any:
        try:
            if self.their_state is h11.IDLE:
                check_bytes(self.trailing_data[0])
            event = super().next_event()
            if isinstance(event, h11.Request):
                event = check_request(event)
                self._chunks = 0
                self._on_request()
            elif isinstance(event, h11.Data) and event.chunk_start:
                self._chunks += 1
                if self._chunks > MAX_CHUNKS:
                    raise Refused(f"The body has more than {MAX_CHUNKS} chunks; send larger ones.")
        except h11.RemoteProtocolError as fault:
            self.fault = fault
            raise
        return event


class Protocol(H11Protocol, asyncio.BufferedProtocol):
    """One connection.

    Args:
        connections: Where it is counted; on its own when left out.
    """

    _buffer = bytearray(READ_BYTES)  # used by one connection at a time, and empty between two of them
    _head_timer: asyncio.TimerHandle | None = None
    _unread_timer: asyncio.TimerHandle | None = None
    _linger_timer: asyncio.TimerHandle | None = None

    def __init__(self, *args: Any, connections: Connections | None = None, **more: Any) -> None:
        super().__init__(*args, **more)
        self._counted = Connections() if connections is None else connections
        self.conn: _Connection = _Connection(self._on_request)
        self._spared = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start waiting for the first request's head."""
        super().connection_made(transport)
        raw: socket.socket | None = transport.get_extra_info("socket")
        if raw is not None:
            with suppress(OSError):
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self._head_timer = self.loop.call_later(HEADERS_TIMEOUT_S, self._head_is_late)
        self._counted.add(self, peer=str(self.client[0]) if self.client else "")

    def get_buffer(self, sizehint: int) -> bytearray:  # noqa: ARG002 - asyncio's signature
        """Return where the next bytes go."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Take in ``nbytes`` bytes."""
        self.data_received(bytes(self._buffer[:nbytes]))

    def data_received(self, data: bytes) -> None:
        """Take bytes in; while they are an unfinished head of a request, the clock runs."""
        if self._linger_timer is not None or self.transport.is_closing():
            return
        if self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]:
            data = without_empty_lines(data)
            if not data:
                return
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        """Go on with the next request, if it is there."""
        super().on_response_complete()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clocks."""
        for timer in (self._head_timer, self._unread_timer, self._linger_timer):
            if timer is not None:
                timer.cancel()
        self._counted.remove(self)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Start the clock of an answer that is not read."""
        super().pause_writing()
        if self._unread_timer is None:
            # A stream's work is stopped after half of it, and then the client can still read why.
            self._unread_timer = self.loop.call_later(2 * self._counted.unread_timeout_s, self._is_unread)
            self._counted.set_state(self, "unread")

    def resume_writing(self) -> None:
        """Stop that clock."""
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None
        super().resume_writing()
        self._look()

    def shutdown(self) -> None:
        """Close when idle, else after the answer in progress."""
        if self._linger_timer is not None:
            self.close_now()
            return
        with suppress(h11.LocalProtocolError):
            super().shutdown()
            return
        self.close_now()

    def close_now(self) -> None:
        """Close without an answer."""
        self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP, or not as it should be, and close."""
        fault = self.conn.fault
        # Wrong input never has a 5xx, which clients would repeat; h11 has 501 for unknown transfer encodings.
        status = fault.error_status_hint if fault else 400
        status = status if status < 500 else 400
        reason = str(fault) if isinstance(fault, Refused) else f"The request is not valid HTTP/1.1: {fault or msg}."
        self._counted.malformed[status] += 1
        self._refuse(status, {"error": reason, "type": "malformed_http", "retryable": False})

    def _on_request(self) -> None:
        """Note, before a request is handed to the application, that it begins."""
        self._stop_head_timer()
        self.app_state = {**self.app_state, FULL: self._counted.full, SPARE: self._spare}
        self._spared = False
        self._counted.set_state(self, "request")

    def _spare(self) -> None:
        self._spared = True
        self._counted.set_state(self, "unread")

    def _look(self) -> None:
        """Note what the connection does now."""
        if self._unread_timer is not None or (self._spared and not self.cycle.response_complete):
            self._counted.set_state(self, "unread")
        elif self.cycle is not None and not self.cycle.response_complete:
            self._stop_head_timer()
            self._counted.set_state(self, "request")
        elif self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            if self._head_timer is None:
                self._head_timer = self.loop.call_later(HEADERS_TIMEOUT_S, self._head_is_late)
            self._counted.set_state(self, "head")
        else:
            self._counted.set_state(self, "idle")

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if not self.conn.trailing_data[0]:
            self._counted.close(self, "head_timeout")
            return
        self._counted.closed["head_timeout"] += 1
        late = f"The request's head did not arrive within {HEADERS_TIMEOUT_S:g} seconds; send it faster."
        self._refuse(408, {"error": late, "type": "head_timeout", "retryable": True})

    def _is_unread(self) -> None:
        self._unread_timer = None
        self._counted.close(self, "unread")

    def _refuse(self, status: int, body: ErrorBody) -> None:
        """Answer, say that no more will come, and drop what the client still sends before closing."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # the application has nobody to answer any more
            self.cycle.message_event.set()
        content = json.dumps(body).encode()
        headers = [
            ("content-type", "application/json"),
            ("content-length", str(len(content))),
            ("connection", "close"),
        ]
        try:
            for event in (
                h11.Response(status_code=status, headers=headers, reason=http.HTTPStatus(status).phrase.encode()),
                h11.Data(data=content),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:
            self.transport.close()  # an answer is already under way on this connection
            return
        self._stop_head_timer()
        self._unset_keepalive_if_required()
        self._counted.set_state(self, "head")  # it may be closed for another one
        self._linger_timer = self.loop.call_later(LINGER_S, self.close_now)
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()

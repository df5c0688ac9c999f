"""uvicorn's HTTP/1.1 protocol with what it lacks: a limit on slow headers, and JSON for broken requests."""

from __future__ import annotations

import asyncio
import json

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from steelyard_runtime.errors import Kind, Problem, semif_error

HEADERS_TIMEOUT_S = 20.0


class Protocol(H11Protocol):
    """One connection."""

    _headers_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start waiting for the first request's headers."""
        super().connection_made(transport)
        self._wait_for_headers()

    def data_received(self, data: bytes) -> None:
        """Take bytes in; while they are an unfinished head of a request, the clock runs."""
        super().data_received(data)
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self._wait_for_headers()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._stop_waiting()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP, or has too large a head, and close."""
        limit = self.config.h11_max_incomplete_event_size
        problem = Problem(Kind.MALFORMED_JSON, f"{msg} Send HTTP/1.1 with at most {limit} bytes of headers.")
        status, body = semif_error(problem)
        body["type"] = "malformed_http"
        content = json.dumps(body).encode()
        headers = [
            ("content-type", "application/json"),
            ("content-length", str(len(content))),
            ("connection", "close"),
        ]
        try:
            for event in (
                h11.Response(status_code=status, headers=headers, reason=b"Bad Request"),
                h11.Data(data=content),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:
            pass  # an answer is already under way on this connection; closing is all that is left
        self.transport.close()

    def _wait_for_headers(self) -> None:
        if self._headers_timer is None:
            self._headers_timer = self.loop.call_later(HEADERS_TIMEOUT_S, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._headers_timer is not None:
            self._headers_timer.cancel()
            self._headers_timer = None

"""Keep connections for callers with a name, and for questions about the server itself."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from steelyard_runtime.errors import Kind, Problem
from steelyard_runtime.http.caller import caller_of
from steelyard_runtime.http.connections import Connections
from steelyard_runtime.http.protocol import FULL, SPARE
from steelyard_runtime.http.responses import problem_response

RETRY_MS = 1000


class Places:
    """ASGI middleware: refuse work, before its body is read, for which there is no connection to spare."""

    def __init__(self, app: ASGIApp, *, connections: Connections) -> None:
        self.app = app
        self._connections = connections

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        if scope.get("state", {}).get(FULL):
            await self._refuse(
                f"all {self._connections.limit} connections have a request in progress (max_connections)",
                scope,
                receive,
                send,
            )
            return
        named = _has_name(Headers(scope=scope))
        if not self._connections.enter(named=named):
            await self._refuse(
                "requests of callers without a name have their share of the connections (unnamed_share of "
                f"max_connections={self._connections.limit})",
                scope,
                receive,
                send,
            )
            return
        try:
            await self.app(scope, receive, send)
        finally:
            self._connections.leave(named=named)

    async def _refuse(self, why: str, scope: Scope, receive: Receive, send: Send) -> None:
        if (spare := scope.get("state", {}).get(SPARE)) is not None:
            spare()
        problem = Problem(
            Kind.BUSY,
            f"The server is busy: {why}; try again later.",
            retry_after_ms=RETRY_MS,
            headers={"connection": "close"},
        )
        await problem_response(Request(scope, receive), problem)(scope, receive, send)


def _has_name(headers: Headers) -> bool:
    try:
        return bool(caller_of(headers))
    except Problem:  # the route tells it
        return False

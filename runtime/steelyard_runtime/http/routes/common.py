"""What the rooms share: the runtime of a request, and the step from a request to a handler of its JSON body."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from steelyard_runtime.http.body import read_json
from steelyard_runtime.http.runtime import Runtime

Endpoint = Callable[[Request], Awaitable[Response]]
Handler = Callable[[Request, Any], Awaitable[Response]]


def runtime_of(request: Request) -> Runtime:
    """The runtime of the application that serves ``request``."""
    runtime: Runtime = request.app.state.runtime
    return runtime


def posted(handler: Handler) -> Endpoint:
    """An endpoint that reads the body as JSON and gives it to ``handler``."""

    async def endpoint(request: Request) -> Response:
        return await handler(request, await read_json(request, runtime_of(request).settings))

    return endpoint

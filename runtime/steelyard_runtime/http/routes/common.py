"""The runtime of a request, and the step from a request to a handler of its JSON body."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from steelyard_runtime import strict_json
from steelyard_runtime.http.body import read_body
from steelyard_runtime.http.caller import caller_of
from steelyard_runtime.http.disconnect import while_connected
from steelyard_runtime.http.observability.records import Records
from steelyard_runtime.http.runtime import Runtime
from steelyard_runtime.services.preparation import Preparing

Endpoint = Callable[[Request], Awaitable[Response]]
Handler = Callable[[Request, Any], Awaitable[Response]]


def runtime_of(request: Request) -> Runtime:
    """The runtime of the application that serves ``request``."""
    runtime: Runtime = request.app.state.runtime
    return runtime


def records_of(request: Request) -> Records:
    """Return what takes the records of the application that serves ``request``."""
    records: Records = request.app.state.records
    return records


def preparing_of(request: Request) -> Preparing:
    """Return the admission of a request whose body was read."""
    preparing: Preparing = request.state.preparing
    return preparing


def posted(handler: Handler) -> Endpoint:
    """Return an endpoint that reads the body as JSON and gives it to ``handler``, while the client is there."""

    async def endpoint(request: Request) -> Response:
        arrived = time.monotonic()
        runtime = runtime_of(request)
        body = [await read_body(request, runtime.settings)]
        with runtime.preparation.admit(
            caller=caller_of(request.headers),
            size=len(body[0]),
            arrived=arrived,
            deadline_s=runtime.settings.deadline_s,
        ) as preparing:
            request.state.preparing = preparing
            return await while_connected(request, handle(request, body))

    async def handle(request: Request, body: list[bytes]) -> Response:
        settings = runtime_of(request).settings
        value = await preparing_of(request).parse(
            lambda: strict_json.parse(
                body.pop(),  # nothing holds it while its value is worked on
                max_depth=settings.max_json_depth,
                max_structure=settings.max_json_structure,
            )
        )
        return await handler(request, value)

    return endpoint

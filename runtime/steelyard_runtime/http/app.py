"""The application: its routes, its handlers of exceptions, its layers."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from structlog.typing import FilteringBoundLogger

from steelyard_runtime.contracts.contract import AnyContract
from steelyard_runtime.contracts.registry import CONTRACTS
from steelyard_runtime.errors import Kind, Problem
from steelyard_runtime.http.error_paths import format_of_paths
from steelyard_runtime.http.observability.logs import Sink, make_log
from steelyard_runtime.http.observability.metrics import Metrics
from steelyard_runtime.http.observability.middleware import Observe
from steelyard_runtime.http.observability.records import Records
from steelyard_runtime.http.openapi import document
from steelyard_runtime.http.places import Places
from steelyard_runtime.http.responses import problem_response
from steelyard_runtime.http.routes.table import operations
from steelyard_runtime.http.runtime import Runtime
from steelyard_runtime.http.unread_body import UnreadBody


def create_app(
    runtime: Runtime,
    *,
    contracts: Sequence[AnyContract] = CONTRACTS,
    log: FilteringBoundLogger | None = None,
    sink: Sink | None = None,
    records: Records | None = None,
) -> Starlette:
    """The ASGI application over ``runtime``, whose services may arrive later.

    Args:
        runtime: Settings and services.
        contracts: Its wire contracts.
        log: Takes a line for each request.
        sink: Takes lines that are for programs: metrics.
        records: Takes decision records; unless given, what the settings say.
    """
    records = records or Records(runtime.settings, log=sink)
    runtime.dropped_records = lambda: records.dropped
    metrics = Metrics(runtime, sink=sink)
    served = operations(contracts)
    app = Starlette(
        routes=[Route(each.path, each.endpoint, methods=[each.method]) for each in served],
        exception_handlers={Problem: _on_problem, HTTPException: _on_http_exception},
        middleware=[
            Middleware(UnreadBody),
            Middleware(
                Observe,
                runtime=runtime,
                log=log or make_log(runtime.settings),
                metrics=metrics,
                format_of=format_of_paths(served),
            ),
            Middleware(Places, connections=runtime.connections),
        ],
    )
    app.router.redirect_slashes = False
    app.state.runtime = runtime
    app.state.metrics = metrics
    app.state.records = records
    app.state.openapi = document(runtime.settings, contracts)
    return app


async def _on_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)  # noqa: S101 - registered for Problem
    return problem_response(request, error)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """Starlette's own refusals: no such route, no such method."""
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for HTTPException
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = ", ".join(sorted(request.scope["route"].methods))
        message = f"{request.method[:20]} is not possible on {request.scope['route'].path_format}; use {allowed}."
        return problem_response(request, Problem(Kind.METHOD_NOT_ALLOWED, message, headers={"allow": allowed}))
    if error.status_code == HTTPStatus.NOT_FOUND:
        known = ", ".join(route.path_format for route in request.app.routes)
        return problem_response(request, Problem(Kind.NOT_FOUND, f"There is no such path. There are: {known}."))
    raise error

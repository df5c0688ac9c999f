"""The application: its routes, its handlers of exceptions, its layers."""

from __future__ import annotations

from http import HTTPStatus

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from structlog.typing import FilteringBoundLogger

from steelyard_runtime.errors import Kind, Problem
from steelyard_runtime.http.observability.logs import make_log
from steelyard_runtime.http.observability.metrics import Metrics
from steelyard_runtime.http.observability.middleware import Observe
from steelyard_runtime.http.openapi import document
from steelyard_runtime.http.places import Places
from steelyard_runtime.http.responses import problem_response
from steelyard_runtime.http.routes import decisions, embeddings, generation, operations
from steelyard_runtime.http.routes.common import posted
from steelyard_runtime.http.routes.invocations import dispatch_invocation
from steelyard_runtime.http.runtime import Runtime
from steelyard_runtime.http.unread_body import UnreadBody

GET, POST = ["GET"], ["POST"]

ROUTES: tuple[Route, ...] = (
    # SageMaker AI
    Route("/ping", operations.ping, methods=GET),
    Route("/invocations", posted(dispatch_invocation), methods=POST),
    Route("/execution-parameters", operations.execution_parameters, methods=GET),
    # Decisions
    Route("/v1/systemone", posted(decisions.decide_systemone), methods=POST),
    Route("/v1/decisions", posted(decisions.decide_openai), methods=POST),
    # Generation and embeddings
    Route("/v1/chat/completions", posted(generation.chat), methods=POST),
    Route("/openai/v1/chat/completions", posted(generation.chat), methods=POST),
    Route("/v1/completions", posted(generation.complete), methods=POST),
    Route("/v1/embeddings", posted(embeddings.embed), methods=POST),
    # Operations
    Route("/v1/models", operations.models, methods=GET),
    Route("/v1/models/{model:path}", operations.model, methods=GET),
    Route("/v1/identity", operations.identity, methods=GET),
    Route("/health", operations.health, methods=GET),
    Route("/metrics", operations.metrics, methods=GET),
    Route("/openapi.json", operations.openapi, methods=GET),
)


def create_app(runtime: Runtime, *, log: FilteringBoundLogger | None = None) -> Starlette:
    """The ASGI application over ``runtime``, whose services may arrive later."""
    metrics = Metrics(runtime)
    app = Starlette(
        routes=list[BaseRoute](ROUTES),
        exception_handlers={Problem: _on_problem, HTTPException: _on_http_exception},
        middleware=[
            Middleware(UnreadBody),
            Middleware(Observe, runtime=runtime, log=log or make_log(runtime.settings), metrics=metrics),
            Middleware(Places, connections=runtime.connections),
        ],
    )
    app.router.redirect_slashes = False
    app.state.runtime = runtime
    app.state.metrics = metrics
    app.state.openapi = document(runtime.settings)
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
        known = ", ".join(route.path_format for route in ROUTES)
        return problem_response(request, Problem(Kind.NOT_FOUND, f"There is no such path. There are: {known}."))
    raise error

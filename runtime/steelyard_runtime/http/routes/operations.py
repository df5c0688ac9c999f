"""For operators: readiness, metrics, identity, models, Batch Transform's parameters, the API document."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import TypedDict

from steelyard_runtime.contracts.validation import quote
from steelyard_runtime.contracts.wire import Open, Wire
from steelyard_runtime.errors import Kind, Problem
from steelyard_runtime.http.observability.metrics import CONTENT_TYPE, Metrics
from steelyard_runtime.http.responses import Json
from steelyard_runtime.http.routes.common import runtime_of
from steelyard_runtime.http.runtime import LOADING_RETRY_MS, Services

# MaxConcurrentTransforms times MaxPayloadInMB may not exceed this. [SageMaker: CreateTransformJob]
_TRANSFORM_TOTAL_MB = 100


class Ready(Wire):
    """Requests will be answered."""

    status: Literal["ready"]


class Health(Ready):
    """The engine's counters beside it."""

    counters: dict[str, float | dict[str, float]]


class Model(Wire):
    """The model under one of its names."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class DescribedModel(Wire):
    """The model under one of its names, as System One describes models."""

    name: str
    description: str
    release_date: str


class Models(Wire):
    """The one model under each of its names, in System One's shape and OpenAI's at once."""

    object: Literal["list"]
    data: list[Model]
    models: list[DescribedModel]


class ExecutionParameters(Wire):
    """The parameters of Batch Transform."""

    MaxConcurrentTransforms: Annotated[int, Field(ge=1)]
    BatchStrategy: Literal["SINGLE_RECORD"]
    MaxPayloadInMB: Annotated[int, Field(ge=1, le=_TRANSFORM_TOTAL_MB)]


class OpenAPI(TypedDict):
    """An OpenAPI document."""

    openapi: str
    info: Open
    paths: Open


async def ping(request: Request) -> Response:
    """200 when requests will be answered, else 503 with the reason. Waits for nothing."""
    _require_ready(request)
    return Json(Ready(status="ready"))


async def health(request: Request) -> Response:
    """Like ``ping``, with the engine's counters."""
    _require_ready(request)
    services = runtime_of(request).require()
    return Json(Health(status="ready", counters=asdict(services.engine.counters)))


async def metrics(request: Request) -> Response:
    """Prometheus metrics; also while the model is loading."""
    collected: Metrics = request.app.state.metrics
    return Response(collected.render(), headers={"content-type": CONTENT_TYPE})


async def identity(request: Request) -> Response:
    """Everything that an answer depends on besides the request."""
    return Json(runtime_of(request).require().identity.full())


async def models(request: Request) -> Response:
    """The one model under each of its names, in System One's shape and OpenAI's at once; its own name is first."""
    served = runtime_of(request).require()
    description = served.engine.identity.model.description
    return Json(
        Models(
            object="list",
            data=[_model(name, served) for name in served.names.listed],
            models=[
                {"name": name, "description": description, "release_date": served.identity.release_date}
                for name in served.names.listed
            ],
        )
    )


async def model(request: Request) -> Response:
    """The model under one of its names, which may hold slashes, in OpenAI's shape.

    Raises:
        Problem: ``model_not_found``.
    """
    served = runtime_of(request).require()
    name = request.path_params["model"]
    if name not in served.names.listed:
        names = ", ".join(quote(known) for known in served.names.listed[:8])
        raise Problem(
            Kind.MODEL_NOT_FOUND, f"The model {quote(name)} is not served here; this server has {names}.", param="model"
        )
    return Json(_model(name, served))


def _model(name: str, served: Services) -> Model:
    return {"id": name, "object": "model", "created": served.identity.created, "owned_by": "steelyard"}


async def execution_parameters(request: Request) -> Response:
    """The parameters of Batch Transform: single records, no larger than a body may be."""
    settings = runtime_of(request).settings
    payload_mb = min(_TRANSFORM_TOTAL_MB, max(1, settings.max_body_bytes >> 20))
    concurrent = max(1, min(settings.chats + 1, settings.queue_limit, _TRANSFORM_TOTAL_MB // payload_mb))
    return Json(
        ExecutionParameters(
            MaxConcurrentTransforms=concurrent, BatchStrategy="SINGLE_RECORD", MaxPayloadInMB=payload_mb
        )
    )


async def openapi(request: Request) -> Response:
    """This API's OpenAPI document."""
    return Json(request.app.state.openapi)


def _require_ready(request: Request) -> None:
    state = runtime_of(request).health()
    if not state.ready:
        raise Problem(Kind.NOT_READY, f"Not ready: {state.reason}.", retry_after_ms=LOADING_RETRY_MS)

"""The OpenAPI 3.1 document, from the codecs' request models, the answers' schemas and the error table.

A new route is one entry in ``_operations``. A test compares the entries with the routes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from pydantic import BaseModel

import steelyard_runtime
from steelyard_runtime.contracts import chat, completions, embeddings, openai_decisions, semif, systemone
from steelyard_runtime.errors import TABLE, Kind, Problem
from steelyard_runtime.http.answer_schemas import DECISIONS, ERRORS, GENERATION, OPERATIONS
from steelyard_runtime.http.error_shapes import ErrorShape, shape_for_path
from steelyard_runtime.http.observability.metrics import CONTENT_TYPE
from steelyard_runtime.http.request_id import ATTRIBUTES_HEADER
from steelyard_runtime.http.schema_parts import TEXT, Schema, ref
from steelyard_runtime.settings import Settings

JSON = "application/json"
EVENTS = "text/event-stream"
METRICS = CONTENT_TYPE.partition(";")[0]
_TEXTS: dict[str, Schema] = {
    # Readers of the document take a stream's schema for that of one event, as it reaches them in their own form.
    EVENTS: {"description": "Events 'data: {...}' with one chunk of the answer each, then 'data: [DONE]'."},
    METRICS: TEXT,
}

# What can go wrong with any body, and with any work of the engine.
_BODY = (
    Kind.MALFORMED_JSON,
    Kind.UPLOAD_TIMEOUT,
    Kind.BODY_TOO_LARGE,
    Kind.MEDIA_TYPE,
    Kind.REPEATED_HEADER,
    Kind.INVALID,
    Kind.UNSUPPORTED,
)
_ENGINE = (
    Kind.OVER_BUDGET,
    Kind.BUSY,
    Kind.DEADLINE,
    Kind.DRAINING,
    Kind.NOT_READY,
    Kind.REQUEST_FAILED,
    Kind.ENGINE_FAILED,
)

_MEANING: dict[int, str] = {
    400: "The request is wrong, or asks for something that this server or model cannot do.",
    404: "There is no such model.",
    408: "The body took too long to arrive.",
    413: "The body is too large, or the prompt has more tokens than are allowed.",
    415: "The body is not uncompressed JSON in UTF-8.",
    422: "The request is wrong, with every fault listed by its place; or the engine failed on this request alone.",
    500: "A fault of the server.",
    503: "Not now: loading, busy, stopping, or the time would not suffice. The body says when to try again.",
}

_CODECS: dict[str, ModuleType] = {
    "Semif": semif,
    "SystemOne": systemone,
    "OpenAIDecisions": openai_decisions,
    "Chat": chat,
    "Completions": completions,
    "Embeddings": embeddings,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One route.

    Attributes:
        summary: One line for people.
        tag: The group it belongs to.
        answers: Name of the 200 answer's schema by content type; None for text.
        codecs: The contracts of the body, empty for GET.
        kinds: Problems that can occur besides ``internal``.
        parameter: Name and description of the path's parameter.
    """

    summary: str
    tag: str
    answers: dict[str, str | None]
    codecs: tuple[str, ...] = ()
    kinds: tuple[Kind, ...] = ()
    parameter: tuple[str, str] | None = None


def document(settings: Settings) -> dict[str, Any]:
    """The document for a server with these settings."""
    paths = {path: _path_item(path, operation, settings) for path, operation in _operations().items()}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Steelyard",
            "version": steelyard_runtime.__version__,
            "description": "Decisions and chat from one GGUF model. Every error says what was wrong and what to do.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": {**_request_schemas(settings), **ERRORS, **DECISIONS, **GENERATION, **OPERATIONS},
            "headers": {
                "RequestId": {
                    "description": "Names this request in the server's log.",
                    "required": True,
                    "schema": TEXT,
                }
            },
        },
    }


def _operations() -> dict[str, Operation]:
    chat_answers: dict[str, str | None] = {JSON: "ChatResponse", EVENTS: None}
    generation = (*_BODY, *_ENGINE, Kind.MODEL_NOT_FOUND)
    not_ready = (Kind.NOT_READY,)
    return {
        "/ping": Operation(
            summary="Readiness for SageMaker AI", tag="SageMaker", answers={JSON: "Ready"}, kinds=not_ready
        ),
        "/invocations": Operation(
            summary="Every contract on one path; the body's shape decides",
            tag="SageMaker",
            answers={JSON: "InvocationsResponse", EVENTS: None},
            codecs=tuple(_CODECS),
            kinds=(*generation, Kind.UNKNOWN_SHAPE),
        ),
        "/execution-parameters": Operation(
            summary="Parameters for Batch Transform", tag="SageMaker", answers={JSON: "ExecutionParameters"}
        ),
        "/v1/systemone": Operation(
            summary="Decisions: System One",
            tag="Decisions",
            answers={JSON: "SystemOneResponse"},
            codecs=("SystemOne",),
            kinds=generation,
        ),
        "/v1/decisions": Operation(
            summary="Decisions: OpenAI",
            tag="Decisions",
            answers={JSON: "OpenAIDecisionsResponse"},
            codecs=("OpenAIDecisions",),
            kinds=generation,
        ),
        "/v1/chat/completions": Operation(
            summary="Chat", tag="Generation", answers=chat_answers, codecs=("Chat",), kinds=generation
        ),
        "/openai/v1/chat/completions": Operation(
            summary="Chat, at the path of a SageMaker endpoint",
            tag="Generation",
            answers=chat_answers,
            codecs=("Chat",),
            kinds=generation,
        ),
        "/v1/completions": Operation(
            summary="Continue a text",
            tag="Generation",
            answers={JSON: "CompletionsResponse", EVENTS: None},
            codecs=("Completions",),
            kinds=generation,
        ),
        "/v1/embeddings": Operation(
            summary="Embed texts, where the model gives embeddings",
            tag="Generation",
            answers={JSON: "EmbeddingsResponse"},
            codecs=("Embeddings",),
            kinds=generation,
        ),
        "/v1/models": Operation(
            summary="The model served", tag="Operations", answers={JSON: "Models"}, kinds=not_ready
        ),
        "/v1/models/{model}": Operation(
            summary="The model served, by its id or an alias",
            tag="Operations",
            answers={JSON: "Model"},
            kinds=(Kind.NOT_READY, Kind.MODEL_NOT_FOUND),
            parameter=("model", "The name; it may hold slashes."),
        ),
        "/v1/identity": Operation(
            summary="Everything an answer depends on besides the request",
            tag="Operations",
            answers={JSON: "Identity"},
            kinds=not_ready,
        ),
        "/health": Operation(
            summary="Readiness with the engine's counters", tag="Operations", answers={JSON: "Health"}, kinds=not_ready
        ),
        "/metrics": Operation(summary="Prometheus metrics", tag="Operations", answers={METRICS: None}),
        "/openapi.json": Operation(summary="This document", tag="Operations", answers={JSON: "OpenAPI"}),
    }


def _path_item(path: str, operation: Operation, settings: Settings) -> dict[str, Any]:
    described: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": re.sub(r"[/.{}-]+", "_", path.strip("/{}")),
        "tags": [operation.tag],
        "responses": {
            "200": _response("The answer.", operation.answers),
            **{str(status): answer for status, answer in _error_responses(path, operation)},
        },
    }
    if operation.parameter is not None:
        name, description = operation.parameter
        described["parameters"] = [
            {"name": name, "in": "path", "required": True, "description": description, "schema": TEXT}
        ]
    if not operation.codecs:
        return {"get": described}
    schemas = [ref(f"{name}Request") for name in operation.codecs]
    described["requestBody"] = {
        "required": True,
        "description": f"At most {settings.max_body_bytes} bytes.",
        "content": {JSON: {"schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas}}},
    }
    if path == "/invocations":
        described["responses"]["200"]["headers"][ATTRIBUTES_HEADER] = {
            "description": "request_id=...",
            "schema": TEXT,
        }
    return {"post": described}


def _response(description: str, answers: dict[str, str | None]) -> dict[str, Any]:
    return {
        "description": description,
        "headers": {"x-request-id": {"$ref": "#/components/headers/RequestId"}},
        "content": {
            media_type: {"schema": ref(name) if name else _TEXTS[media_type]} for media_type, name in answers.items()
        },
    }


def _error_responses(path: str, operation: Operation) -> Iterator[tuple[int, dict[str, Any]]]:
    """One response per status; where several contracts meet, a status may come in any of their shapes."""
    shapes: list[ErrorShape] = [shape_for_path(path)]
    if len(operation.codecs) > 1:
        shapes += [_CODECS[name].error for name in operation.codecs]
    by_status: dict[int, dict[str, None]] = {}
    for kind in (*operation.kinds, Kind.INTERNAL):
        for shape in shapes:
            names = by_status.setdefault(_status(shape, kind), {})
            names[_shape_name(shape)] = None
    for status, found in sorted(by_status.items()):
        schemas = [ref(name) for name in found]
        schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
        response = _response(_MEANING[status], {})
        response["content"] = {JSON: {"schema": schema}}
        if any(TABLE[kind].retryable for kind in operation.kinds) and status == 503:
            response["headers"]["Retry-After"] = {"description": "Seconds.", "schema": TEXT}
        yield status, response


def _status(shape: ErrorShape, kind: Kind) -> int:
    return shape(Problem(kind, ""))[0]


def _shape_name(shape: ErrorShape) -> str:
    """The schema of a renderer's bodies; codecs wrap the renderers, so what one writes decides."""
    body = shape(Problem(Kind.INTERNAL, ""))[1]
    if "detail" in body:
        return "SystemOneError"
    return "OpenAIError" if isinstance(body["error"], dict) else "SemifError"


def _request_schemas(settings: Settings) -> dict[str, Schema]:
    schemas: dict[str, Schema] = {}
    for name, codec in _CODECS.items():
        schemas |= _model_schemas(name, codec.Request)
    _apply_limits(schemas, settings)
    return schemas


def _model_schemas(prefix: str, model: type[BaseModel]) -> dict[str, Schema]:
    """A model and the models inside it, each under a name that starts with its contract's."""
    schema = model.model_json_schema(ref_template=f"#/components/schemas/{prefix}{{model}}")
    inner = schema.pop("$defs", {})
    return {f"{prefix}{name}": definition for name, definition in inner.items()} | {f"{prefix}Request": schema}


def _apply_limits(schemas: dict[str, Schema], settings: Settings) -> None:
    """Put this server's limits in place of the contracts' own."""
    for holder in _find(schemas, "maxItems", 255):
        holder["maxItems"] = settings.max_options
    for holder in _find(schemas, "maxProperties", 255):
        holder["maxProperties"] = settings.max_options
    levels = schemas["SystemOneScore"]["properties"]["criteria"]
    levels["maxItems"] = min(systemone.MAX_LEVELS, settings.max_options)
    most = settings.max_questions
    schemas["SemifSeveral"]["properties"]["decisions"]["maxItems"] = most
    schemas["SystemOneRequest"]["properties"]["questions"]["maxProperties"] = most
    schemas["OpenAIDecisionsRequest"]["properties"]["questions"]["maxItems"] = min(most, 400)
    for holder in _having(schemas, "patternProperties"):
        # pydantic says what keys of the pattern hold, and not that there are no others.
        holder.setdefault("additionalProperties", False)
    for holder in _find([schemas["ChatRequest"], schemas["CompletionsRequest"]], "maximum", 128):
        holder["maximum"] = settings.max_choices
    for holder in _find(schemas["CompletionsRequest"]["properties"]["prompt"], "maxItems", completions.MAX_CHOICES):
        holder["maxItems"] = settings.max_choices


def _find(value: Any, key: str, expected: int) -> Iterable[dict[str, Any]]:
    return (holder for holder in _having(value, key) if holder[key] == expected)


def _having(value: Any, key: str) -> Iterable[dict[str, Any]]:
    if isinstance(value, dict):
        if key in value:
            yield value
        for inner in value.values():
            yield from _having(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from _having(inner, key)

"""The OpenAPI 3.1 document, from the table of routes, the contracts' types and the error table."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pydantic import TypeAdapter

import steelyard_runtime
from steelyard_runtime.contracts.contract import AnyContract
from steelyard_runtime.contracts.limits import Limits
from steelyard_runtime.contracts.registry import CONTRACTS
from steelyard_runtime.contracts.validation import SETTING
from steelyard_runtime.errors import TABLE, Kind
from steelyard_runtime.http.observability.metrics import CONTENT_TYPE
from steelyard_runtime.http.request_id import ATTRIBUTES_HEADER, INVOCATIONS
from steelyard_runtime.http.routes.table import Operation, operations
from steelyard_runtime.settings import Settings

Schema = dict[str, Any]

JSON = "application/json"
EVENTS = "text/event-stream"
METRICS = CONTENT_TYPE.partition(";")[0]
_TEXT: Schema = {"type": "string"}
# Readers of the document take a stream's schema for that of one event, as it reaches them in their own form.
_EVENTS: Schema = {"description": "Events 'data: {...}' with one chunk of the answer each, then 'data: [DONE]'."}
_COMPONENTS = "#/components/schemas/"

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


def document(settings: Settings, contracts: Sequence[AnyContract] = CONTRACTS) -> dict[str, Any]:
    """Return the document of a server with these settings that speaks ``contracts``."""
    components = _Components()
    for contract in contracts:
        components.add(TypeAdapter(contract.request), name=f"{contract.prefix}Request", prefix=contract.prefix)
        components.add(contract.answer, name=f"{contract.prefix}Response", prefix=contract.prefix)
    served = operations(contracts)
    for errors in dict.fromkeys(operation.errors for operation in served):
        components.add(errors.body_type, name=errors.name)
    paths = {
        operation.template: {operation.method.lower(): _described(operation, settings, components)}
        for operation in served
    }
    _apply_limits(components.schemas, Limits.of(settings))
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
            "schemas": components.schemas,
            "headers": {
                "RequestId": {
                    "description": "Names this request in the server's log.",
                    "required": True,
                    "schema": _TEXT,
                }
            },
        },
    }


class _Components:
    """The named schemas of a document."""

    def __init__(self) -> None:
        self.schemas: dict[str, Schema] = {}

    def add(self, described: TypeAdapter[Any], *, name: str = "", prefix: str = "") -> Schema:
        """Add a type and those inside it.

        Args:
            described: The type.
            name: Of its schema; that of the type itself when it is empty.
            prefix: What the names of the types inside it begin with.

        Returns:
            A reference to its schema, or the schema itself where nothing names it.

        Raises:
            ValueError: Another type has the name of one of these.
        """
        schema = described.json_schema(ref_template=f"{_COMPONENTS}{prefix}{{model}}")
        for inner, definition in schema.pop("$defs", {}).items():
            self._put(prefix + inner, definition)
        name = name or schema.get("title", "")
        if not name:
            return schema
        self._put(name, schema)
        return _ref(name)

    def _put(self, name: str, schema: Schema) -> None:
        if self.schemas.setdefault(name, schema) != schema:
            raise ValueError(f"two types have the schema name {name}; rename one, or give its contract another prefix")


def _described(operation: Operation, settings: Settings, components: _Components) -> dict[str, Any]:
    described: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": re.sub(r"[/.{}-]+", "_", operation.template.strip("/{}")),
        "tags": [operation.group],
        "responses": {
            "200": _response("The answer.", _answers(operation, components)),
            **{str(status): answer for status, answer in _error_responses(operation)},
        },
    }
    if operation.parameter:
        name = operation.template.partition("{")[2].partition("}")[0]
        described["parameters"] = [
            {"name": name, "in": "path", "required": True, "description": operation.parameter, "schema": _TEXT}
        ]
    if not operation.contracts:
        return described
    described["requestBody"] = {
        "required": True,
        "description": f"At most {settings.max_body_bytes} bytes.",
        "content": {JSON: {"schema": _either(f"{contract.prefix}Request" for contract in operation.contracts)}},
    }
    if operation.path == INVOCATIONS:
        described["responses"]["200"]["headers"][ATTRIBUTES_HEADER] = {
            "description": "request_id=...",
            "schema": _TEXT,
        }
    return described


def _answers(operation: Operation, components: _Components) -> dict[str, Schema]:
    """The schemas of a 200 answer by content type."""
    if operation.contracts:
        whole = {JSON: _either(f"{contract.prefix}Response" for contract in operation.contracts)}
        return whole | ({EVENTS: _EVENTS} if any(contract.streams for contract in operation.contracts) else {})
    return {METRICS: _TEXT} if operation.answer is None else {JSON: components.add(TypeAdapter(operation.answer))}


def _response(description: str, answers: dict[str, Schema]) -> dict[str, Any]:
    return {
        "description": description,
        "headers": {"x-request-id": {"$ref": "#/components/headers/RequestId"}},
        "content": {media_type: {"schema": schema} for media_type, schema in answers.items()},
    }


def _error_responses(operation: Operation) -> Iterator[tuple[int, dict[str, Any]]]:
    """One response per status; where several contracts meet, a status may come in any of their formats."""
    formats = dict.fromkeys((operation.errors, *(contract.errors for contract in operation.contracts)))
    by_status: dict[int, dict[str, None]] = {}
    for errors in formats:
        for kind in (*operation.kinds, Kind.INTERNAL):
            by_status.setdefault(errors.status(kind), {})[errors.name] = None
    for status, names in sorted(by_status.items()):
        response = _response(_MEANING[status], {JSON: _either(names)})
        if any(TABLE[kind].retryable for kind in operation.kinds) and status == 503:
            response["headers"]["Retry-After"] = {"description": "Seconds.", "schema": _TEXT}
        yield status, response


def _ref(name: str) -> Schema:
    return {"$ref": _COMPONENTS + name}


def _either(names: Iterable[str]) -> Schema:
    schemas = [_ref(name) for name in names]
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _apply_limits(schemas: Any, limits: Limits) -> None:
    """Lower each limit to what the setting named beside it allows."""
    if isinstance(schemas, dict):
        if SETTING in schemas:
            allowed = getattr(limits, schemas[SETTING])
            for bound in {"maxItems", "maxProperties", "maximum"} & schemas.keys():
                schemas[bound] = min(schemas[bound], allowed)
        schemas = list(schemas.values())
    if isinstance(schemas, list):
        for inner in schemas:
            _apply_limits(inner, limits)

"""Every route in one table: where it is served, and what the OpenAPI document says of it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from steelyard_runtime.contracts.contract import AnyContract
from steelyard_runtime.contracts.error_formats import OPENAI, OWN, ErrorFormat
from steelyard_runtime.contracts.wire import Open
from steelyard_runtime.errors import Kind
from steelyard_runtime.http.request_id import INVOCATIONS
from steelyard_runtime.http.routes import contracts as bodies
from steelyard_runtime.http.routes import operations as server
from steelyard_runtime.http.routes.common import Endpoint, posted

# What can go wrong with any body and any work: all but what is wrong with a path, or comes after an answer has begun.
_WORK = tuple(
    kind
    for kind in Kind
    if kind not in (Kind.NOT_FOUND, Kind.METHOD_NOT_ALLOWED, Kind.UNKNOWN_SHAPE, Kind.UNREAD, Kind.INTERNAL)
)
_LOADING = (Kind.NOT_READY,)


@dataclass(frozen=True)
class Operation:
    """One route.

    Attributes:
        path: As Starlette has it, a parameter with its converter.
        endpoint: Answers a request.
        group: The operations that it is listed with.
        summary: One line for people.
        answer: The type of the 200 answer; None for text, and for bodies of a contract, which has it.
        errors: How problems are reported, before a contract is known.
        kinds: Problems that can occur besides ``internal``.
        contracts: Of the body; none for GET.
        parameter: What the path's parameter is.
    """

    path: str
    endpoint: Endpoint
    group: str
    summary: str
    answer: Any = None
    _: KW_ONLY
    errors: ErrorFormat[Any] = OWN
    kinds: tuple[Kind, ...] = ()
    contracts: tuple[AnyContract, ...] = ()
    parameter: str = ""

    @property
    def method(self) -> str:
        """POST for bodies, else GET."""
        return "POST" if self.contracts else "GET"

    @property
    def template(self) -> str:
        """The path without converters."""
        return re.sub(r":[A-Za-z0-9_]+}", "}", self.path)


def operations(contracts: Sequence[AnyContract]) -> tuple[Operation, ...]:
    """Return all routes of a server that speaks ``contracts``.

    Raises:
        ValueError: Two contracts have the same name, or two routes the same path.
    """
    _refuse_repeated("contracts", "name", [contract.name for contract in contracts])
    every_contract = Operation(
        INVOCATIONS,
        posted(bodies.dispatching(contracts)),
        "SageMaker",
        "Every contract on one path; the body's shape decides",
        kinds=(*_WORK, Kind.UNKNOWN_SHAPE),
        contracts=tuple(contracts),
    )
    each_contract = (
        Operation(
            path,
            posted(bodies.handler(contract)),
            contract.group,
            summary,
            errors=contract.errors,
            kinds=_WORK,
            contracts=(contract,),
        )
        for contract in contracts
        for path, summary in contract.paths.items()
    )
    found = (_PING, every_contract, _EXECUTION_PARAMETERS, *each_contract, *_OPERATIONS)
    _refuse_repeated("routes", "path", [operation.path for operation in found])
    return found


def _refuse_repeated(whose: str, what: str, values: Sequence[str]) -> None:
    for value, times in Counter(values).items():
        if times > 1:
            raise ValueError(f"two {whose} have the {what} {value}; give one of them another")


_PING = Operation("/ping", server.ping, "SageMaker", "Readiness for SageMaker AI", server.Ready, kinds=_LOADING)
_EXECUTION_PARAMETERS = Operation(
    "/execution-parameters",
    server.execution_parameters,
    "SageMaker",
    "Parameters for Batch Transform",
    server.ExecutionParameters,
)
_OPERATIONS = (
    Operation(
        "/v1/models",
        server.models,
        "Operations",
        "The model served",
        server.Models,
        errors=OPENAI,
        kinds=_LOADING,
    ),
    Operation(
        "/v1/models/{model:path}",
        server.model,
        "Operations",
        "The model served, by its id or an alias",
        server.Model,
        errors=OPENAI,
        kinds=(*_LOADING, Kind.MODEL_NOT_FOUND),
        parameter="The name; it may hold slashes.",
    ),
    Operation(
        "/v1/identity",
        server.identity,
        "Operations",
        "Everything an answer depends on besides the request",
        Open,
        kinds=_LOADING,
    ),
    Operation(
        "/health", server.health, "Operations", "Readiness with the engine's counters", server.Health, kinds=_LOADING
    ),
    Operation("/metrics", server.metrics, "Operations", "Prometheus metrics"),
    Operation("/openapi.json", server.openapi, "Operations", "This document", server.OpenAPI),
)

"""Requests and answers of AWS's JSON protocol, as ministack's handlers take and give them."""

from __future__ import annotations

import json
from typing import Any

from steelyard_localcloud.errors import ServiceError

# Status, headers, and a body of bytes or ministack's StreamingResponse.
Response = tuple[int, dict[str, str], Any]
Parameters = dict[str, Any]

CONTENT_TYPE = "application/x-amz-json-1.1"


def read(body: bytes) -> Parameters:
    """A request's parameters.

    Raises:
        ServiceError: The body is no JSON object.
    """
    try:
        parameters = json.loads(body or b"{}")
    except ValueError as error:
        raise ServiceError(f"The request is not JSON: {error}.", code="SerializationException") from error
    if not isinstance(parameters, dict):
        raise ServiceError("The request is not a JSON object.", code="SerializationException")
    return parameters


def answer(payload: Parameters) -> Response:
    """A success. Timestamps are seconds since the epoch."""
    return 200, {"Content-Type": CONTENT_TYPE}, json.dumps(payload).encode()


def refuse(error: ServiceError) -> Response:
    """An error in the shape that every AWS SDK reads."""
    payload = json.dumps({"__type": error.code, "message": error.message, "Message": error.message})
    return error.status, {"Content-Type": CONTENT_TYPE, "x-amzn-ErrorType": error.code}, payload.encode()


def operation(headers: dict[str, str]) -> str:
    """The operation that the ``X-Amz-Target`` header names."""
    return headers.get("x-amz-target", "").rpartition(".")[2]

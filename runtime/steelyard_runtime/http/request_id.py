"""Request ids: ours, or the caller's when it is safe to repeat."""

from __future__ import annotations

import re
import uuid

from starlette.datastructures import Headers

# The one free-form header that SageMaker passes both ways. [contracts: SageMaker]
ATTRIBUTES_HEADER = "x-amzn-sagemaker-custom-attributes"
INVOCATIONS = "/invocations"
"""The path that SageMaker calls, and so the one whose answers carry that header."""
TRACE_HEADER = "traceparent"
_TRACE = re.compile(r"(?!ff)[0-9a-f]{2}-(?P<trace>[0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_SAFE = re.compile(r"[A-Za-z0-9._-]{1,64}")


def attributes(headers: Headers, name: str) -> list[str]:
    """Every value of ``name=...`` among SageMaker's custom attributes, in all lines of their header."""
    wanted = re.compile(rf"(?:^|[;,\s]){re.escape(name)}=([^;,\s]*)")
    return [value for line in headers.getlist(ATTRIBUTES_HEADER) for value in wanted.findall(line)]


def request_id_from(headers: Headers) -> str:
    """The caller's ``request_id=...`` if it consists of 1 to 64 letters, digits, dots, dashes; else a new one.

    A new one too when the caller gives several: a line of the log under the wrong id misleads.
    """
    given = set(attributes(headers, "request_id"))
    only = given.pop() if len(given) == 1 else ""
    return only if _SAFE.fullmatch(only) else uuid.uuid4().hex


def trace_id_from(headers: Headers) -> str | None:
    """Return the trace's id in the caller's ``traceparent`` (W3C), from its header or SageMaker's custom attributes.

    None where there is none, where it is not well formed, or where several differ: a wrong one misleads.
    """
    given = {*headers.getlist(TRACE_HEADER), *attributes(headers, TRACE_HEADER)}
    found = _TRACE.fullmatch(given.pop()) if len(given) == 1 else None
    return None if found is None or not found["trace"].strip("0") else found["trace"]


def response_headers(request_id: str, *, with_attributes: bool) -> list[tuple[bytes, bytes]]:
    """The headers that carry the id back; SageMaker's only where it reads it."""
    value = request_id.encode("ascii")
    headers = [(b"x-request-id", value), (b"x-typesafe-request-id", value)]
    if with_attributes:
        headers.append((ATTRIBUTES_HEADER.encode("ascii"), b"request_id=" + value))
    return headers

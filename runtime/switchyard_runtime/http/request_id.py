"""Request ids: ours, or the caller's when it is safe to repeat."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping

# The one free-form header that SageMaker passes both ways. [contracts: SageMaker]
ATTRIBUTES_HEADER = "x-amzn-sagemaker-custom-attributes"
_CALLER_ID = re.compile(r"(?:^|[;,\s])request_id=([A-Za-z0-9._-]{1,64})(?=$|[;,\s])")


def request_id_from(headers: Mapping[str, str]) -> str:
    """The caller's ``request_id=...`` if it consists of 1 to 64 letters, digits, dots, dashes; else a new one."""
    match = _CALLER_ID.search(headers.get(ATTRIBUTES_HEADER, ""))
    return match.group(1) if match else uuid.uuid4().hex


def response_headers(request_id: str, *, with_attributes: bool) -> list[tuple[bytes, bytes]]:
    """The headers that carry the id back; SageMaker's only where it reads it."""
    value = request_id.encode("ascii")
    headers = [(b"x-request-id", value), (b"x-typesafe-request-id", value)]
    if with_attributes:
        headers.append((ATTRIBUTES_HEADER.encode("ascii"), b"request_id=" + value))
    return headers

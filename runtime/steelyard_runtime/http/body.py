"""Reading a request's body: the right type, not too large, not too slow."""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect, Request

from steelyard_runtime.errors import Kind, Problem
from steelyard_runtime.http.headers import elements, only
from steelyard_runtime.http.record import record_of
from steelyard_runtime.settings import Settings

_SHOWN = 100


async def read_body(request: Request, settings: Settings) -> bytes:
    """Return the body of ``request``. No place of anything is held meanwhile.

    Raises:
        Problem: ``media_type``, ``repeated_header``, ``body_too_large``, ``upload_timeout``.
        ClientDisconnect: The client left during the upload.
    """
    _check_headers(request, settings)
    body = await _read(request, settings)
    if settings.log_raw_text:
        record_of(request).raw_body = body.decode("utf-8", errors="replace")
    return body


def _check_headers(request: Request, settings: Settings) -> None:
    # Both in lower case: no two spellings of one type are two values.
    _check_content_type(only(map(str.lower, elements(request.headers, "content-type")), "The header Content-Type"))
    encodings = (encoding.lower() or "identity" for encoding in elements(request.headers, "content-encoding"))
    encoding = only(encodings, "The header Content-Encoding") or "identity"
    if encoding != "identity":
        raise Problem(
            Kind.MEDIA_TYPE,
            f"Content-Encoding {encoding[:_SHOWN]!r} is not supported; send the JSON body uncompressed.",
            headers={"accept-encoding": "identity"},
        )
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and int(declared[:20]) > settings.max_body_bytes:
        raise _too_large(f"is {declared[:20]} bytes", settings)


def _check_content_type(value: str | None) -> None:
    if value is None or not value.strip():
        raise Problem(
            Kind.MEDIA_TYPE, "The request has no Content-Type; send JSON with Content-Type: application/json."
        )
    media_type, *parameters = (part.strip() for part in value.split(";"))
    if media_type != "application/json" and not (
        media_type.startswith("application/") and media_type.endswith("+json")
    ):
        raise Problem(
            Kind.MEDIA_TYPE,
            f"Content-Type {value[:_SHOWN]!r} is not supported; send JSON with Content-Type: application/json.",
        )
    for parameter in parameters:
        name, _, charset = parameter.partition("=")
        if name.strip() == "charset" and charset.strip().strip('"') not in ("utf-8", "utf8"):
            raise Problem(Kind.MEDIA_TYPE, f"The charset {charset[:_SHOWN]!r} is not supported; send UTF-8.")


async def _read(request: Request, settings: Settings) -> bytes:
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(settings.upload_timeout_s):
            while True:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                chunk = message.get("body", b"")
                size += len(chunk)
                if size > settings.max_body_bytes:
                    raise _too_large("is larger", settings)
                chunks.append(chunk)
                if not message.get("more_body", False):
                    return b"".join(chunks)
    except TimeoutError:
        raise Problem(
            Kind.UPLOAD_TIMEOUT,
            f"After {settings.upload_timeout_s:g} seconds only {size} bytes of the body had arrived and not "
            "its end; send it faster, or raise upload_timeout_s on the server.",
        ) from None


def _too_large(what: str, settings: Settings) -> Problem:
    return Problem(
        Kind.BODY_TOO_LARGE,
        f"The body {what}; at most {settings.max_body_bytes} bytes are accepted. Send less, or raise max_body_bytes on "
        "the server.",
        counts={"limit": settings.max_body_bytes},
    )

"""Streamed answers as server-sent events."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any, Protocol

from steelyard_runtime.contracts.contract import ChunkEncoder
from steelyard_runtime.contracts.error_formats import ErrorFormat
from steelyard_runtime.engine.interface import Delta, Done, Finished
from steelyard_runtime.errors import Problem

DONE = b"data: [DONE]\n\n"


class GenerationEvents(Protocol):
    """The source of a stream: a ``Generation``, or something around one that watches its events."""

    async def __aenter__(self) -> GenerationEvents: ...

    async def __aexit__(self, *_: object) -> None: ...

    def __aiter__(self) -> AsyncIterator[Delta | Finished | Done]: ...


def sse(payload: Mapping[str, Any]) -> bytes:
    """Return one server-sent event."""
    return (
        b"data: " + json.dumps(payload, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode() + b"\n\n"
    )


def sse_error(problem: Problem, errors: ErrorFormat[Any]) -> bytes:
    """Return the last event of a stream that failed; no ``[DONE]`` follows it."""
    return sse(errors.render(problem)[1])


async def server_sent_events(
    generation: GenerationEvents, chunks: ChunkEncoder, errors: ErrorFormat[Any]
) -> AsyncGenerator[bytes, None]:
    """Yield the body of a streamed answer: its chunks, then ``[DONE]``; after a failure its error, and no more."""
    async with generation:
        try:
            for chunk in chunks.start():
                yield sse(chunk)
            async for event in generation:
                for chunk in chunks.event(event):
                    yield sse(chunk)
            yield DONE
        except Problem as problem:
            yield sse_error(problem, errors)

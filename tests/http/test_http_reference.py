"""docs/reference/http.md says the limits that the code has."""

from __future__ import annotations

from pathlib import Path

import pytest

from steelyard_runtime.http import connections, protocol, request_head, serve
from steelyard_runtime.http.observability import log_writer, logs

PAGE = (Path(__file__).parents[2] / "docs/reference/http.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "said",
    [
        f"more than {request_head.MAX_CHUNKS} chunks",
        f"a request line of more than {request_head.MAX_HEAD_BYTES} bytes",
        f"more than {request_head.MAX_HEADERS} headers",
        f"not whole after {protocol.HEADERS_TIMEOUT_S:g} seconds",
        f"may be open at once: {connections.MOST}, or\n{connections.OWN_DESCRIPTORS + connections.RESERVE} fewer",
        f"{connections.RESERVE} connections above the limit",
        f"closed after {serve.KEEP_ALIVE_S} seconds",
        f"a queue of {log_writer.QUEUE_BYTES >> 20} MiB",
        f"one line in {logs.REPEATED_S:g} seconds",
        *(f"`{state}`" for state in connections.STATES),
        *(f"`{reason}`" for reason in connections.REASONS),
    ],
)
def test_the_page_says_the_limit_of_the_code(said: str) -> None:
    assert said in PAGE

"""The server that the HTTP tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.applications import Starlette

from live_server import ServerThread


@pytest.fixture
def live_stub(stub_app: Starlette) -> Iterator[ServerThread]:
    """The application over the stub engine on a real socket."""
    with ServerThread(stub_app).running() as server:
        yield server

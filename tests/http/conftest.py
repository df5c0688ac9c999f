"""Bodies and servers that the HTTP tests share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.applications import Starlette

from live_server import ServerThread


@pytest.fixture
def live_stub(stub_app: Starlette) -> Iterator[ServerThread]:
    """The application over the stub engine on a real socket."""
    with ServerThread(stub_app).running() as server:
        yield server


@pytest.fixture
def decision() -> dict[str, Any]:
    """A valid body of the walkthrough's contract."""
    return {
        "decision": {
            "id": "d1",
            "state": "The parcel is late.",
            "question": "Which team?",
            "options": [{"id": "billing", "description": "money"}, {"id": "delivery", "description": "parcels"}],
        }
    }


@pytest.fixture
def systemone() -> dict[str, Any]:
    """A valid body of System One."""
    return {"state": "The parcel is late.", "model": "jev-latest", "questions": {"late": {"type": "noul"}}}


@pytest.fixture
def chat() -> dict[str, Any]:
    """A valid body of the chat contract."""
    return {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 5, "seed": 1}

"""The clients that people have, against a server in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tiny_models
from client_suite import *  # noqa: F403 - the tests, and the fixtures that they need
from live_server import ServerProcess


@pytest.fixture(scope="module")
def tiny_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A tiny model that chats, decides and embeds."""
    model = tiny_models.write("llama-pooling", tmp_path_factory.mktemp("clients") / "tiny.gguf")
    with ServerProcess(model=model, threads=1, deadline_s=300).running() as process:
        yield process

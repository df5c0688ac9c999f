"""The built image for CPUs keeps the contracts of the server: the suites that a process passes, against a container.

It runs as on SageMaker: the argument ``serve``, root, no network, the model in a read-only folder.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import pytest

import tiny_models
from client_suite import *  # noqa: F403 - the tests, and the fixtures that they need
from served_image import ServedImage
from server_suite import *  # noqa: F403 - the tests

pytestmark = pytest.mark.containers


@pytest.fixture(scope="module")
def tools(docker_on_path: None) -> Mapping[str, str]:
    """podman's environment: the storage in which the images are built."""
    return dict(os.environ)


@pytest.fixture(scope="module")
def server(
    cpu_image: str, gemma: Path, tools: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServedImage]:
    """The image with the embedded model."""
    folder = tmp_path_factory.mktemp("embedded")
    model = folder / "model"
    model.mkdir()
    shutil.copy(gemma, model / "gemma-3-270m.gguf")
    settings = {"model_id": "gemma-3-270m", "threads": 2, "deadline_s": 600}
    with ServedImage(cpu_image, model=model, folder=folder, environment=tools, **settings).running() as container:
        yield container


@pytest.fixture(scope="module")
def tiny_server(
    cpu_image: str, tools: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServedImage]:
    """The image with a tiny model that chats, decides and embeds."""
    folder = tmp_path_factory.mktemp("tiny")
    model = folder / "model"
    model.mkdir()
    tiny_models.write("llama-pooling", model / "tiny.gguf")
    settings = {"threads": 1, "deadline_s": 300}
    with ServedImage(cpu_image, model=model, folder=folder, environment=tools, **settings).running() as container:
        yield container


def test_told_to_stop_it_answers_what_it_has_and_ends_with_0(
    cpu_image: str, tools: Mapping[str, str], tmp_path: Path, decision: dict[str, object]
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    tiny_models.write("llama-pooling", model / "tiny.gguf")
    image = ServedImage(cpu_image, model=model, folder=tmp_path, environment=tools, threads=1)
    with image.running() as container:
        with httpx.stream(
            "POST",
            container.url + "/v1/chat/completions",
            json={"messages": [{"role": "user", "content": "hi"}], "max_tokens": 40, "stream": True},
            timeout=60,
        ) as answer:
            parts = answer.iter_lines()
            first = next(parts)
            stopping = threading.Thread(target=container.process.stop)
            stopping.start()
            rest = list(parts)
        stopping.join()
    assert first.startswith("data:")
    assert [line for line in rest if line][-1] == "data: [DONE]"
    # Above 128 it would have been killed after SageMaker's 30 seconds.
    assert container.process.exit_status() == 0
    assert [line["event"] for line in container.lines][-1] == "stopped"
    assert container.others == []

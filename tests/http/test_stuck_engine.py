"""An engine whose thread is stuck answers nobody, so the services do, and take back what they gave it."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future
from typing import Any

import pytest
from starlette.testclient import TestClient

from fuzzing import BODIES, OF_PATH
from steelyard_runtime.errors import Kind, Problem
from steelyard_runtime.services import chat, waiting
from steelyard_runtime.services.waiting import answered
from stub_engine import StubEngine

SOON = 1e9
EVERY_WAY = [(path, body) for path, bodies in OF_PATH.items() for body in bodies]


@pytest.fixture
def _no_patience(monkeypatch: pytest.MonkeyPatch, stub_engine: StubEngine) -> None:
    """Every wait for the engine is over at once, and no deadline has passed: it admits what is not waited for."""

    def patience_s(deadline: float) -> float:
        return 0.0 if stub_engine.pending_jobs else deadline - time.monotonic()

    for module in (waiting, chat):
        monkeypatch.setattr(module, "patience_s", patience_s)


@pytest.mark.usefixtures("_no_patience")
@pytest.mark.parametrize(("path", "body"), EVERY_WAY)
def test_whoever_waits_for_a_stuck_engine_is_told_and_its_work_is_dropped(
    stub_client: TestClient, stub_engine: StubEngine, path: str, body: dict[str, Any]
) -> None:
    stub_engine.gate.clear()
    response = stub_client.post(path, json=body)
    assert response.status_code == 503, response.text
    assert Kind.DEADLINE.value in response.text
    assert response.headers["retry-after"] == "1"
    stub_engine.gate.set()
    stub_engine.keep_warm(()).result()  # after whatever was in the queue
    # Several prompts of one request are as many jobs.
    assert stub_engine.cancelled_jobs == (len(body["prompt"]) if isinstance(body.get("prompt"), list) else 1)
    done = stub_engine.counters
    assert done.decisions == done.generations == done.embeddings == 0


def test_no_contract_is_left_out() -> None:
    asked = [body for _, body in EVERY_WAY]
    assert all(body in asked for bodies in BODIES.values() for body in bodies)


def test_an_answer_in_time_is_the_engines() -> None:
    async def scenario() -> None:
        future: Future[int] = Future()
        asyncio.get_running_loop().call_soon(future.set_result, 7)
        assert await answered(future, deadline=SOON) == 7

    asyncio.run(scenario())


@pytest.mark.parametrize("fault", [Problem(Kind.ENGINE_FAILED, "broken"), TimeoutError("the engine's own")])
def test_the_engines_own_faults_are_passed_on(fault: Exception) -> None:
    async def scenario() -> None:
        future: Future[int] = Future()
        future.set_exception(fault)
        with pytest.raises(type(fault)) as caught:
            await answered(future, deadline=SOON)
        assert str(caught.value) == str(fault)  # asyncio makes a TimeoutError of its own from another

    asyncio.run(scenario())


def test_who_leaves_takes_the_work_back() -> None:
    async def scenario() -> None:
        future: Future[int] = Future()
        task = asyncio.create_task(answered(future, deadline=SOON))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert future.cancelled()

    asyncio.run(scenario())

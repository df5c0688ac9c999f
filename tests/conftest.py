"""Fixtures for every room of the tests: the stub engine behind the real application, and a real server."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

# Threads that spin at barriers starve each other where tests and servers share two cores; these sleep instead. Read
# by OpenMP when llama.cpp is loaded, and inherited by every server that the tests start.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# A shell starts a script's background jobs with SIGINT ignored, and every child inherits that; tests send it to theirs.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# So it does with SIGQUIT, and nohup with SIGHUP.
if signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# What several rooms of the tests use (stub_engine, live_server, tiny_models) is in support/, and imported by name.
sys.path.insert(0, str(Path(__file__).parent / "support"))

import container_tools
from live_server import ServerProcess
from steelyard_runtime.http.app import create_app
from steelyard_runtime.http.runtime import Runtime, build_services
from steelyard_runtime.settings import Settings
from stub_engine import StubEngine

# Their assertions explain themselves as those of a module of tests do.
pytest.register_assert_rewrite("client_suite", "server_suite", "served_image")

# Examples are counted, not timed: how long one takes depends on what else the machine does.
# They are the same in every run of the same tests: a change does not fail for what another one did. make fuzz searches.
hypothesis.settings.register_profile(
    "repeatable",
    deadline=None,
    derandomize=os.environ.get("STEELYARD_FUZZ") != "full",
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("repeatable")

# Rooms whose tests share what takes long to make (images, a cloud with an environment in it): one process runs each of
# them, and they are first, because they take longest. Of the other rooms a process runs whole files.
WHOLE_ROOMS = ("images", "deploy", "releases")

EMBEDDED_MODEL = "gemma-3-270m"
LEFT_OUT = pytest.StashKey[str]()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each process whole rooms or files. xdist writes groups of its own into test ids; pytest 9.2 forbids it."""
    from xdist.scheduler import LoadScopeScheduling

    class Rooms(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _one_process(nodeid)

    return Rooms(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the tests of real images out where they cannot run, unless they are required."""
    why = "" if container_tools.REQUIRED else container_tools.why_not()
    left = [item for item in items if why and item.get_closest_marker("containers")]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]
        config.stash[LEFT_OUT] = f"{len(left)} tests of real images were left out: {why}"
    order = {room: place for place, room in enumerate(WHOLE_ROOMS)}
    items.sort(key=lambda item: order.get(_one_process(item.nodeid), len(order)))


def _one_process(nodeid: str) -> str:
    """Name the room or the file whose tests one process runs, in order."""
    file = nodeid.partition("::")[0]
    room = file.split("/")[1]
    return room if room in WHOLE_ROOMS else file


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say what was left out."""
    if LEFT_OUT in config.stash:
        terminalreporter.write_line(config.stash[LEFT_OUT], yellow=True)


@pytest.fixture(scope="session", autouse=True)
def _no_settings_from_outside() -> None:
    """The tests mean the defaults, whatever the developer's shell says."""
    for name in list(os.environ):
        if name.startswith("STEELYARD_") and name not in (
            "STEELYARD_CACHE",
            "STEELYARD_TEST_MODEL",
            "STEELYARD_FUZZ",
        ):
            del os.environ[name]


@pytest.fixture(autouse=True)
def _logging_is_given_back() -> Iterator[None]:
    """A test that starts a server in this process has its warnings sent to that server's log, which ends with it."""
    loggers = [logging.getLogger(name) for name in ("", "uvicorn", "uvicorn.error", "asyncio")]
    before = [(list(logger.handlers), logger.propagate, logger.level) for logger in loggers]
    yield
    for logger, (handlers, propagate, level) in zip(loggers, before, strict=True):
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


@pytest.fixture
def settings() -> Settings:
    """The default settings; a test that needs others makes its own."""
    return Settings()


@pytest.fixture
def stub_engine(settings: Settings) -> Iterator[StubEngine]:
    """An engine whose forward pass is a hash."""
    engine = StubEngine(settings)
    yield engine
    engine.close(timeout_s=0)


@pytest.fixture
def stub_app(settings: Settings, stub_engine: StubEngine) -> Starlette:
    """The real application over the stub engine."""
    return create_app(Runtime(settings=settings, services=build_services(settings, stub_engine)))


@pytest.fixture
def stub_client(stub_app: Starlette) -> Iterator[TestClient]:
    """A client of ``stub_app`` in the same process, without sockets."""
    with TestClient(stub_app, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture(scope="session")
def gemma() -> Path:
    """The embedded model's file, fetched into the user's cache when it is not there."""
    given = os.environ.get("STEELYARD_TEST_MODEL")
    if given:
        return Path(given)
    from steelyard.models.catalogue import find
    from steelyard.models.pull import pull

    return pull(find(EMBEDDED_MODEL))


@pytest.fixture(scope="session")
def server(gemma: Path) -> Iterator[ServerProcess]:
    """A real server process with the embedded model, ready to answer."""
    # The engine refuses what it cannot finish by the deadline; on a machine as busy as one that runs tests, a question
    # with 255 options would be refused by the default.
    with ServerProcess(model=gemma, model_id=EMBEDDED_MODEL, threads=2, deadline_s=600).running() as process:
        yield process


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

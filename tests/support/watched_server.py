"""A real server whose metrics are taken fault by fault, and the faults that every metric of its log tells of."""

from __future__ import annotations

import io
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import tiny_models
from live_server import ServerProcess, ServerThread, eventually
from registered_decisions import TEAMS, URGENT, bound_to, contract, linear, write_decision, write_fitted
from steelyard_runtime.engine.core import LlamaEngine
from steelyard_runtime.engine.llama import Context
from steelyard_runtime.engine.scorer import Scorer
from steelyard_runtime.engine.start import start_engine
from steelyard_runtime.http.app import create_app
from steelyard_runtime.http.observability.log_writer import LogWriter
from steelyard_runtime.http.observability.metrics import Metrics
from steelyard_runtime.http.runtime import Runtime, build_services
from steelyard_runtime.settings import Settings

ENDPOINT = "watched"
DECISION = {"question": "Which team?", "options": [{"id": "billing"}, {"id": "shipping"}]}
CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 300, "stream": True}
POLICIES: dict[str, dict[str, Any]] = {
    "automated": {"automate": {"probability": 0.0}},
    "reviewed": {"automate": {"margin": 1.0}},
    "abstained": {"review": {"probability": 1.0}},
    "far": {"automate": {"probability": 0.0, "distance": 0.0}},
    "never": {},
}
"""Of decisions that have heads; whatever the head says, the policy decides as its name says."""
Lines = list[dict[str, Any]]
Fault = Callable[["Watched", pytest.MonkeyPatch], object]


def metric_lines(text: str) -> Lines:
    """The lines of metrics in a log."""
    return [line for line in map(json.loads, text.splitlines()) if line.get("event") == "metrics"]


class Watched:
    """Applications over one real engine, each on a socket of its own.

    Attributes:
        taken: Lines of the fault that is being made.
    """

    def __init__(self, engine: LlamaEngine, model: Path) -> None:
        self.engine = engine
        self.model = model
        self.taken: Lines = []
        self._open = ExitStack()
        self._served: dict[str, tuple[ServerThread, Runtime, Metrics, io.StringIO]] = {}

    @contextmanager
    def serving(self, **changes: Any) -> Iterator[tuple[ServerThread, Runtime]]:
        """Serve with changed settings; what was counted is in ``taken`` afterwards."""
        key = repr(changes)
        if key not in self._served:
            self._served[key] = self._start(changes)
        server, runtime, metrics, sink = self._served[key]
        yield server, runtime
        httpx.get(server.url + "/metrics")  # a request is counted after its answer, and before the next one begins
        metrics.flush()
        self.taken.extend(metric_lines(sink.getvalue()))
        sink.truncate(0)
        sink.seek(0)

    def _start(self, changes: dict[str, Any]) -> tuple[ServerThread, Runtime, Metrics, io.StringIO]:
        settings = Settings(model=str(self.model), endpoint_name=ENDPOINT, log_level="error", **changes)
        runtime = Runtime(settings=settings, services=build_services(settings, self.engine))
        sink = io.StringIO()
        app = create_app(runtime, sink=sink)
        return self._open.enter_context(ServerThread(app).running()), runtime, app.state.metrics, sink

    def close(self) -> None:
        """End all of it."""
        self._open.close()
        self.engine.close(timeout_s=1)


@contextmanager
def watched(folder: Path) -> Iterator[Watched]:
    """Start the engine of a tiny model beside decisions with every kind of policy."""
    model = tiny_models.write("llama", folder / "model.gguf")
    engine = start_engine(Settings(model=str(model), threads=1, context_tokens=512))
    for name, policy in POLICIES.items():
        write_fitted(folder / "decisions" / name, engine, contract(URGENT, name=name, version=1, policy=policy))
    letters = contract(
        URGENT, name="letters", version=1, readout={"strategy": "letters"}, policy={"automate": {"probability": 0.0}}
    )
    write_decision(folder / "decisions" / "letters", letters)
    strict = contract(URGENT, name="unsure", version=1, policy={"automate": {"probability": 1.0}})
    write_fitted(folder / "decisions" / "unsure", engine, strict)
    server = Watched(engine, model)
    try:
        yield server
    finally:
        server.close()


def make(fault: str, watched: Watched) -> Lines:
    """Make a fault happen; the lines of metrics that were written meanwhile."""
    watched.taken.clear()
    with pytest.MonkeyPatch.context() as patch:
        FAULTS[fault](watched, patch)
    return list(watched.taken)


def posted(path: str, body: Any, *, status: int, **settings: Any) -> Fault:
    """A request, and the status that it gets."""

    def do(watched: Watched, _: pytest.MonkeyPatch) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        with watched.serving(**settings) as (server, _runtime):
            headers = {"content-type": "application/json"}
            answer = httpx.post(server.url + path, content=content, headers=headers, timeout=60)
            assert answer.status_code == status, answer.text

    return do


def asked(name: str) -> Fault:
    """A registered decision."""
    return posted("/invocations", {"decision": {"use": name, "state": "the card is lost"}}, status=200)


def _half_a_body(server: ServerThread) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    client.sendall(
        b"POST /invocations HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
    )
    return client


def _slow_client(watched: Watched, _: pytest.MonkeyPatch) -> None:
    with watched.serving(upload_timeout_s=0.1) as (server, _runtime), _half_a_body(server) as client:
        assert client.recv(100).startswith(b"HTTP/1.1 408")


def _client_left(watched: Watched, _: pytest.MonkeyPatch) -> None:
    with watched.serving() as (server, _runtime):
        _half_a_body(server).close()
        assert eventually(lambda: "client_left" in httpx.get(server.url + "/metrics").text)


def _busy(watched: Watched, _: pytest.MonkeyPatch) -> None:
    with (
        watched.serving(queue_limit=1) as (server, runtime),
        runtime.preparation.admit(caller=None, size=1, arrived=time.monotonic(), deadline_s=60),
    ):
        assert httpx.post(server.url + "/invocations", json={"decision": {}}).status_code == 503


def _not_ready(watched: Watched, patch: pytest.MonkeyPatch) -> None:
    with watched.serving() as (server, runtime):
        patch.setattr(runtime, "services", None)
        body = {"decision": {"id": "a", "state": "b", **DECISION}}
        assert httpx.post(server.url + "/invocations", json=body).status_code == 503


def _deadline(watched: Watched, patch: pytest.MonkeyPatch) -> None:
    prepare = Scorer.prepare

    def slowly(*arguments: Any, **more: Any) -> Any:
        time.sleep(0.6)
        return prepare(*arguments, **more)

    patch.setattr(Scorer, "prepare", slowly)
    with watched.serving(deadline_s=0.3) as (server, _runtime):
        body = {"decision": {"id": "a", "state": "b", **DECISION}}
        assert httpx.post(server.url + "/invocations", json=body, timeout=60).status_code == 503


def _engine_fault(watched: Watched, patch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("injected")

    patch.setattr(Scorer, "prepare", broken)
    with watched.serving() as (server, _runtime):
        body = {"decision": {"id": "a", "state": "b", **DECISION}}
        assert httpx.post(server.url + "/invocations", json=body, timeout=60).status_code == 422


def _broken_stream(watched: Watched, patch: pytest.MonkeyPatch) -> None:
    decode = Context.decode

    def slowly(*arguments: Any, **more: Any) -> Any:
        time.sleep(0.05)
        return decode(*arguments, **more)

    patch.setattr(Context, "decode", slowly)
    with watched.serving(stream_deadline_s=1) as (server, _runtime):
        answer = httpx.post(server.url + "/v1/chat/completions", json=CHAT, timeout=60)
        assert answer.status_code == 200
        assert '"error"' in answer.text


def _lines_dropped(watched: Watched, patch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    writer = LogWriter(writing, queue_bytes=10)
    for _line in range(3):
        writer.write("x" * 100_000)
    with watched.serving() as (_server, runtime):
        patch.setattr(runtime, "dropped_lines", lambda: writer.dropped)
    drained = threading.Thread(target=lambda: [None for _ in iter(lambda: os.read(reading, 1 << 16), b"")], daemon=True)
    drained.start()
    assert writer.drain(timeout_s=30)


def _records_dropped(watched: Watched, _: pytest.MonkeyPatch) -> None:
    full = watched.model.parent / "records.jsonl"
    full.write_bytes(bytes(1 << 20))
    with watched.serving(decision_records=str(full), decision_records_mib=1) as (server, _runtime):
        body = {"decision": {"id": "a", "state": "b", **DECISION}}
        assert httpx.post(server.url + "/invocations", json=body).status_code == 200


def _refused_start(watched: Watched, **settings: Any) -> None:
    server = ServerProcess(endpoint_name=ENDPOINT, threads=1, context_tokens=512, **settings)
    server.start()
    assert server.process.wait(timeout=60) == 1
    assert eventually(lambda: any(line["event"] == "stopped" for line in server.lines))
    watched.taken.extend(line for line in server.lines if line["event"] == "metrics")


def _mismatched_head(watched: Watched, _: pytest.MonkeyPatch) -> None:
    folder = watched.model.parent / "others"
    asked = contract(TEAMS)
    bound = bound_to(watched.engine, asked, model_sha256="0" * 64)
    size = watched.engine.identity.model.embedding_size
    write_decision(folder / "support-route", asked, bound, linear(asked, size=size))
    _refused_start(watched, model=watched.model, decisions=folder)


def _failed_start(watched: Watched, _: pytest.MonkeyPatch) -> None:
    _refused_start(watched, model=tiny_models.write_truncated(watched.model.parent / "half.gguf"))


FAULTS: dict[str, Fault] = {
    "Malformed": posted("/invocations", b"{", status=400),
    "UnknownContract": posted("/invocations", {}, status=400),
    "UnknownName": posted("/v1/nowhere", {}, status=404),
    "OverBudget": posted("/invocations", {"decision": {"id": "a", "state": "word " * 900, **DECISION}}, status=413),
    "SlowClient": _slow_client,
    "ClientLeft": _client_left,
    "Busy": _busy,
    "Deadline": _deadline,
    "NotReady": _not_ready,
    "EngineFault": _engine_fault,
    "BrokenStream": _broken_stream,
    "Automated": asked("automated"),
    "Reviewed": asked("reviewed"),
    "Abstained": asked("abstained"),
    "LowProbability": asked("unsure"),
    "LowMargin": asked("reviewed"),
    "FarFromCases": asked("far"),
    "Uncalibrated": asked("letters"),
    "NeverAutomated": asked("never"),
    "Feedback": posted("/v1/feedback", {"feedback": {"use": "far", "right": "yes"}}, status=200),
    "Overridden": posted("/invocations", {"feedback": {"use": "far", "right": "yes", "answered": "no"}}, status=200),
    "MismatchedHead": _mismatched_head,
    "FailedStart": _failed_start,
    "LogLinesDropped": _lines_dropped,
    "RecordsDropped": _records_dropped,
}
"""How to make the series of that name count."""

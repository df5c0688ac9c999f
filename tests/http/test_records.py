"""Where decision records go, and that nobody waits for them."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from live_server import ServerProcess
from steelyard_runtime.http.app import create_app
from steelyard_runtime.http.observability.records import Records
from steelyard_runtime.http.runtime import Runtime, build_services
from steelyard_runtime.settings import Settings
from stub_engine import StubEngine


def asked(engine: StubEngine, body: Any, *, times: int = 1, sink: io.StringIO | None = None, **settings: Any) -> str:
    """Ask a server with these settings; its metrics."""
    wanted = Settings(**settings)
    app = create_app(Runtime(settings=wanted, services=build_services(wanted, engine)), sink=sink)
    with TestClient(app) as client:
        for _ in range(times):
            assert client.post("/invocations", json=body).status_code == 200
        found = client.get("/metrics").text
    records: Records = app.state.records
    records.close(timeout_s=30)
    return found


def test_nothing_is_recorded_unless_it_is_asked_for(stub_engine: StubEngine, decision: Any) -> None:
    sink = io.StringIO()
    asked(stub_engine, decision, sink=sink)
    assert sink.getvalue() == ""


def test_records_are_lines_of_the_log(stub_engine: StubEngine, decision: Any) -> None:
    sink = io.StringIO()
    asked(
        stub_engine,
        {"decisions": [decision["decision"], {**decision["decision"], "id": "d2"}]},
        sink=sink,
        decision_records="log",
    )
    first, second = map(json.loads, sink.getvalue().splitlines())
    assert first["event"] == "decision"
    assert first["id"].removesuffix("/0") == second["id"].removesuffix("/1")
    assert first["text"] is None


def test_a_file_is_appended_to_and_nobody_else_may_read_it(
    stub_engine: StubEngine, decision: Any, tmp_path: Path
) -> None:
    path = tmp_path / "records.jsonl"
    for _ in range(2):
        asked(stub_engine, decision, decision_records=str(path))
    assert len(path.read_text().splitlines()) == 2
    assert path.stat().st_mode & 0o077 == 0


def test_a_pipe_that_nobody_reads_holds_up_no_start(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "records")
    with pytest.raises(OSError, match="No such device or address"):
        Records(Settings(decision_records=str(tmp_path / "records")))


def test_a_full_file_takes_no_more_and_the_rest_is_counted(
    stub_engine: StubEngine, decision: Any, tmp_path: Path
) -> None:
    path = tmp_path / "records.jsonl"
    path.write_bytes(b"\n" * ((1 << 20) - 3000))
    found = asked(stub_engine, decision, times=5, decision_records=str(path), decision_records_mib=1)
    written = len([line for line in path.read_text().splitlines() if line])
    assert 0 < written < 5
    assert f"steelyard_decision_records_dropped_total {5 - written}.0" in found
    assert path.stat().st_size <= 1 << 20


def test_texts_are_kept_when_the_settings_ask_for_it(stub_engine: StubEngine, decision: Any) -> None:
    sink = io.StringIO()
    asked(stub_engine, decision, sink=sink, decision_records="log", record_text=True)
    text = json.loads(sink.getvalue())["text"]
    assert text["state"] == decision["decision"]["state"]
    assert text["instructions"] == decision["decision"]["question"]
    assert [each["id"] for each in text["options"]] == ["billing", "delivery"]


def test_a_file_that_cannot_be_opened_ends_the_start(tmp_path: Path) -> None:
    server = ServerProcess(model=tmp_path / "none.gguf", decision_records=tmp_path / "absent" / "records.jsonl")
    server.start()
    assert server.wait_for("not_recording")["reason"].endswith("cannot be opened: No such file or directory.")
    assert server.process.wait(timeout=60) == 1

"""The process: early listening, signals, draining, and honest ends."""

from __future__ import annotations

import json
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from live_server import ServerProcess, eventually, get_status

STUB = [sys.executable, str(Path(__file__).with_name("stub_process.py"))]


def stub_process(**settings: object) -> ServerProcess:
    """A server process over the stub engine."""
    return ServerProcess(command=STUB, **settings)


def post_in_background(url: str, body: dict[str, Any]) -> tuple[threading.Thread, list[httpx.Response]]:
    """Post ``body``; the answer appears in the list."""
    answers: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: answers.append(httpx.post(url, json=body, timeout=60)))
    thread.start()
    return thread, answers


def test_it_listens_while_loading_and_says_so(monkeypatch: pytest.MonkeyPatch, decision: dict[str, Any]) -> None:
    monkeypatch.setenv("STUB_LOADS_S", "1")
    with stub_process().running(until="listening") as server:
        first = httpx.get(server.url + "/ping")
        assert first.status_code == 503
        assert "loading" in first.json()["error"]
        assert httpx.post(server.url + "/invocations", json=decision).status_code == 503
        server.wait_for("ready")
        assert get_status(server.url + "/ping") == 200
        assert httpx.post(server.url + "/invocations", json=decision).status_code == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_status_zero(number: int) -> None:
    with stub_process().running() as server:
        assert server.stop(number) == 0
        assert [line["event"] for line in server.lines][-2:] == ["stopping", "stopped"]


def test_a_signal_while_loading_ends_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_LOADS_S", "600")
    with stub_process().running(until="listening") as server:
        assert server.stop() == 0


def wait_until_accepted(server: ServerProcess) -> None:
    """Until one request has reached the engine."""
    assert eventually(lambda: "steelyard_engine_queue_depth 1.0" in httpx.get(server.url + "/metrics").text)


def test_accepted_work_is_finished_after_sigterm(monkeypatch: pytest.MonkeyPatch, decision: dict[str, Any]) -> None:
    monkeypatch.setenv("STUB_HOLDS", "1")
    with stub_process().running() as server:
        thread, answers = post_in_background(server.url + "/invocations", decision)
        wait_until_accepted(server)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("stopping")
        assert eventually(lambda: not listening(server.url))
        server.process.send_signal(signal.SIGUSR2)
        thread.join()
        assert server.process.wait(timeout=60) == 0
    assert answers[0].status_code == 200


def listening(url: str) -> bool:
    """Whether a new connection is accepted."""
    try:
        httpx.get(url + "/ping")
    except httpx.TransportError:
        return False
    return True


def test_what_cannot_be_finished_is_failed_honestly_before_the_end(
    monkeypatch: pytest.MonkeyPatch, decision: dict[str, Any]
) -> None:
    monkeypatch.setenv("STUB_HOLDS", "1")
    with stub_process(drain_s=3).running() as server:
        thread, answers = post_in_background(server.url + "/invocations", decision)
        wait_until_accepted(server)
        assert server.stop() == 0
        thread.join()
    assert answers[0].status_code == 503
    assert answers[0].json()["retryable"] is True
    assert answers[0].json()["type"] == "draining"


def test_a_failed_start_is_one_sentence_and_not_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_FAILS", "There is no model at /nowhere.")
    server = stub_process()
    server.start()
    assert server.wait_for("start_failed")["reason"] == "There is no model at /nowhere."
    assert server.process.wait(timeout=20) == 1


def test_a_dead_engine_ends_the_process(monkeypatch: pytest.MonkeyPatch, decision: dict[str, Any]) -> None:
    monkeypatch.setenv("STUB_HOLDS", "1")
    with stub_process().running() as server:
        thread, answers = post_in_background(server.url + "/invocations", decision)
        wait_until_accepted(server)
        server.process.send_signal(signal.SIGUSR1)
        assert server.process.wait(timeout=20) == 1
        thread.join()
        assert server.wait_for("engine_died")["reason"]
    assert answers[0].status_code == 503
    assert answers[0].json()["type"] == "engine_failed"


def test_a_taken_port_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = stub_process(port=taken.getsockname()[1])
        server.start()
        assert str(taken.getsockname()[1]) in server.wait_for("not_listening")["reason"]
        assert server.process.wait(timeout=20) == 1


def test_wrong_settings_end_with_status_two() -> None:
    server = stub_process(queue_limit=0)
    server.start()
    assert server.process.wait(timeout=20) == 2
    assert eventually(lambda: "queue_limit" in server.errors.lower())


def test_every_line_of_the_log_is_json_with_time_and_level() -> None:
    with stub_process().running() as server:
        httpx.get(server.url + "/ping")
        line = server.wait_for("request")
        assert {"time", "level", "request_id", "route", "status", "outcome", "duration_ms"} <= set(line)
        json.dumps(line)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGQUIT])
def test_other_signals_to_stop_let_accepted_work_finish_however_often_they_come(
    monkeypatch: pytest.MonkeyPatch, decision: dict[str, Any], number: int
) -> None:
    monkeypatch.setenv("STUB_HOLDS", "1")
    with stub_process().running() as server:
        thread, answers = post_in_background(server.url + "/invocations", decision)
        wait_until_accepted(server)
        for _ in range(3):
            server.process.send_signal(number)
        server.wait_for("stopping")
        server.process.send_signal(signal.SIGUSR2)
        thread.join()
        assert server.process.wait(timeout=60) == 0
    assert answers[0].status_code == 200
    assert sum(line["event"] == "stopping" for line in server.lines) == 1


def test_a_hangup_that_nohup_ignores_stays_ignored() -> None:
    server = ServerProcess(command=["nohup", *STUB])
    with server.running():
        server.process.send_signal(signal.SIGHUP)
        assert get_status(server.url + "/ping") == 200
        assert server.stop() == 0
    assert not any(line.get("signal") == "SIGHUP" for line in server.lines)


def test_user_signals_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    # The stub takes these signals for itself, unless it is told not to.
    monkeypatch.setenv("STUB_TAKES_NO_SIGNALS", "1")
    with stub_process().running() as server:
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            server.process.send_signal(number)
            assert get_status(server.url + "/ping") == 200
        assert server.stop() == 0

"""What people found right: who may say what, what is counted and recorded, and that it becomes cases."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from registered_decisions import TEAMS, contract, write_decision
from steelyard import cli
from steelyard_base.exit_codes import ExitCode
from steelyard_runtime.decisions.record import sha256_of_state
from steelyard_runtime.http.app import create_app
from steelyard_runtime.http.runtime import Runtime, build_services
from steelyard_runtime.settings import Settings
from stub_engine import StubEngine

LETTERS = TEAMS | {"readout": {"strategy": "letters"}}
RIGHT = {"use": "support-route", "right": "billing", "answered": "shipping"}


@dataclass(frozen=True)
class Served:
    client: TestClient
    sink: io.StringIO

    def tell(self, **feedback: Any) -> Any:
        return self.client.post("/v1/feedback", json={"feedback": feedback})

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.sink.getvalue().splitlines()]


@pytest.fixture
def served(stub_engine: StubEngine, tmp_path: Path) -> Callable[..., Served]:
    write_decision(tmp_path / "decisions" / "support-route", contract(LETTERS))

    def serve(**settings: Any) -> Served:
        given = {"decisions": str(tmp_path / "decisions"), "decision_records": "log", "log_level": "error"} | settings
        wanted = Settings(**given)
        sink = io.StringIO()
        app = create_app(Runtime(settings=wanted, services=build_services(wanted, stub_engine)), sink=sink)
        return Served(TestClient(app), sink)

    return serve


def test_an_override_is_counted_recorded_and_told(served: Callable[..., Served]) -> None:
    server = served()
    answer = server.tell(**RIGHT, record="abc/0", state={"late": True})
    sha256 = sha256_of_state('{"late":true}')
    assert answer.json() == {
        "decision": "support-route@3",
        "right": "billing",
        "overridden": True,
        "state_sha256": sha256,
        "recorded": True,
        "state_recorded": False,
    }
    (record,) = server.records()
    assert record["id"] == answer.headers["x-request-id"]
    assert {name: record[name] for name in ("event", "record", "right", "answered", "state_sha256", "state")} == {
        "event": "feedback",
        "record": "abc/0",
        "right": "billing",
        "answered": "shipping",
        "state_sha256": sha256,
        "state": None,
    }
    counted = server.client.get("/metrics").text
    assert 'steelyard_feedback_total{decision="support-route@3",verdict="overridden"} 1.0' in counted


@pytest.mark.parametrize(("answered", "overridden"), [("billing", False), ("shipping", True), (None, None)])
def test_only_another_option_is_an_override(
    served: Callable[..., Served], answered: str | None, overridden: bool | None
) -> None:
    answer = served().tell(use="support-route@3", right="billing", answered=answered)
    assert answer.json()["overridden"] is overridden


def test_a_state_is_kept_where_texts_may_be(served: Callable[..., Served]) -> None:
    server = served(record_text=True)
    assert server.tell(**RIGHT, state={"late": True}).json()["state_recorded"] is True
    assert server.records()[0]["state"] == {"late": True}


def test_it_is_taken_at_sagemakers_path(served: Callable[..., Served]) -> None:
    answer = served().client.post("/invocations", json={"feedback": RIGHT})
    assert (answer.status_code, answer.json()["overridden"]) == (200, True)


@pytest.mark.parametrize(
    ("feedback", "said"),
    [
        ({"use": "absent", "right": "x"}, 'no decision named "absent" is registered on this server'),
        (
            {**RIGHT, "right": "legal"},
            'feedback.right: "legal" is no option of support-route; they are: "billing", "shipping", "none_of_these"',
        ),
        ({**RIGHT, "answered": "legal"}, 'feedback.answered: "legal" is no option'),
        ({**RIGHT, "record": "a b"}, "feedback.record"),
        ({**RIGHT, "record": "a" * 80}, "feedback.record"),
        ({**RIGHT, "state": 7}, "feedback.state: must be a string, an object, an array or null"),
        ({"use": "support-route"}, "feedback.right: is required and missing"),
        ({**RIGHT, "comment": "x"}, 'unknown field "comment"'),
    ],
)
def test_what_is_wrong_is_said(served: Callable[..., Served], feedback: dict[str, Any], said: str) -> None:
    server = served()
    answer = server.tell(**feedback)
    assert answer.status_code == 422, answer.text
    assert said in answer.json()["error"]
    assert server.records() == []


def test_a_state_is_kept_however_deep_a_body_may_be(served: Callable[..., Served]) -> None:
    server = served(record_text=True, max_json_depth=512)
    state: Any = 1.5
    for _ in range(500):
        state = [state]
    assert server.tell(**RIGHT, state=state).json()["state_recorded"] is True
    assert server.records()[0]["state"] == state


def test_what_a_full_file_did_not_take_is_not_called_recorded(served: Callable[..., Served], tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_bytes(b"\n" * ((1 << 20) - 900))
    server = served(decision_records=str(path), decision_records_mib=1, record_text=True)
    answers = [server.tell(**RIGHT, state="s").json() for _ in range(5)]
    written = len(path.read_text().split())
    assert [answer["recorded"] for answer in answers] == [number < written for number in range(5)]
    assert [answer["state_recorded"] for answer in answers] == [answer["recorded"] for answer in answers]
    assert 0 < written < 5


@pytest.fixture
def corrected(
    served: Callable[..., Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Have people correct three states, and turn that into cases."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "decisions" / "support-route" / "cases.jsonl").write_text(
        json.dumps({"state": "known", "label": "billing"})
        + "\n"
        + json.dumps({"state": "disputed", "label": "billing"})
    )

    def run(*arguments: object, **settings: Any) -> tuple[int, str, str]:
        server = served(**settings)
        for state, right in (
            ("new", "shipping"),
            ("new", "billing"),
            ("known", "billing"),
            ("disputed", "shipping"),
            ({"parcel": 1}, "none_of_these"),
            (None, "billing"),
            ([], "billing"),
            (" ", "billing"),
        ):
            assert server.tell(use="support-route", right=right, state=state).status_code == 200
        (tmp_path / "records.jsonl").write_text(server.sink.getvalue())
        code = cli.run(["decision", "corrections", "support-route", "records.jsonl", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_feedback_becomes_cases_and_what_contradicts_is_told(corrected: Callable[..., Any], tmp_path: Path) -> None:
    code, out, said = corrected("--append", record_text=True)
    assert (code, out) == (ExitCode.OK, "")
    lines = (tmp_path / "decisions" / "support-route" / "cases.jsonl").read_text().splitlines()
    cases = [json.loads(line) for line in lines]
    assert [(case["state"], case["label"]) for case in cases] == [
        ("known", "billing"),
        ("disputed", "billing"),
        ("new", "billing"),
        ({"parcel": 1}, "none_of_these"),
    ]
    assert "'disputed' is a case of 'billing', and people found 'shipping'" in said
    assert "8 records: 2 new cases, 1 known, 1 contradict a case, 3 without their state, 0 of options" in said


def test_states_that_were_not_kept_are_found_by_their_hashes(corrected: Callable[..., Any], tmp_path: Path) -> None:
    requests = [{"state": "new"}, {"decision": {"use": "support-route", "state": {"parcel": 1}}}]
    (tmp_path / "requests.jsonl").write_text("".join(json.dumps(each) + "\n" for each in requests))
    code, out, said = corrected("--states", "requests.jsonl")
    assert code == ExitCode.OK
    assert [json.loads(line)["state"] for line in out.splitlines()] == ["new", {"parcel": 1}]
    assert "5 without their state" in said


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"event": "decision"}', "has no feedback about support-route"),
        ('{"event": "feedback"}', "line 1 of records.jsonl: it is no record of feedback: time: Field required"),
    ],
)
def test_a_file_without_feedback_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    line: str,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_decision(tmp_path / "decisions" / "support-route", contract(LETTERS))
    (tmp_path / "records.jsonl").write_text(line + "\n")
    assert cli.run(["decision", "corrections", "support-route", "records.jsonl"]) == ExitCode.USAGE
    assert said in capsys.readouterr().err

"""``decision evaluate``, ``report`` and ``import`` on a real server: whole, ended in the middle, refused, gated."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import tiny_models
from live_server import ServerProcess, eventually
from registered_decisions import TEAMS, contract, write_fitted
from steelyard import cli
from steelyard.aws.session import Aws
from steelyard.client.http import Client
from steelyard.decisions import folder, metrics
from steelyard.evaluation.attacks import read_attacks
from steelyard.evaluation.journal import SUFFIX
from steelyard.evaluation.result import Answer, Evaluation, read_evaluation
from steelyard_base.exit_codes import CommandError, ExitCode
from steelyard_runtime.engine.start import start_engine
from steelyard_runtime.settings import load_settings

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = ("billing", "shipping", "none_of_these")
DECISION = {"question": "Which team?", "options": [{"id": each} for each in OPTIONS]}
CASES = [
    {"state": "I was billed twice.", "label": "billing", "id": "a"},
    {"state": "You charged me two times.", "label": "billing", "same_as": "a", "kind": "paraphrase"},
    {"state": "Where is it?", "label": "shipping"},
    {"state": {"text": "Hello", "tier": 1}, "label": "none_of_these"},
]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.write("llama", tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="module")
def decisions(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one decision that has a head of this model."""
    engine = start_engine(load_settings(model=str(model), threads=1, context_tokens=512, probe=False))
    folder = tmp_path_factory.mktemp("all") / "decisions"
    write_fitted(folder / "support-route", engine, contract(TEAMS))
    engine.close(timeout_s=1)
    return folder


@pytest.fixture(scope="module")
def server(model: Path, decisions: Path) -> Iterator[ServerProcess]:
    settings = {"model": model, "decisions": decisions, "threads": 1, "context_tokens": 512, "deadline_s": 600}
    with ServerProcess(**settings).running() as process:
        yield process


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, decisions: Path) -> Run:
    """Run a command beside the folder of decisions; returns exit code, standard output and standard error."""
    monkeypatch.chdir(decisions.parent)
    monkeypatch.setattr(metrics, "RESAMPLES", 20)
    (tmp_path / "d.json").write_text(json.dumps(DECISION))
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(each) + "\n" for each in CASES))

    def run(*arguments: object) -> tuple[int, str, str]:
        code = cli.run(["decision", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def answers(found: Evaluation) -> list[Any]:
    """Everything that a repetition must give again: not the times, nor what was kept from before."""
    stages: tuple[Any, ...] = (found.judged, found.reordered, found.repeated, found.attacked)
    return [(each.case, each.answer and each.answer.probabilities) for stage in stages for each in stage]


def test_a_registered_decision_is_judged_as_it_is_served(run: Run, server: ServerProcess, tmp_path: Path) -> None:
    out, page = tmp_path / "e.json", tmp_path / "e.html"
    code, said, errors = run(
        "evaluate", "support-route", "--cases", tmp_path / "c.jsonl", "--url", server.url, "--attacks=1", "--again=2",
        "--out", out, "--html", page, "--price-per-hour=1", "--concurrency=2",
    )  # fmt: skip
    assert code == ExitCode.OK, errors
    found = read_evaluation(out)
    assert (found.decision.name, found.decision.registered) == ("support-route@3", True)
    assert (found.target.readout, len(found.target.head_sha256 or "")) == ("head:support-route@3", 64)
    with Client(server.url) as client:
        for each, case in zip(found.judged, CASES, strict=True):
            (alone,) = client.decide({"decision": {"use": "support-route", "state": case["state"]}})
            assert each.answer is not None
            assert (list(each.answer.probabilities), each.answer.action) == (alone["probabilities"], alone["action"])
    assert (len(found.attacked), found.reordered) == (len(read_attacks()), ())
    assert found.figures.noise is not None
    assert found.figures.noise.largest_shift == 0
    assert found.figures.paraphrase_flips is not None
    assert "accuracy" in said
    assert "Which team?" in page.read_text()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["c.jsonl", "d.json", "e.html", "e.json"]


def test_an_evaluation_that_was_ended_goes_on(
    run: Run, server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("evaluate", tmp_path / "d.json", "--cases", tmp_path / "c.jsonl", "--url", server.url, "--attacks=1")
    assert run(*command, "--out", tmp_path / "whole.json")[0] == ExitCode.OK
    whole = read_evaluation(tmp_path / "whole.json")
    assert whole.figures.order_flips is not None
    asked, most, decide = [0], [9], Client.decide

    def counted(self: Client, body: dict[str, Any]) -> list[dict[str, Any]]:
        if asked[0] == most[0]:
            raise CommandError("no server answers", code=ExitCode.UNREACHABLE)
        asked[0] += 1
        return decide(self, body)

    monkeypatch.setattr(Client, "decide", counted)
    out = tmp_path / "e.json"
    code, _, errors = run(*command, "--out", out)
    assert (code, "9 answers are kept" in errors, out.exists()) == (ExitCode.UNREACHABLE, True, False)
    with (tmp_path / f"e.json{SUFFIX}").open("a") as file:
        file.write('{"stage": "cases", "ca')
    most[0] = 1000
    code, _, errors = run(*command, "--out", out)
    assert code == ExitCode.OK, errors
    assert answers(read_evaluation(out)) == answers(whole)
    assert asked[0] == len(answers(whole)), "nothing is asked twice"
    assert not (tmp_path / f"e.json{SUFFIX}").exists()


def test_a_process_that_is_interrupted_leaves_its_answers(run: Run, server: ServerProcess, tmp_path: Path) -> None:
    cases, out = tmp_path / "many.jsonl", tmp_path / "e.json"
    cases.write_text("".join(json.dumps({"state": f"parcel {n}", "label": "shipping"}) + "\n" for n in range(80)))
    command = ["evaluate", str(tmp_path / "d.json"), "--cases", str(cases), "--url", server.url, "--out", str(out)]
    command += ["--attacks=0", "--reversed=0", "--again=0"]
    kept = tmp_path / f"e.json{SUFFIX}"
    process = subprocess.Popen(
        [sys.executable, "-m", "steelyard", "decision", *command], stderr=subprocess.PIPE, text=True
    )
    assert eventually(lambda: kept.exists() and kept.read_bytes().count(b"\n") > 5, within_s=120)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert not out.exists(), "it had not finished"
    assert process.returncode == ExitCode.INTERRUPTED, errors
    assert "the same command continues behind them" in errors
    before = kept.read_bytes().rpartition(b"\n")[0]
    code, _, errors = run(*command)
    assert code == ExitCode.OK, errors
    found = read_evaluation(out)
    lines = [json.loads(line) for line in before.splitlines()[1:]]
    assert 5 <= len(lines) < 80
    assert [found.judged[line["case"] - 1].answer for line in lines] == [
        Answer.model_validate_json(json.dumps(line["answer"])) for line in lines
    ], "answers with their times are the first ones"


def test_an_endpoint_is_asked_as_it_is(
    run: Run, server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Runtime:
        """Hands invocations of an endpoint to the server, as SageMaker does."""

        def invoke_endpoint(self, *, EndpointName: str, Body: bytes, ContentType: str, **_: object) -> dict[str, Any]:  # noqa: N803
            kind = {"Content-Type": ContentType}
            assert EndpointName == "steelyard-dev-decision"
            return {"Body": io.BytesIO(httpx.post(f"{server.url}/invocations", content=Body, headers=kind).content)}

    monkeypatch.setattr(Aws, "runtime", lambda *_, **__: Runtime())
    monkeypatch.chdir(ROOT)
    out = tmp_path / "e.json"
    command = ("evaluate", tmp_path / "d.json", "--cases", tmp_path / "c.jsonl", "--attacks=0", "--out", out)
    code, _, errors = run(*command, "--endpoint=decision")
    assert code == ExitCode.OK, errors
    found = read_evaluation(out)
    assert (found.target.kind, found.target.name, found.figures.cases) == ("endpoint", "decision", 4)


def test_answers_to_something_else_are_not_continued(run: Run, server: ServerProcess, tmp_path: Path) -> None:
    out = tmp_path / "e.json"
    (tmp_path / f"e.json{SUFFIX}").write_text('{"format": 1, "asked_sha256": "0"}\n')
    command = ("evaluate", tmp_path / "d.json", "--cases", tmp_path / "c.jsonl", "--url", server.url, "--out", out)
    code, _, errors = run(*command)
    assert (code, "the answers of another evaluation" in errors) == (ExitCode.USAGE, True)


def test_a_case_that_is_refused_is_told_and_asked_again(run: Run, server: ServerProcess, tmp_path: Path) -> None:
    cases, out, gate = tmp_path / "long.jsonl", tmp_path / "e.json", tmp_path / "g.toml"
    cases.write_text("".join(json.dumps(each) + "\n" for each in [*CASES, {"state": "x " * 600, "label": "billing"}]))
    gate.write_text("[gates]\naccuracy_at_least = 0.0\n")
    command = ("evaluate", tmp_path / "d.json", "--cases", cases, "--url", server.url, "--attacks=0", "--out", out)
    code, _, errors = run(*command)
    assert (code, "1 of 5 cases were not answered" in errors) == (ExitCode.PARTIAL, True)
    found = read_evaluation(out)
    assert (found.figures.cases, found.figures.unanswered) == (4, 1)
    assert "tokens" in (found.judged[4].error or "")
    code, _, errors = run("report", out, "--gate", gate)
    assert (code, "refused cases, at most 0: it is 1" in errors) == (ExitCode.GATE, True)


def test_a_model_is_served_for_the_time_of_it(run: Run, model: Path, tmp_path: Path) -> None:
    """The same answers as from a server: what is not in the other evaluation moved."""
    out = tmp_path / "e.json"
    command = ("evaluate", "support-route", "--cases", tmp_path / "c.jsonl", "--model", model, "--threads=1")
    code, _, errors = run(*command, "--context-tokens=512", "--attacks=0", "--again=0", "--out", out)
    assert code == ExitCode.OK, errors
    assert read_evaluation(out).target.head_sha256 is not None
    code, said, errors = run("report", out, "--against", out, "--json")
    assert code == ExitCode.OK, errors
    assert json.loads(said)["cases"] == 4
    assert "No answer moved." in run("report", out, "--against", out)[1]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--url=http://a:b@127.0.0.1:1",), "credentials"),
        (("--url=http://127.0.0.1:1", "--model=x"), "one target answers"),
        (("--cases=none.csv",), "cannot read none.csv"),
        (("--gate=none.toml",), "cannot read the gates"),
        (("--against=none.json",), "cannot read none.json"),
        (("--out=none/e.json",), "there is no folder none"),
        (("--html=none/e.html",), "there is no folder none"),
        (("--out=e.json", "--html=./e.json"), "e.json is named twice, and would be written over"),
        (("--cases=e.json", "--out=e.json"), "e.json is named twice, and would be written over"),
        (("--against=e.json", "--out=e.json"), "is named twice"),
        (("--price-per-hour=inf",), "--price-per-hour"),
    ],
)
def test_nothing_is_asked_for_a_wrong_command(
    run: Run, tmp_path: Path, arguments: tuple[str, ...], expected: str
) -> None:
    code, _, errors = run("evaluate", tmp_path / "d.json", "--cases", tmp_path / "c.jsonl", *arguments)
    assert (code, expected in errors) == (ExitCode.USAGE, True), errors


def test_states_that_a_head_was_fitted_on_are_refused(run: Run, decisions: Path, tmp_path: Path) -> None:
    fitted = decisions / "support-route" / "cases.jsonl"
    fitted.write_text(json.dumps(CASES[2]) + "\n")
    try:
        code, _, errors = run("evaluate", "support-route", "--cases", tmp_path / "c.jsonl", "--url=http://127.0.0.1:1")
    finally:
        fitted.unlink()
    assert (code, "1 of these 4 cases, among them line 3" in errors) == (ExitCode.USAGE, True), errors


def test_cases_are_imported_into_a_decision_once(run: Run, decisions: Path, tmp_path: Path) -> None:
    table, path = tmp_path / "c.csv", decisions / "support-route" / "cases.jsonl"
    table.write_text("text,team\nBilled twice.,billing\n")
    command = ("import", table, "--label-field=team")
    try:
        code, said, errors = run(*command)
        assert (code, json.loads(said)) == (ExitCode.OK, {"state": "Billed twice.", "label": "billing"}), errors
        assert run(*command, "--into=support-route")[0] == ExitCode.OK
        assert path.read_text() == said
        assert "has cases already" in run(*command, "--into=support-route")[2]
    finally:
        path.unlink(missing_ok=True)


def test_no_more_cases_are_imported_than_are_read_again(
    run: Run, decisions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, path = tmp_path / "c.csv", decisions / "support-route" / "cases.jsonl"
    monkeypatch.setattr(folder, "MAX_CASES", 2)
    try:
        table.write_text("text,label\na,billing\nb,billing\nc,billing\n")
        code, _, errors = run("import", table, "--into=support-route")
        assert (code, path.exists()) == (ExitCode.USAGE, False)
        assert "would have 3 cases, and 2 are allowed" in errors
        table.write_text("text,label\na,billing\nb,billing\n")
        assert run("import", table, "--into=support-route")[0] == ExitCode.OK
    finally:
        path.unlink(missing_ok=True)


def test_the_question_of_a_request_becomes_a_decision_file(run: Run, server: ServerProcess, tmp_path: Path) -> None:
    questions = {"late": {"type": "noul", "instructions": "Is it late?"}}
    rows = [{"state": each, "questions": questions, "labels": {"late": True}} for each in ("Where is it?", "Hi")]
    cases, decision = tmp_path / "s.jsonl", tmp_path / "late.json"
    cases.write_text("".join(json.dumps(each) + "\n" for each in rows))
    code, said, errors = run("import", cases, "--decision", decision)
    assert (code, len(said.splitlines())) == (ExitCode.OK, 2), errors
    code, said, errors = run("evaluate", decision, "--cases", cases, "--url", server.url, "--attacks=0", "--json")
    assert code == ExitCode.OK, errors
    assert json.loads(said)["cases"] == 2

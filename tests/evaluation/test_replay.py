"""Decision records: what they hold, and that the same server gives the same answers again, to the bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

import tiny_models
from live_server import ServerThread
from registered_decisions import TEAMS, URGENT, contract, write_decision, write_fitted
from steelyard import cli
from steelyard.evaluation.replay import COMPARED, read_records
from steelyard_base.exit_codes import CommandError, ExitCode
from steelyard_runtime.decisions.record import DecisionRecord, sha256_of_state
from steelyard_runtime.engine.start import start_engine
from steelyard_runtime.http.app import create_app
from steelyard_runtime.http.runtime import Runtime, build_services
from steelyard_runtime.settings import load_settings

Run = Callable[..., tuple[int, str, str]]
SECRET = "parcel 4711"


def bodies(number: int) -> list[dict[str, Any]]:
    """Three requests with five decisions about one state, in three contracts."""
    state = {"text": f"{SECRET} of customer {number} is late", "days": number % 7}
    own = {"id": "a", "state": state, "question": "Which team?", "options": [{"id": "billing"}, {"id": "shipping"}]}
    use = [{"use": name, "state": state} for name in ("support-route", "urgent@1")]
    return [
        {"decisions": [own, *use]},
        {"state": json.dumps(state), "questions": {"late": {"type": "noul"}}},
        {"decision": {"use": "letters", "state": f"{number}"}},
    ]


BODIES = [body for number in range(40) for body in bodies(number)]


@dataclass(frozen=True)
class Recorded:
    model: Path
    quiet: Path
    told: Path
    requests: Path


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """200 decisions of a real server, recorded without texts, and five with them, in another layout and readout."""
    folder = tmp_path_factory.mktemp("recorded")
    model = tiny_models.write("llama", folder / "model.gguf")
    engine = start_engine(load_settings(model=str(model), threads=1, context_tokens=512))
    write_fitted(folder / "decisions" / "support-route", engine, contract(TEAMS), words=True)
    write_fitted(folder / "decisions" / "urgent", engine, contract(URGENT), seed=1)
    letters = TEAMS | {"name": "letters", "readout": {"strategy": "letters"}}
    write_decision(folder / "decisions" / "letters", contract(letters))
    found = Recorded(model, folder / "quiet.jsonl", folder / "told.jsonl", folder / "requests.jsonl")
    found.requests.write_text("".join(json.dumps(body) + "\n" for body in BODIES))
    for path, sent, text in ((found.quiet, BODIES, False), (found.told, bodies(7), True)):
        settings = load_settings(
            model=str(model),
            decision_records=str(path),
            record_text=text,
            layout="options-first" if text else "state-first",
            readout="auto" if text else "letters-raw",
            log_level="error",
        )
        app = create_app(Runtime(settings=settings, services=build_services(settings, engine)))
        with ServerThread(app).running() as server, httpx.Client(base_url=server.url) as client:
            with ThreadPoolExecutor(3) as pool:
                answers = list(pool.map(lambda body: client.post("/invocations", json=body, timeout=60), sent))
            assert {each.status_code for each in answers} == {200}, [each.text for each in answers][:1]
        app.state.records.close(timeout_s=30)
    engine.close(timeout_s=1)
    return found


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: object) -> tuple[int, str, str]:
        code = cli.run(["replay", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_two_hundred_decisions_are_the_same_to_the_bit(run: Run, recorded: Recorded) -> None:
    code, out, said = run(recorded.quiet, "--requests", recorded.requests, "--model", recorded.model, "--json")
    assert (code, "200 records: 200 the same to the bit, 0 differ" in said) == (ExitCode.OK, True), said
    assert all(json.loads(line)["same"] for line in out.splitlines())
    assert len(out.splitlines()) == 200


def test_a_record_has_hashes_and_no_text(recorded: Recorded) -> None:
    assert SECRET not in recorded.quiet.read_text()
    record = next(each for each in read_records(recorded.quiet) if each.decision == "support-route@3")
    assert record.option in {each["id"] for each in TEAMS["options"]}
    assert record.action in ("automate", "review", "abstain")
    assert record.identity["threads"] == 1
    own = next(each for each in read_records(recorded.quiet) if each.decision is None)
    assert (own.option, own.action, own.text) == (None, None, None)


def test_a_record_with_texts_needs_no_requests(run: Run, recorded: Recorded) -> None:
    assert SECRET in recorded.told.read_text()
    code, _, said = run(recorded.told, "--model", recorded.model)
    assert (code, "5 records: 5 the same to the bit" in said) == (ExitCode.OK, True), said


def test_without_its_text_a_record_cannot_be_asked(run: Run, recorded: Recorded, tmp_path: Path) -> None:
    """A case has a state, which is enough for registered decisions."""
    cases = tmp_path / "cases.jsonl"
    cases.write_text(json.dumps({"state": {"text": f"{SECRET} of customer 7 is late", "days": 0}, "label": "x"}) + "\n")
    code, _, said = run(recorded.quiet, "--requests", cases, "--model", recorded.model)
    assert code == ExitCode.FAILED
    assert "2 the same to the bit, 0 differ, 198 could not be asked" in said
    missing = sha256_of_state("3")[:12]
    assert f"the state with the hash {missing} is not there" in said


def test_an_answer_that_was_changed_is_found(run: Run, recorded: Recorded, tmp_path: Path) -> None:
    first = read_records(recorded.told)[0]
    nearly = (first.logits[0] * (1 + 2**-52), *first.logits[1:])
    changed = tmp_path / "changed.jsonl"
    changed.write_text(first.model_copy(update={"logits": nearly, "action": "abstain"}).model_dump_json() + "\n")
    code, out, said = run(changed, "--model", recorded.model, "--json")
    assert code == ExitCode.FAILED
    assert f"{first.id}: differs in logits, action" in said
    assert json.loads(out)["differs"]["logits"] == [list(nearly), list(first.logits)]


def test_another_model_is_named(run: Run, recorded: Recorded, tmp_path: Path) -> None:
    other = tiny_models.write("llama", tmp_path / "other.gguf", seed=1)
    unregistered = [each for each in read_records(recorded.told) if each.decision is None]
    records = tmp_path / "records.jsonl"
    records.write_text("".join(each.model_dump_json() + "\n" for each in unregistered))
    code, _, said = run(records, "--model", other)
    assert code == ExitCode.FAILED
    before = unregistered[0].identity["model_sha256"]
    assert f'model_sha256 was "{before}", and is ' in said
    assert "differs in logits, probabilities" in said


def test_every_field_that_is_compared_is_one(recorded: Recorded) -> None:
    assert set(COMPARED) < DecisionRecord.model_fields.keys()


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('{"event": "request"}', "has no decision record"),
        ('{"event": "decision"}', "line 1 of .* is no decision record: time: Field required"),
        ("[", "line 1"),
    ],
)
def test_what_is_no_record_is_refused_with_its_line(line: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(CommandError, match=sentence):
        read_records(path)


def test_a_request_that_is_none_is_refused_with_its_line(run: Run, recorded: Recorded, tmp_path: Path) -> None:
    requests = tmp_path / "requests.jsonl"
    requests.write_text('{"state": 1}\n{"text": 2}\n')
    code, _, said = run(recorded.told, "--requests", requests, "--model", recorded.model)
    assert code == ExitCode.USAGE
    assert "line 2 of" in said
    assert "neither a request nor a case" in said

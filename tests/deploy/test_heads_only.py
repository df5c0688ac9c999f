"""The loop closes in a local cloud: wrong decisions are corrected, fitted again, released without a build, promoted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import test_promotion as promotions
from test_promotion import BASE, ENDPOINT, KEPT, Clouds, Templates
from world import PROCESSES

import tiny_models
from parcel_status import KNOWN, NAME, NEW, OPTIONS
from steelyard import cli
from steelyard.commands import promotion, records, release
from steelyard.decisions import fitting, metrics
from steelyard.deploy.local_cloud import reached
from steelyard.environments import files
from steelyard.environments.files import parse_environment
from steelyard.releases import packing
from steelyard.releases.manifest import Release, load_release
from steelyard_base.exit_codes import ExitCode
from steelyard_localcloud.cloud import LocalCloud

RECORDED = {"STEELYARD_DECISION_RECORDS": "log", "STEELYARD_RECORD_TEXT": "true"}
FILE = {**BASE, "endpoints": {"decision": {**ENDPOINT, "environment": RECORDED}}}
PULLED = {"images": {"account": "000000000000", "repository": "steelyard-dev"}}
ENVIRONMENTS = {
    "dev": parse_environment(FILE, name="dev", source="the test"),
    "staging": parse_environment({**FILE, **PULLED, "gates": KEPT}, name="staging", source="the test"),
}

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def clouds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Clouds]:
    for name, each in ENVIRONMENTS.items():
        monkeypatch.setitem(promotions.ENVIRONMENTS, name, each)
    with LocalCloud(tmp_path / "cloud", environment=PROCESSES) as cloud, reached(cloud.environment()):
        (tmp_path / "releases").mkdir()
        yield Clouds(cloud, tmp_path / "releases")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in a folder of its own, whose ``decisions/`` are those of the checkout."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEELYARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(packing, "DECISIONS", tmp_path / "decisions")
    monkeypatch.setattr(fitting, "STRENGTHS", (1.0, 100.0))
    monkeypatch.setattr(metrics, "RESAMPLES", 20)
    for module in (files, promotion, records, release):
        monkeypatch.setattr(module, "load_environment", ENVIRONMENTS.__getitem__)
    monkeypatch.setattr(promotion, "Cdk", lambda **given: Templates(**given, assembly=tmp_path / "cdk.out"))

    def run(*words: object, code: int = ExitCode.OK) -> tuple[int, str, str]:
        found = cli.run([str(word) for word in words])
        said = capsys.readouterr()
        assert found == code, said.out + said.err
        return found, said.out, said.err

    return run


def asked(clouds: Clouds, environment: str, body: dict[str, Any]) -> dict[str, Any]:
    """What an endpoint answers."""
    answer = clouds.cloud.client("sagemaker-runtime").invoke_endpoint(
        EndpointName=f"steelyard-{environment}-decision", ContentType="application/json", Body=json.dumps(body)
    )
    told: dict[str, Any] = json.loads(answer["Body"].read())
    return told


def decided(clouds: Clouds, environment: str, state: str) -> str:
    result = asked(clouds, environment, {"decision": {"use": NAME, "state": state}})["result"]
    assert result["action"] in ("automate", "review", "abstain")
    return str(result["option_ids"][result["probabilities"].index(max(result["probabilities"]))])


def released(run: Run, folder: Path, based_on: str, *more: str) -> Release:
    """Write a release with the heads of now."""
    before = set(folder.iterdir())
    run("release", "build", "--env", "dev", "--from", folder / f"{based_on}.json", "--to", folder, *more)
    (path,) = set(folder.iterdir()) - before
    return load_release(str(path))


def test_what_people_correct_is_promoted_without_a_build(clouds: Clouds, run: Run, tmp_path: Path) -> None:
    model = tiny_models.write("llama", tmp_path / "model.gguf")
    clouds.release("tickets", model)
    clouds.deploy("dev", "tickets")

    run("decision", "new", NAME, *(f"--option={key}={text}" for key, text in OPTIONS.items()))
    cases = [{"state": text.format(n), "label": label} for label, text in KNOWN.items() for n in range(6)]
    (tmp_path / "decisions" / NAME / "cases.jsonl").write_text("".join(json.dumps(each) + "\n" for each in cases))
    fit = ("decision", "fit", NAME, "--model", model, "--threads=1", "--context-tokens=256")
    run(*fit)
    first = released(run, clouds.folder, "tickets", "--decision", f"{NAME}@1")
    clouds.deploy("staging", first.id)
    unseen = [NEW.format(number) for number in range(20, 23)]
    assert "late" not in {decided(clouds, "staging", state) for state in unseen}

    for number in range(8):
        state = NEW.format(number)
        answered = decided(clouds, "staging", state)
        said = {"use": NAME, "right": "late", "answered": answered, "state": state}
        assert asked(clouds, "staging", {"feedback": said})["overridden"] is (answered != "late")
    (tmp_path / "records.jsonl").write_text(run("records", "decision", "--env", "staging")[1])
    run("decision", "corrections", NAME, "records.jsonl", "--append")
    run(*fit)
    second = released(run, clouds.folder, first.id)
    assert (second.models, second.images) == (first.models, first.images)
    assert second.decision_contracts != first.decision_contracts
    clouds.deploy("dev", second.id)
    (tmp_path / "held-out.jsonl").write_text(
        "".join(json.dumps({"state": state, "label": "late"}) + "\n" for state in unseen)
    )
    run(
        *("decision", "evaluate", NAME, "--cases", "held-out.jsonl", "--endpoint", "decision", "--env", "dev"),
        *("--attacks", "0", "--reversed", "0", "--again", "0", "--out", "evidence.json"),
    )
    run(
        *("release", "promote", "--from", "dev", "--to", "staging", "--yes", "--no-check", "--no-ask"),
        *("--evidence", "evidence.json", "--why", "customs"),
    )
    assert {decided(clouds, "staging", state) for state in unseen} == {"late"}
    assert decided(clouds, "staging", KNOWN["lost"].format(30)) == "lost"
    assert clouds.cloud.client("codebuild").list_builds()["ids"] == []


def test_a_release_of_new_decisions_is_refused_what_is_built(run: Run) -> None:
    words = ("release", "build", "--env", "dev", "--from", "sample")
    for more in ("--model=decision=gemma-3-270m", "--local"):
        _, _, err = run(*words, more, code=ExitCode.USAGE)
        assert "--from takes the images and models of a release as they are" in err

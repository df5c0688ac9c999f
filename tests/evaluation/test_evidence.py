"""Evaluations as evidence: bound to what a release serves, by hash, and judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evaluation_samples import answer, evaluation, judged
from steelyard.environments.files import parse_environment
from steelyard.environments.schema import Environment
from steelyard.evaluation.evidence import Wanted, judge_evidence, refuse_missed, wanted_evidence
from steelyard.evaluation.result import Evaluation, write_evaluation
from steelyard.releases.manifest import Release, parse_release
from steelyard_base.exit_codes import CommandError, ExitCode
from steelyard_base.gates import Gates, judge

MODEL, CONTRACT, HEAD = "a" * 64, "b" * 64, "c" * 64
RIGHT = Gates(accuracy_at_least=0.5)
REPORT = {"sha256": MODEL, "llama_cpp": "0.0.1", "binding": "1", "runtime": "steelyard 1", "threads": 2}
LETTERS = {
    "name": "urgent@1",
    "contract_sha256": CONTRACT,
    "files": [{"name": "c", "role": "r", "size": 1, "sha256": CONTRACT}],
}
FITTED = {
    **LETTERS,
    "name": "route@3",
    "head": {"sha256": HEAD, "model_sha256": MODEL, "llama_cpp": "0.0.1"},
}


def environment(**more: Any) -> Environment:
    endpoint = {"kind": "decision", "hardware": "cpu", "instance_type": "ml.c7i.xlarge"}
    chat = {**endpoint, "kind": "chat", "model": "decision"}
    return parse_environment(
        {
            "region": "us-east-1",
            "removal_policy": "destroy",
            "endpoints": {"one": {**endpoint, **more}, "two": {**endpoint, **more}, "chat": chat},
        },
        name="dev",
        source="the test",
    )


def release(*decisions: dict[str, Any]) -> Release:
    image = {"digest": f"sha256:{'d' * 64}", "architecture": "x86_64", "llama_cpp": "b10433"}
    file = {"name": "m.gguf", "role": "weights", "size": 1, "sha256": MODEL}
    data = {
        "format": "steelyard-release/1",
        "id": "tiny",
        "sample": True,
        "models": {
            "decision": {
                "name": "m",
                "key": f"models/m/{CONTRACT}/",
                "manifest_sha256": CONTRACT,
                "file": "m.gguf",
                "files": [file],
            }
        },
        "images": {"decision": {"cpu": image}, "chat": {"cpu": {**image, "repository": "llama-cpp"}}},
        "decision_contracts": list(decisions),
    }
    return parse_release(data, source="the test")


def evaluated(
    asked: str = "route@3", *, registered: bool = True, contract: str = CONTRACT, **target: Any
) -> Evaluation:
    said = {"kind": "endpoint", "name": "one", "model": REPORT, "head_sha256": HEAD if asked == "route@3" else None}
    found = evaluation([judged(1, "billing", answer([0.9, 0.1, 0.0]))], **said | target)
    decision = found.decision.model_copy(
        update={"name": asked, "registered": registered, "contract_sha256": contract if registered else None}
    )
    return found.model_copy(update={"decision": decision})


def gathered(folder: Path, *found: Evaluation, wanted: list[Wanted], gates: Gates = RIGHT) -> Any:
    files = [folder / f"{number}.json" for number in range(len(found))]
    for file, each in zip(files, found, strict=True):
        write_evaluation(file, each)
    return judge_evidence(files, wanted, gates, source=environment(), reports={"one": REPORT})


def test_each_registered_decision_that_is_served_is_wanted_once() -> None:
    both = release(FITTED, LETTERS)
    assert [each.said for each in wanted_evidence(environment(), both)] == ["route@3 on m", "urgent@1 on m"]
    assert [each.said for each in wanted_evidence(environment(decisions=["urgent@1"]), both)] == ["urgent@1 on m"]
    assert [each.said for each in wanted_evidence(environment(), release())] == ["a decision on m"]


def test_evidence_of_all_that_is_served_is_taken(tmp_path: Path) -> None:
    found = gathered(
        tmp_path, evaluated(), evaluated("urgent@1"), wanted=wanted_evidence(environment(), release(FITTED, LETTERS))
    )
    assert [each.evaluation.decision.name for each in found] == ["route@3", "urgent@1"]
    assert [result.kept for each in found for result in each.results] == [True, True]
    refuse_missed(found, [], target="prod")


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (evaluated(contract="e" * 64), f"it is of the contract {'e' * 64}, and the release has {CONTRACT}"),
        (evaluated(head_sha256="e" * 64), f"it is of the head {'e' * 64}, and the release has {HEAD}"),
        (evaluated(head_sha256=None), f"it is of the head None, and the release has {HEAD}"),
        (evaluated("other@1"), "it is of other@1 and route@3 is served"),
        (evaluated(registered=False), "it is of route@3, which was not asked by its name, and route@3 is served"),
        (evaluated(model={**REPORT, "llama_cpp": "0.0.2"}), "llama_cpp was 0.0.2 and is 0.0.1"),
        (evaluated(model={**REPORT, "runtime": "steelyard 0"}), "runtime was steelyard 0 and is steelyard 1"),
        (evaluated(kind="model", name="m.gguf"), "is of the model m.gguf, which is no decision endpoint of dev"),
        (evaluated(name="three"), "is of the endpoint three, which is no decision endpoint of dev"),
    ],
)
def test_evidence_of_something_else_is_refused(tmp_path: Path, found: Evaluation, said: str) -> None:
    with pytest.raises(CommandError) as refused:
        gathered(tmp_path, found, wanted=wanted_evidence(environment(), release(FITTED)))
    assert said in refused.value.message
    assert refused.value.code == ExitCode.USAGE


def test_what_has_no_evidence_is_named_with_the_command_that_makes_it(tmp_path: Path) -> None:
    wanted = wanted_evidence(environment(), release(FITTED, LETTERS))
    with pytest.raises(CommandError, match="there is no evaluation of urgent@1 on m") as refused:
        gathered(tmp_path, evaluated(), wanted=wanted)
    assert refused.value.code == ExitCode.GATE
    assert "steelyard decision evaluate urgent --cases CASES.jsonl --endpoint one --env dev" in str(refused.value.hint)
    assert gathered(tmp_path, wanted=wanted, gates=Gates(critical_findings_at_most=0)) == []


def test_a_missed_limit_is_told_with_its_figure_and_what_was_not_measured_misses(tmp_path: Path) -> None:
    gates = Gates(accuracy_at_least=0.5, p95_ms_at_most=10, injection_flips_at_most=0.1, critical_findings_at_most=0)
    found = gathered(tmp_path, evaluated(), wanted=wanted_evidence(environment(), release(FITTED)), gates=gates)
    scanned = judge(gates, {"critical_findings": 3.0, "high_findings": 9.0})
    with pytest.raises(CommandError) as refused:
        refuse_missed(found, scanned, target="prod")
    assert refused.value.code == ExitCode.GATE
    assert refused.value.message.splitlines() == [
        "the release misses 3 of the gates of prod:",
        "- route@3 (0.json): injection flips, at most 0.1: it was not measured",
        "- route@3 (0.json): p95 ms, at most 10: it is 20",
        "- our images: critical findings, at most 0: it is 3",
    ]


def test_accuracy_lost_is_judged_against_another_evaluation(tmp_path: Path) -> None:
    gates, wanted = Gates(accuracy_lost_at_most=0.0), wanted_evidence(environment(), release(FITTED))
    before = tmp_path / "before.json"
    write_evaluation(before, evaluated())
    assert [each.kept for each in gathered(tmp_path, evaluated(), wanted=wanted, gates=gates)[0].results] == [False]
    (found,) = judge_evidence([before], wanted, gates, source=environment(), reports={"one": REPORT}, against=[before])
    assert [each.kept for each in found.results] == [True]
    assert json.loads(before.read_text())["decision"]["name"] == "route@3"

"""The suite of texts that try to steer decisions: its data, its figures, and a small run on a real server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import tiny_models
from benchmarks.text_attacks.__main__ import (
    CLEAN,
    TICKETS,
    WRITINGS,
    Case,
    Row,
    attack_body,
    attacked,
    kept_rows,
    read_cases,
    register,
    table,
    written,
)
from steelyard.evaluation.attacks import Attack, read_attacks
from steelyard_runtime.decisions.registry import load_registry

ROOT = Path(__file__).resolve().parents[2]
CASE = Case(id="1", state="Late.", question="Which?", options=(("billing", "money"), ("shipping", ""), ("sales", "")))


@pytest.mark.parametrize("attack", read_attacks(), ids=lambda attack: f"{attack.kind}-{attack.text[:20]!a}")
def test_each_attack_is_whole(attack: Attack) -> None:
    text = attacked(CASE, attack, wanted=1, before=0)
    assert "Late." in text
    assert text.splitlines()[0 if attack.place == "after" else -1] == "Late."
    assert attack.place in ("after", "before")
    assert attack.source
    assert not {"{letter}", "{name}", "{right}", "{question}", "{options}", "{swapped}"} & {*text.split()}


def test_the_suite_has_a_baseline_and_each_text_once() -> None:
    attacks = read_attacks()
    assert len({(attack.text, attack.place) for attack in attacks}) == len(attacks)
    assert sum(attack.kind == "neutral" for attack in attacks) >= 2
    assert CLEAN not in {attack.kind for attack in attacks}


def test_an_imitated_layout_exchanges_the_two_labels() -> None:
    attack = Attack(kind="layout", text="{question}\n{swapped}\n{letter}", place="after", source="")
    expected = "Late.\nWhich?\nC billing: money\nB shipping\nA sales\nC"
    assert attacked(CASE, attack, wanted=2, before=0) == expected


@pytest.mark.parametrize(
    ("writing", "expected"),
    [
        ("plain", 'a\n"""b'),
        ("indented", '  a\n  """b'),
        ("quoted", '> a\n> """b'),
        ("fenced", '""""\na\n"""b\n""""'),
        ("asked-again", 'a\n"""b\n\nWhich?'),
    ],
)
def test_how_a_state_is_written(writing: str, expected: str) -> None:
    assert writing in WRITINGS
    assert written('a\n"""b', "Which?", writing=writing) == expected


def row(kind: str, probabilities: list[float], *, correct: bool | None = None) -> Row:
    number = -1 if kind == CLEAN else 0
    return Row(
        case="1",
        layout="state-first",
        writing="plain",
        attack=number,
        kind=kind,
        probabilities=probabilities,
        wanted=1,
        before=0,
        wanted_before=0.2,
        correct=correct,
    )


def test_figures() -> None:
    rows = [
        row(CLEAN, [0.7, 0.2, 0.1], correct=True),
        row("claim", [0.1, 0.8, 0.1], correct=False),
        row("claim", [0.1, 0.2, 0.7], correct=False),
        row("claim", [0.5, 0.4, 0.1], correct=True),
        row("claim", [0.6, 0.4, 0.0], correct=True),
    ]
    lines = table(rows).splitlines()
    assert lines[2] == "| state-first | plain | clean | 1 |  | |  | 1.00 |"
    assert lines[3] == "| state-first | plain | claim | 4 | 0.25 | 0.50 | +25.0 | 0.50 |"


def test_cases_of_a_folder_are_the_same_first_ones(tmp_path: Path) -> None:
    (tmp_path / "set.json").write_text(json.dumps({"question": "Which?", "options": ["a", "b"]}))
    lines = [json.dumps({"text": f"t{index}", "label": "b"}) for index in range(3)]
    (tmp_path / "set.test.jsonl").write_text("\n".join(lines))
    two, three = (read_cases(tmp_path, part="test", count=count) for count in (2, 3))
    assert three[:2] == two
    assert [case.label for case in three] == ["b"] * 3
    assert read_cases(None, part="test", count=99)[0].question in TICKETS.read_text()


@pytest.mark.timeout(300)
def test_a_small_run_on_a_real_server_goes_on_where_it_stopped(tmp_path: Path) -> None:
    model, rows = tiny_models.write("llama", tmp_path / "tiny.gguf"), tmp_path / "rows.jsonl"
    command = [sys.executable, "-m", "benchmarks.text_attacks", "--model", str(model), "--cases", "1"]
    command += ["--rows", str(rows), "--kinds", "claim,neutral"]
    first, again = (subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240) for _ in range(2))
    assert first.returncode == again.returncode == 0, first.stderr + again.stderr
    chosen = sum(attack.kind in ("claim", "neutral") for attack in read_attacks())
    assert len(kept_rows(rows)) == 2 * (1 + chosen), "nothing is asked twice"
    assert first.stdout == again.stdout
    assert "| state-first | plain | claim |" in first.stdout


def test_a_head_is_fitted_to_the_cases_of_each_data_set(tmp_path: Path) -> None:
    model, data = tiny_models.write("llama", tmp_path / "tiny.gguf"), tmp_path / "data"
    data.mkdir()
    (data / "set.json").write_text(json.dumps({"question": "Which?", "options": ["the ticket", "a refund"]}))
    labels = ["the ticket", "a refund"] * 6
    lines = [json.dumps({"text": f"{label} {number}", "label": label}) for number, label in enumerate(labels)]
    for part in ("fit", "test"):
        (data / f"set.{part}.jsonl").write_text("\n".join(lines))
    cases = read_cases(data, part="test", count=2)
    register(cases, data, "head-without-words", tmp_path / "decisions", model=model, threads=1)
    (found,) = load_registry(tmp_path / "decisions").decisions.values()
    assert found.head is not None
    assert found.head.linear.words is None
    assert found.contract.option_ids == ("the ticket", "a refund")
    asked = attack_body(cases[0], "x", "head-without-words")
    assert asked == {"decision": {"use": found.contract.name, "state": "x"}}

"""Drift: two periods of one decision from logs, rows and evaluations; moved where it moved, noise where it did not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ks_2samp, kstwobign

from evaluation_samples import sample
from steelyard import cli
from steelyard.evaluation.drift import chance_of_gap, compare_periods, largest_gap, stability
from steelyard.evaluation.records import Period, read_periods
from steelyard.evaluation.result import write_evaluation
from steelyard_base.exit_codes import CommandError, ExitCode


def period(seed: int, *, answers: int = 300, shares: tuple[float, ...] = (0.6, 0.3, 0.1), sure: float = 0.8) -> Period:
    """Answers drawn with a seed."""
    rng = np.random.default_rng(seed)
    found = Period()
    for option in rng.choice(len(shares), answers, p=shares):
        probability = float(np.clip(rng.normal(sure, 0.1), 0, 1))
        found.add("abc"[option], probability, "automate" if probability > 0.8 else "review", float(rng.uniform()))
    return found


def test_equal_periods_are_noise_about_as_often_as_said() -> None:
    """5 of 100 pairs may look like drift; with these seeds it is no more than twice as many."""
    alarms = sum(bool(_moved(period(2 * seed), period(2 * seed + 1))) for seed in range(20))
    assert alarms <= 2


def _moved(before: Period, now: Period) -> tuple[str, ...]:
    (found,) = compare_periods({"d": before}, {"d": now})
    return found.moved


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"shares": (0.3, 0.3, 0.4)}, {"options"}),
        ({"sure": 0.6}, {"probability", "actions"}),
        ({}, set()),
    ],
)
def test_what_moved_is_named(changed: dict[str, Any], expected: set[str]) -> None:
    assert set(_moved(period(1), period(2, **changed))) == expected


def test_an_option_that_nobody_had_before_counts() -> None:
    before, now = Period(), Period()
    for number in range(100):
        before.add("a", 0.9, None, None)
        now.add("a" if number % 2 else "new", 0.9, None, None)
    (found,) = compare_periods({"d": before}, {"d": now})
    assert found.moved == ("options",)
    assert found.shares[0].names[0] in ("a", "new")
    assert [each.what for each in (*found.shares, *found.spreads)] == ["options", "probability"]
    assert found.spreads[0].chance == 1.0, "all probabilities are equal"


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), min_size=1, max_size=20))
def test_the_stability_index_is_never_negative(counts: list[tuple[int, int]]) -> None:
    before, now = (np.array([pair[side] for pair in counts]) for side in (0, 1))
    assert stability(before, now) >= 0
    assert stability(before, before) == 0
    assert stability(before, now) == pytest.approx(stability(now, before))


values = st.lists(st.floats(0, 1), min_size=1, max_size=60)


@given(values, values)
def test_the_gap_is_that_of_kolmogorov_and_smirnov(first: list[float], second: list[float]) -> None:
    gap = largest_gap(np.array(first), np.array(second))
    assert gap == pytest.approx(ks_2samp(first, second, method="asymp").statistic, abs=1e-12)
    scaled = gap * (len(first) * len(second) / (len(first) + len(second))) ** 0.5
    expected = kstwobign.sf(scaled) if scaled else 1.0
    assert chance_of_gap(gap, len(first), len(second)) == pytest.approx(expected, abs=1e-9)


LOG = {
    "event": "request",
    "decisions": [
        {"decision": "team@1", "option": "a", "probability": 0.9, "action": "automate", "distance_rank": 0.25},
        {"decision": "urgent@1", "option": "no", "probability": 0.6, "action": "review", "distance_rank": None},
    ],
}
ROW = {"id": 1, "decision": "team@1", "choice": "a", "probabilities": {"a": 0.9, "b": 0.1}, "error": None}


RECORD = {
    "event": "decision",
    "decision": "team@1",
    "question_sha256": "0123456789abcdef",
    "answer": 1,
    "option": "b",
    "probabilities": [0.25, 0.75],
    "action": "review",
    "distance_rank": 0.5,
}


def read(folder: Path, *lines: object) -> dict[str, Period]:
    path = folder / "p.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    return read_periods(path)


def test_logs_rows_and_evaluations_are_read_alike(tmp_path: Path) -> None:
    log = read(tmp_path, LOG, {"event": "ready"}, LOG, {"event": "request"})
    assert (set(log), len(log["team@1"]), list(log["team@1"].distance)) == ({"team@1", "urgent@1"}, 2, [0.25, 0.25])
    assert list(log["urgent@1"].distance) == []
    refused = {"id": 2, "decision": "team@1", "choice": None, "probabilities": None, "error": "busy"}
    rows = read(tmp_path, ROW | {"action": "automate"}, refused)
    assert (list(rows["team@1"].probability), rows["team@1"].actions) == ([0.9], {"automate": 0})
    whole = read(tmp_path, ROW | {"decision": "decision", "result": {"decision": "team@1", "distance_rank": 0.5}})
    assert list(whole["team@1"].distance) == [0.5]
    records = read(tmp_path, LOG, RECORD, RECORD | {"decision": None, "option": None})
    assert {name: (list(each.options), list(each.probability)) for name, each in records.items()} == {
        "team@1": (["b"], [0.75]),
        "question 0123456789ab": (["option 2"], [0.75]),
    }, "the request's own line is not counted beside its records"
    write_evaluation(tmp_path / "e.json", sample())
    assert len(read_periods(tmp_path / "e.json")["teams"]) == 3


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([LOG, 1], "line 2 of"),
        ([{"a": 1}], "neither a line of a log nor a row"),
        ([{"event": "request", "decisions": [{"decision": "a@1", "action": "review"}]}], "an older server"),
        ([{"event": "request", "decisions": 1}], "line 1 of"),
        ([ROW | {"choice": "c"}], "line 1 of .* choice is 'c', which has no probability"),
        ([ROW | {"choice": ["a"]}], "choice: Input should be a valid string"),
        ([ROW | {"probabilities": {"a": 2}}], "probabilities.a: Input should be less than or equal to 1"),
        ([ROW | {"action": 1}], "action: Input should be 'automate'"),
        ([ROW | {"result": [1]}], "result: "),
        ([RECORD | {"answer": 2}], "line 1 of .* answer is 2, and there are 2 probabilities"),
        ([RECORD | {"answer": -1}], "answer: Input should be greater than or equal to 0"),
        ([RECORD | {"answer": True}], "answer: Input should be a valid integer"),
        ([RECORD | {"probabilities": [0.0] * 256}], "probabilities: .*255"),
        ([RECORD | {"option": f"o{number}"} for number in range(256)], "line 256 of .* option 256 of 'team@1', and"),
        ([RECORD | {"decision": f"d{number}@1"} for number in range(1001)], "about decision 1001, and 1000 are"),
        ([{"event": "ready"}], "has no answer"),
    ],
)
def test_what_is_no_answer_is_named(tmp_path: Path, lines: list[object], expected: str) -> None:
    with pytest.raises(CommandError, match=expected):
        read(tmp_path, *lines)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / "april.jsonl", tmp_path / "may.jsonl"]
    paths[0].write_text((json.dumps(LOG) + "\n") * 60)
    paths[1].write_text((json.dumps(ROW | {"choice": "b", "probabilities": {"a": 0.3, "b": 0.7}}) + "\n") * 60)
    assert cli.run(["decision", "drift", *map(str, paths)]) == ExitCode.OK
    captured = capsys.readouterr()
    assert "team@1: 60 answers before, 60 now" in captured.out
    assert captured.out.count("moved") == 2
    assert "urgent@1 is in one of the two files only" in captured.err
    assert cli.run(["decision", "drift", "--json", *map(str, paths)]) == ExitCode.OK
    (found,) = json.loads(capsys.readouterr().out)["decisions"]
    assert found["moved"] == ["options", "probability"]
    assert found["spreads"][0]["difference"]["value"] == pytest.approx(-0.2)

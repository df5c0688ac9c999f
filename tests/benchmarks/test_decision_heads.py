"""The benchmark of heads judges on test cases only, and writes every way with its interval."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from rich.progress import Progress

from benchmarks import decisions
from benchmarks.decisions import VARIANTS, canary, heads, majority, markdown, read_task, sizes_of, with_policy
from benchmarks.layouts import Case
from steelyard.decisions import fitting, metrics

WORDS = {"red": "apple cherry", "green": "grass leaf", "none of these": "stone table"}


class Reader:
    """Hidden states that tell the options apart by a text's second word, in test cases as well."""

    model_sha256 = prompt_sha256 = llama_cpp = "0"

    def read(self, states, *, step=lambda *_: None):
        step(len(states), len(states))
        known = {word: row for row, words in enumerate(WORDS.values()) for word in words.split()}
        return np.array([np.eye(4)[known.get(state.split()[-1], 3)] for state in states], np.float32)


class Blind(Reader):
    """Hidden states that say nothing."""

    def read(self, states, *, step=lambda *_: None):
        return super().read(states, step=step) * 0 + 1


@pytest.fixture
def task(tmp_path, monkeypatch):
    monkeypatch.setattr(fitting, "STRENGTHS", (100.0,))
    monkeypatch.setattr(metrics, "RESAMPLES", 50)
    monkeypatch.setattr(decisions, "SIZES", (4, 12, 99))
    (tmp_path / "a.json").write_text(json.dumps({"question": "Which?", "options": list(WORDS)}))
    for part, at in (("fit", 0), ("test", 1)):
        rows = [
            {"text": f"number{n}{part} {words.split()[at]}", "label": label}
            for n in range(4)
            for label, words in WORDS.items()
        ]
        (tmp_path / f"a.{part}.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    return read_task(tmp_path, "a")


def test_heads_are_judged_on_words_that_no_bag_has_seen(task):
    assert sizes_of(task) == [12]
    with Progress(disable=True) as progress:
        found = {each.way: each for each in heads(task, {"blind": Blind(), "a": Reader()}, progress=progress)}
    assert set(found) == {"bag of words", "head, hidden state alone", "head"}
    assert found["head, hidden state alone"].accuracy.value == 1.0
    assert found["bag of words"].accuracy.value < 0.7
    assert {each.wording for each in found.values()} == {"", "a"}
    assert all(each.judged == 12 and each.cases == 12 for each in found.values())


def test_the_table_has_a_line_for_each_way(task):
    table = markdown([majority(task)])
    assert table.splitlines()[2].startswith("| a | 12 | labels' shares |  | 12 | 0.333 (")


def test_every_question_of_the_canary_has_a_head_by_state(task):
    asked = {"type": "score", "instructions": "How much?", "criteria": ["apple", "stone", "leaf"]}
    cases = [
        Case(
            state_id=str(n),
            question_id=name,
            kind="score",
            state=f"number{n} {words.split()[n % 2]}",
            question=asked,
            truth=truth,
        )
        for name in ("much", "more")
        for n in range(4)
        for truth, words in enumerate(WORDS.values())
    ]
    cases = [replace(case, state_id=f"{case.state_id} {case.truth}") for case in cases]
    with Progress(disable=True) as progress:
        found = canary(cases, Reader(), progress=progress)
    assert {(each.data, each.way) for each in found} == {(name, way) for name in ("much", "more") for way in VARIANTS}
    assert all(each.judged == 12 for each in found)
    assert all(each.accuracy.value == 1.0 for each in found if each.way == "head, hidden state alone")


def test_thresholds_are_set_on_fit_cases_and_judged_on_test_cases(task, monkeypatch):
    out, labels = list(WORDS).index("none of these"), task.labels["test"]
    held_out = np.full((12, 3), 0.1)
    held_out[np.arange(12), task.labels["fit"]] = np.linspace(0.8, 0.91, 12)
    judged = np.full((12, 3), 0.1)
    judged[np.arange(12), labels] = 0.805
    judged[1] = [0.7, 0.1, 0.1]  # not sure enough
    wrong = int((labels[2] + 1) % 3)
    judged[2] = 0.95 * np.eye(3)[wrong]  # sure and wrong
    unproven = with_policy(majority(task), task, held_out, judged)
    assert (unproven.automated.some, unproven.automated.of) == (0, 0)
    monkeypatch.setattr(decisions, "WRONG", 0.3)  # what 12 cases can prove
    found = with_policy(majority(task), task, held_out, judged)
    assert (found.automated.some, found.automated.of) == (1, 11)
    assert found.found_out.of == (labels == out).sum()
    assert found.false_alarms.of == (labels != out).sum()
    assert "| a | 12 | labels' shares | 0.917 | 0.091 (" in markdown([found])

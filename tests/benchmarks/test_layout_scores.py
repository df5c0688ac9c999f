"""The labelled comparison of layouts: how cases are read and asked, and its arithmetic."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from itertools import chain
from pathlib import Path

import httpx
import numpy as np
import pytest

SOURCE = Path(__file__).resolve().parents[2] / "benchmarks" / "layouts.py"


@pytest.fixture(scope="module")
def layouts():
    spec = importlib.util.spec_from_file_location("layouts_benchmark", SOURCE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def task(number, **truths):
    """A task of the package's format with a question of each type."""
    return {
        "task_id": f"task-{number}",
        "state": f"text {number}",
        "questions": {
            "angry": {"type": "noul", "instructions": "Angry?", "criteria": None, "ground_truth": truths["angry"]},
            "queue": {
                "type": "choice",
                "instructions": "Which?",
                "criteria": [{"key": "billing", "description": "Money"}, {"key": "sales", "description": "Quotes"}],
                "ground_truth": truths["queue"],
            },
            "level": {
                "type": "score",
                "instructions": "How much?",
                "criteria": [{"level": 0, "description": "none"}, {"level": 1, "description": "some"}],
                "ground_truth": truths["level"],
            },
        },
    }


@pytest.fixture
def cases(layouts):
    tasks = [task(n, angry=n % 2 == 0, queue=("billing", "sales")[n % 2], level=n % 2) for n in range(4)]
    return layouts.read_cases("\n".join(map(json.dumps, tasks)))


def row(layouts, state, probabilities, truth, *, layout="a", question="q"):
    return layouts.Row(
        model_sha256="m",
        layout=layout,
        state_id=state,
        question_id=question,
        kind="choice",
        probabilities=probabilities,
        truth=truth,
        prompt_version=layout,
    )


def test_each_type_becomes_a_question_with_the_index_of_its_truth(layouts, cases):
    assert [(case.kind, case.truth) for case in cases[:6]] == [
        ("noul", 0),
        ("choice", 0),
        ("score", 0),
        ("noul", 1),
        ("choice", 1),
        ("score", 1),
    ]
    assert cases[1].question["criteria"] == {"billing": "Money", "sales": "Quotes"}
    assert cases[2].question["criteria"] == ["none", "some"]
    assert "criteria" not in cases[0].question


def test_questions_without_a_label_are_left_out(layouts):
    unlabelled = task(0, angry=None, queue="sales", level=None)
    assert [case.kind for case in layouts.read_cases(json.dumps(unlabelled))] == ["choice"]


def test_the_halves_hold_whole_states_and_do_not_overlap(layouts, cases):
    selection, held_out = layouts.part_of(cases, "selection"), layouts.part_of(cases, "held-out")
    assert {case.state_id for case in selection} == {"task-0", "task-2"}
    assert {case.state_id for case in held_out} == {"task-1", "task-3"}
    assert len(selection) + len(held_out) == len(layouts.part_of(cases, "all"))


def test_a_sample_is_spread_over_the_file(layouts, cases):
    assert {case.state_id for case in layouts.spread(cases, 2)} == {"task-0", "task-2"}
    assert layouts.spread(cases, 99) == cases


def test_both_orders_ask_everything_once(layouts, cases):
    singly, by_state = layouts.one_question_at_a_time(cases), layouts.one_state_at_a_time(cases)
    assert sorted(map(repr, chain(*singly))) == sorted(map(repr, chain(*by_state))) == sorted(map(repr, cases))
    assert {len(request) for request in singly} == {1}
    assert all(len({case.state_id for case in request}) == 1 for request in by_state)


def test_every_beginning_of_the_order_is_spread(layouts, cases):
    requests = [[n] for n in range(100)]
    order = [request[0] for request in layouts.mixed(requests)]
    assert sorted(order) == list(range(100))
    assert sum(n < 50 for n in order[:20]) in range(7, 14)


def test_scores_of_one_answer(layouts):
    sure = row(layouts, "s", [0.8, 0.2], 0)
    assert (sure.correct, sure.log_loss, sure.brier) == (True, pytest.approx(-math.log(0.8)), pytest.approx(0.08))
    wrong = row(layouts, "s", [1.0, 0.0], 1)
    assert (wrong.correct, wrong.brier) == (False, pytest.approx(2.0))
    assert wrong.log_loss == pytest.approx(-math.log(layouts.SMALLEST))


def test_mcnemar_is_the_exact_two_sided_test(layouts):
    assert layouts.mcnemar(0, 0) == 1.0
    assert layouts.mcnemar(5, 5) == 1.0
    assert layouts.mcnemar(0, 6) == pytest.approx(2 / 64)
    assert layouts.mcnemar(8, 2) == layouts.mcnemar(2, 8) == pytest.approx(2 * (1 + 10 + 45) / 1024)


def test_the_interval_resamples_whole_states(layouts):
    # All questions on a state agree: 10 states of 20 questions know as little as 10 answers.
    clustered = np.repeat(np.array([0.0, 1.0] * 5), 20)
    low, high = layouts.resampled(clustered, [f"s{i}" for i in range(10) for _ in range(20)])
    alone_low, alone_high = layouts.resampled(clustered, [f"s{i}" for i in range(200)])
    assert high - low > 3 * (alone_high - alone_low)


def test_a_difference_is_paired(layouts):
    first = [row(layouts, f"s{n}", [0.9, 0.1], 0) for n in range(40)]
    second = [row(layouts, f"s{n}", [0.9, 0.1] if n < 20 else [0.1, 0.9], 0, layout="b") for n in range(40)]
    found = layouts.difference(first, second, names=("a", "b"), kind="all")
    assert (found.accuracy, found.only_first_right, found.only_second_right) == (0.5, 20, 0)
    assert found.accuracy_low > 0
    assert found.log_loss < 0
    assert layouts.verdict(found) == "a decides better"
    same = layouts.difference(first, first, names=("a", "a"), kind="all")
    assert (same.accuracy, same.accuracy_low, same.accuracy_high, same.mcnemar_p) == (0, 0, 0, 1)
    assert layouts.verdict(same) == "the difference is within noise"


def test_different_cases_cannot_be_compared(layouts):
    with pytest.raises(ValueError, match="same cases"):
        layouts.difference(
            [row(layouts, "s1", [1.0, 0.0], 0)], [row(layouts, "s2", [1.0, 0.0], 0)], names=("a", "b"), kind="all"
        )


def server(*, versions=True):
    """A client of a server that always finds the first option likeliest, and counts its requests."""
    asked = []

    def handle(request):
        body = json.loads(request.content)
        asked.append(body)
        version = body.get("x_layout", "default") if versions else "one"
        answers = {}
        for name, question in body["questions"].items():
            answer = {"x_prompt_version": version, "x_tokens": {"prompt": 90, "evaluated": 50, "reused": 40}}
            if question["type"] == "noul":
                answer["noul"] = 0.7
            else:
                answer["probabilities"] = {"a": 0.6, "b": 0.4}
            answers[name] = answer
        return httpx.Response(200, json={"answers": answers, "x_identity": {"sha256": "m"}})

    return httpx.Client(transport=httpx.MockTransport(handle), base_url="http://server"), asked


def test_a_run_asks_each_layout_and_scores_it(layouts, cases, tmp_path):
    client, asked = server()
    kept = tmp_path / "answers.jsonl"
    rows, tokens = layouts.run(client, cases, list(layouts.LAYOUTS), answers=kept, model_sha256="m")
    assert len(rows) == 2 * len(cases)
    assert {body["x_layout"] for body in asked} == set(layouts.LAYOUTS)
    assert tokens["options-first"] == {"new_states": 50.0, "many_questions": 50.0}
    summaries, differences = layouts.evaluate(rows, list(layouts.LAYOUTS))
    assert {found.kind for found in summaries} == {"all", "noul", "choice", "score"}
    assert next(found for found in summaries if found.kind == "noul").accuracy == 0.5
    assert all(found.accuracy == 0 for found in differences)
    table = layouts.markdown("model", summaries, differences, tokens)
    assert "| options-first, all | 12 | 0.500" in table


def test_an_interrupted_run_goes_on_and_a_torn_line_is_asked_again(layouts, cases, tmp_path):
    kept = tmp_path / "answers.jsonl"
    whole, _ = layouts.run(server()[0], cases, ["state-first"], answers=kept, model_sha256="m")
    lines = kept.read_text().splitlines()
    kept.write_text("\n".join(lines[:5]) + "\n" + lines[5][:40])
    client, asked = server()
    again, _ = layouts.run(client, cases, ["state-first"], answers=kept, model_sha256="m")
    assert sorted(map(repr, again)) == sorted(map(repr, whole))
    accuracy_requests = asked[: -2 * len(cases)]
    assert sum(len(body["questions"]) for body in accuracy_requests) < len(cases)


def test_an_interrupted_run_reports_what_every_layout_answered(layouts, cases):
    client, _ = server()
    count = iter(range(100))

    def handle(request):
        if next(count) == 3:
            raise KeyboardInterrupt
        return client.send(request)

    rows, _ = layouts.run(
        httpx.Client(transport=httpx.MockTransport(handle), base_url="http://server"),
        cases,
        list(layouts.LAYOUTS),
        answers=None,
        model_sha256="m",
    )
    assert len({row.state_id for row in rows}) == 1, "the second state has one answer only"
    assert {row.layout for row in rows} == set(layouts.LAYOUTS)


def test_answers_of_another_model_are_not_used(layouts, cases, tmp_path):
    kept = tmp_path / "answers.jsonl"
    layouts.run(server()[0], cases, ["state-first"], answers=kept, model_sha256="m")
    assert layouts.kept_rows(kept, cases, model_sha256="another") == []


def test_a_server_that_does_not_know_the_field_is_told_apart(layouts, cases):
    with pytest.raises(SystemExit, match="one prompt for several layouts"):
        layouts.run(server(versions=False)[0], cases, list(layouts.LAYOUTS), answers=None, model_sha256="m")

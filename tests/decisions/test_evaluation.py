"""An evaluation counts what the policy does with right and wrong answers."""

from __future__ import annotations

import json

import numpy as np
import pytest

from steelyard.decisions.evaluation import Evaluation, Outcome
from steelyard.decisions.folder import Case
from steelyard.decisions.report import action_rows, kind_rows, mistake_lines
from steelyard_runtime.decisions.contract import Contract

CONTRACT = Contract.model_validate(
    {"name": "a", "version": 1, "type": "choice", "question": "q", "no_way_out": "Every state is one of these."}
    | {"options": [{"id": "a"}, {"id": "b"}]}
    | {"policy": {"automate": {"probability": 0.9, "distance": 0.95}, "review": {"probability": 0.6}}}
)
ANSWERS = [
    # probability of a, distance rank, label, kind
    (0.99, 0.5, "a", None),
    (0.95, 0.1, "b", "hard"),
    (0.95, 0.96, "a", "hard"),
    (0.3, 0.1, "b", None),
    (0.3, 0.1, "a", None),
    (0.55, 0.1, "a", None),
]


@pytest.fixture
def found():
    return Evaluation(
        contract=CONTRACT,
        cases=tuple(Case(state=f"{n}", label=label, kind=kind) for n, (_, _, label, kind) in enumerate(ANSWERS)),
        probabilities=np.array([[each[0], 1 - each[0]] for each in ANSWERS]),
        distance_ranks=np.array([each[1] for each in ANSWERS]),
    )


def test_answers_are_counted_by_action(found):
    assert found.outcomes() == {
        "automate": Outcome(cases=2, wrong=1),
        "review": Outcome(cases=3, wrong=1),
        "abstain": Outcome(cases=1, wrong=0),
    }
    assert action_rows(found)[0] == ("automate", "2 (33 %)", "1")


def test_answers_are_counted_by_kind_and_by_mistake(found):
    assert found.by_kind() == {"plain": Outcome(cases=4, wrong=1), "hard": Outcome(cases=2, wrong=1)}
    assert kind_rows(found) == [("plain", "3 of 4"), ("hard", "1 of 2")]
    assert sorted(mistake_lines(found)) == ["a was answered b once", "b was answered a once"]


def test_the_json_has_every_figure(found):
    said = json.loads(json.dumps(found.to_json()))
    assert said["accuracy"]["value"] == pytest.approx(4 / 6)
    assert said["confusion"] == [[3, 1], [1, 1]]
    assert said["actions"]["automate"] == {"cases": 2, "wrong": 1}
    assert said["risk_coverage"][-1] == {"coverage": 1.0, "risk": pytest.approx(2 / 6)}
    assert {"macro_f1", "brier", "log_loss", "ece", "kinds", "contract_sha256"} <= set(said)

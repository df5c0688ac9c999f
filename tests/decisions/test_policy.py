"""The policy: each action has its reason, and no answer is automated that misses a requirement."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard_runtime.decisions.contract import Contract
from steelyard_runtime.decisions.policy import decide


def contract(policy, *, way_out=None):
    out = {"way_out": way_out} if way_out else {"no_way_out": "reason"}
    return Contract.model_validate(
        {"name": "a", "version": 1, "type": "choice", "question": "q", "policy": policy}
        | {"options": [{"id": "a"}, {"id": "b"}, {"id": "c"}]}
        | out
    )


POLICY = {
    "automate": {"probability": 0.8, "margin": 0.7, "distance": 0.95},
    "review": {"probability": 0.5},
    "options": {"c": {"never_automate": True}},
}


@pytest.mark.parametrize(
    ("probabilities", "rank", "calibrated", "action", "reason"),
    [
        ([0.9, 0.06, 0.04], 0.95, True, "automate", "all requirements of automate hold for 'a'"),
        ([0.9, 0.06, 0.04], 0.96, True, "review", "a distance rank of at most 0.95 and it is 0.96 for 'a'"),
        ([0.9, 0.06, 0.04], None, True, "review", "a distance rank of at most 0.95 and none is measured"),
        ([0.9, 0.06, 0.04], 0.1, False, "review", "uncalibrated"),
        ([0.79, 0.11, 0.1], 0.1, True, "review", "a probability of at least 0.8 and it is 0.79 for 'a'"),
        ([0.81, 0.19, 0.0], 0.1, True, "review", "a margin of at least 0.7"),
        ([0.01, 0.0, 0.99], 0.1, True, "review", "the policy never automates 'c'"),
        ([0.49, 0.26, 0.25], 0.1, True, "abstain", "review needs a probability of at least 0.5"),
    ],
)
def test_each_action_names_the_requirement_that_decided(probabilities, rank, calibrated, action, reason):
    verdict = decide(contract(POLICY), probabilities, distance_rank=rank, calibrated=calibrated)
    assert verdict.action == action
    assert reason in verdict.reason


def test_the_way_out_is_reviewed_and_equals_go_to_the_first():
    verdict = decide(contract(POLICY, way_out="a"), [1.0, 0.0, 0.0], distance_rank=0.0, calibrated=True)
    assert (verdict.action, verdict.option) == ("review", 0)
    equal = decide(contract({}), [0.4, 0.4, 0.2], distance_rank=None, calibrated=True)
    assert (equal.option, equal.margin, equal.action) == (0, 0.0, "review")


shares = st.floats(0, 1)


@given(st.lists(st.floats(1e-6, 1), min_size=3, max_size=3), shares, st.booleans(), st.floats(0.34, 1), shares, shares)
def test_an_automated_answer_meets_every_requirement(raw, rank, calibrated, least, margin, distance):
    probabilities = [each / sum(raw) for each in raw]
    policy = {"automate": {"probability": least, "margin": margin, "distance": distance}}
    verdict = decide(contract(policy), probabilities, distance_rank=rank, calibrated=calibrated)
    top = max(probabilities)
    fits = top >= least and top - sorted(probabilities)[-2] >= margin and (distance == 1 or rank <= distance)
    assert (verdict.action == "automate") is (fits and calibrated)
    assert probabilities[verdict.option] == top


@pytest.mark.parametrize(
    ("probabilities", "rank"),
    [([0.5, 0.5], 0.5), ([0.5, 0.5, 0.5], 0.5), ([float("nan"), 0.5, 0.5], 0.5), ([1.0, 0.0, 0.0], 1.5)],
)
def test_what_are_no_probabilities_is_refused(probabilities, rank):
    with pytest.raises(ValueError, match=r"probabilities|distance rank"):
        decide(contract({}), probabilities, distance_rank=rank, calibrated=True)

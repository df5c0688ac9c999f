"""What is asked: the same for every peer, and never the same twice."""

from __future__ import annotations

import json

import pytest

from benchmarks.peers import cases
from benchmarks.peers.cases import WORKLOADS
from benchmarks.peers.exactness import evenly, mixture
from benchmarks.peers.workloads import Numbers


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_number_names_one_request(workload):
    make = WORKLOADS[workload]
    assert [make(number) for number in range(50)] == [make(number) for number in range(50)]


@pytest.mark.parametrize("workload", WORKLOADS)
def test_states_are_new(workload):
    make = WORKLOADS[workload]
    assert len({make(number).state for number in range(3000)}) == 3000


def test_the_stored_tickets_come_first_and_the_new_ones_are_like_them():
    stored = json.loads((cases.STORED / "ticket-routing.json").read_text())
    assert [cases.routing(number).state for number in range(len(stored))] == [ticket["state"] for ticket in stored]
    assert all(cases.routing(number).questions == cases.routing(0).questions for number in range(100))
    lengths = [len(ticket["state"]) for ticket in stored]
    new = [len(cases.routing(number).state) for number in range(100, 300)]
    assert 0.85 * sum(lengths) / len(lengths) < sum(new) / len(new) < 1.15 * sum(lengths) / len(lengths)


def test_three_questions_are_the_stored_ones():
    stored = json.loads((cases.STORED / "ticket-three-questions.json").read_text())
    case = cases.three_questions(7)
    assert [asked.id for asked in case.questions] == [decision["id"] for decision in stored]
    assert case.state != stored[0]["state"]


def test_mixed_decisions_differ_in_question_options_and_state():
    made = [cases.mixed(number) for number in range(500)]
    assert len({str(case.questions) for case in made}) == 500
    assert {len(case.questions[0].options) for case in made} >= {2, 3, 4, 5, 6}


def test_a_chat_differs_from_the_first_words_on():
    prompts = [cases.chat_prompt(number, 300) for number in range(50)]
    assert len({prompt[:30] for prompt in prompts}) == 50
    assert all(300 <= len(prompt.split()) < 350 for prompt in prompts)


def test_cells_do_not_share_numbers():
    numbers = Numbers()
    first, second = numbers.cell(), numbers.cell()
    assert {next(first) for _ in range(9000)}.isdisjoint(next(second) for _ in range(9000))
    assert numbers.warm_up() != numbers.warm_up()


def test_the_mixture_holds_every_workload():
    made = [next(iter(mixture(iter([number])))) for number in range(8)]
    assert {case.workload for case in made} == {"A", "B", "C"}


def test_evenly_takes_from_the_whole_range():
    assert evenly(list(range(100)), 4) == [0, 25, 50, 75]
    assert evenly([1, 2, 3], None) == [1, 2, 3]
    assert evenly([1, 2, 3], 9) == [1, 2, 3]

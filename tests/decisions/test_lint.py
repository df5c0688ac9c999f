"""Each fault of a contract and its cases is found, and a good decision has none."""

from __future__ import annotations

import pytest

from steelyard.decisions import lint as lint_module
from steelyard.decisions.folder import Case
from steelyard.decisions.lint import lint
from steelyard_runtime.decisions.contract import Contract

OPTIONS = [
    {"id": "billing", "description": "Charges, invoices and refunds of money"},
    {"id": "technical", "description": "Something broken, slow or showing an error message"},
    {"id": "none_of_these", "description": "No other option fits"},
]
STATES = {
    "billing": "invoice number {} was charged to the wrong account",
    "technical": "screen {} stays black after the last update",
    "none_of_these": "joke {} about penguins told at lunch",
}


def contract(**changes):
    base = {"name": "a", "version": 1, "type": "choice", "question": "Which team?", "options": OPTIONS}
    return Contract.model_validate({**base, "way_out": "none_of_these", **changes})


def case(state, label):
    return Case(state=state, label=label)


GOOD = [
    case(text.format(" ".join(f"{word}{number}" for word in ("x", "y", "z", "w"))), label)
    for label, text in STATES.items()
    for number in range(10)
]


def codes(contract, cases):
    return [(each.level, each.code) for each in lint(contract, cases)]


def test_the_same_few_words_are_not_compared_without_end(monkeypatch):
    monkeypatch.setattr(lint_module, "_MOST_LOOKED_AT", 1000)
    words = ["on", "off", "up", "down", "left", "right", "go", "home"]
    cases = [case(" ".join(words) + "!" * number, "billing") for number in range(300)]
    found = [each.message for each in lint(contract(), GOOD + cases) if each.code == "near-duplicates"]
    assert "of pairs of cases with words in common the first 1000 were compared" in found
    assert len(found) == 22


def test_a_good_decision_has_no_findings():
    assert codes(contract(), GOOD) == []


@pytest.mark.parametrize(
    ("changes", "extra", "code"),
    [
        ({"options": [{"id": "billing"}, *OPTIONS[1:]]}, [], ("warning", "label-only")),
        (
            {
                "options": [
                    OPTIONS[0],
                    {"id": "technical", "description": "Charges, invoices and refunds of money, soon"},
                ]
            }
            | {"way_out": None, "no_way_out": "Every message is about one of both."},
            [],
            ("warning", "overlapping"),
        ),
        ({"way_out": None, "no_way_out": "None."}, [], ("warning", "no-way-out")),
        (
            {"readout": {"strategy": "letters"}, "policy": {"automate": {"probability": 0.9}}},
            [],
            ("error", "never-automates"),
        ),
        ({"policy": {"automate": {"margin": 0.5}}}, [], ("error", "automates-everything")),
        ({}, [case(GOOD[0].state.upper(), "technical")], ("error", "contradicting-cases")),
        ({}, [case(GOOD[0].state + " ", "billing")], ("warning", "duplicate-cases")),
        ({}, [case(GOOD[0].state + " today", "billing")], ("warning", "near-duplicates")),
    ],
)
def test_each_fault_is_found(changes, extra, code):
    cases = [each for each in GOOD if each.label in {o["id"] for o in changes.get("options", OPTIONS)}]
    assert codes(contract(**changes), [*cases, *extra]) == [code]


@pytest.mark.parametrize(
    ("count", "code"), [(0, "too-few-cases"), (1, "too-few-cases"), (2, "few-cases"), (9, "few-cases")]
)
def test_too_few_cases_are_told_by_option(count, code):
    kept = [each for each in GOOD if each.label != "billing"] + GOOD[:count]
    found = lint(contract(), kept)
    assert [each.code for each in found] == [code]
    assert f"'billing' has {count} labelled cases" in found[0].message


def test_errors_come_first_and_many_pairs_are_counted():
    many = [case(f"one two three four five six seven eight nine {number}", "billing") for number in range(12)]
    found = lint(contract(), [*GOOD, *many, case(many[0].state, "technical")])
    assert [each.level for each in found] == sorted(each.level for each in found)
    assert found[-1].message.startswith("and ")

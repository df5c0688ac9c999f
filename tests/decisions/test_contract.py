"""A contract reads as it was written, hashes by what it says, and is refused when it contradicts itself."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from steelyard_runtime.decisions.contract import (
    MAX_FILE_BYTES,
    Contract,
    ContractError,
    parse_contract,
    write_contract,
)

TEXT = """\
name = "support-route"   # the folder's
version = 3
type = "choice"
question = "Which team?"
way_out = "none_of_these"

[[options]]
id = "billing"
description = "Money"

[[options]]
id = "technical"

[[options]]
id = "none_of_these"

[policy.automate]
probability = 0.9
margin = 0.5
distance = 0.99

[policy.review]
probability = 0.5

[policy.options.technical]
never_automate = true
"""


def said(**changes):
    base = {
        "name": "a-b",
        "version": 1,
        "type": "choice",
        "question": "Which?",
        "options": [{"id": "a"}, {"id": "b"}, {"id": "c"}],
        "no_way_out": "All states are one of these.",
    }
    return {key: value for key, value in (base | changes).items() if value is not None}


filled = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=30).filter(str.strip)
ids = st.lists(
    st.from_regex(r"[a-z0-9][a-z0-9 ._\"'\\-]{0,8}[a-z0-9]", fullmatch=True).map(lambda t: " ".join(t.split())),
    min_size=2,
    max_size=6,
    unique=True,
)


@st.composite
def contracts(draw):
    names = draw(ids)
    share = st.floats(0, 1)
    options = [{"id": name, "description": draw(st.just("") | filled)} for name in names]
    review = {"probability": 0.0, "margin": draw(share) / 2, "distance": 1.0}
    automate = {
        "probability": draw(st.floats(0.51, 1)),
        "margin": 0.5 + draw(share) / 2,
        "distance": draw(st.floats(0.1, 1)),
    }
    policy = {"automate": automate, "review": review, "options": {names[0]: {"never_automate": draw(st.booleans())}}}
    kind = draw(st.sampled_from(["choice", "score"]))
    out = {"no_way_out": draw(filled)} if kind == "choice" else {}
    if kind == "score":
        options = [option | {"value": float(number)} for number, option in enumerate(options)]
    return Contract.model_validate(
        {"name": "n-1", "version": draw(st.integers(1, 10**6)), "type": kind, "question": draw(filled)}
        | {"options": options, "policy": draw(st.sampled_from([{}, policy]))}
        | out
    )


@settings(max_examples=50)
@given(contracts())
def test_a_contract_reads_as_it_was_written(contract):
    again = parse_contract(write_contract(contract))
    assert again == contract
    assert again.sha256 == contract.sha256


def test_the_hash_ignores_comments_spaces_and_order():
    other = "# ours\n" + TEXT.replace(" = ", "=").replace(
        'name="support-route"   # the folder\'s\nversion=3', 'version=3\nname="support-route"'
    )
    assert other != TEXT
    assert parse_contract(other).sha256 == parse_contract(TEXT).sha256


@pytest.mark.parametrize(
    ("old", "new", "asks_the_same"),
    [
        ("Which team?", "Which team", False),
        ('description = "Money"', 'description = "money"', False),
        ('id = "technical"\n', 'id = "technical"\ndescription = "It fails"\n', False),
        ("probability = 0.9", "probability = 0.91", True),
        ("version = 3", "version = 4", True),
    ],
)
def test_every_change_changes_the_hash_and_only_the_question_binds_heads(old, new, asks_the_same):
    before, after = parse_contract(TEXT), parse_contract(TEXT.replace(old, new))
    assert before.sha256 != after.sha256
    assert (before.question_sha256 == after.question_sha256) is asks_the_same


REFUSED = {
    "no way out": ({"no_way_out": None}, "a choice needs way_out"),
    "two ways out": ({"way_out": "a"}, "both given"),
    "unknown way out": ({"no_way_out": None, "way_out": "d"}, "'d', which is none of the options a, b, c"),
    "the same id twice": ({"options": [{"id": "a"}, {"id": "a"}]}, "'a' appears more than once"),
    "ids that look the same": ({"options": [{"id": "a"}, {"id": "\u0430"}]}, "look the same"),
    "one option": ({"options": [{"id": "a"}]}, "at least 2"),
    "a value for a choice": ({"options": [{"id": "a", "value": 1.0}, {"id": "b"}]}, "only options of a score"),
    "yes and no by other names": (
        {"type": "yesno", "no_way_out": None},
        "'yes' and 'no' in this order; it has a, b, c",
    ),
    "a score without values": ({"type": "score", "no_way_out": None}, "'a' of a score needs a value"),
    "a score out of order": (
        {"type": "score", "options": [{"id": "a", "value": 2.0}, {"id": "b", "value": 2.0}]},
        "'b' has 2 after 2",
    ),
    "a way out of a score": (
        {"type": "score", "options": [{"id": "a", "value": 1.0}, {"id": "b", "value": 2.0}], "way_out": "a"}
        | {"no_way_out": None},
        "way_out is for a choice",
    ),
    "automate weaker than review": (
        {"policy": {"automate": {"probability": 0.6}, "review": {"probability": 0.7}}},
        "automate has probability 0.6 and review 0.7; it must be at least that",
    ),
    "automate farther than review": (
        {"policy": {"automate": {"distance": 0.99}, "review": {"distance": 0.9}}},
        "automate has distance 0.99 and review 0.9; it must be at most that",
    ),
    "a threshold without effect": ({"policy": {"automate": {"probability": 0.3}}}, "refuses nothing"),
    "a policy for no option": ({"policy": {"options": {"d": {}}}}, "names 'd'"),
    "automate never and under conditions": (
        {"policy": {"options": {"a": {"never_automate": True, "automate": {"probability": 0.9}}}}},
        "both never_automate and automate",
    ),
    "a distance that nothing measures": (
        {"readout": {"strategy": "letters"}, "policy": {"review": {"distance": 0.9}}},
        "does not measure",
    ),
    "more than certain": ({"policy": {"automate": {"probability": 1.1}}}, "less than or equal to 1"),
    "an unknown field": ({"thresholds": {}}, "Extra inputs"),
    "a number as text": ({"version": "1"}, "valid integer"),
    "a name for no folder": ({"name": "../a"}, "pattern"),
    "an unknown wording": ({"readout": {"wording": "x"}}, "no wording 'x'; there are chatml-1, one-word-1"),
    "a blank question": ({"question": " \n"}, "must not be blank"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_contract_that_contradicts_itself_is_refused(name):
    changes, told = REFUSED[name]
    with pytest.raises(ValidationError) as refused:
        Contract.model_validate(said(**changes))
    assert told in str(refused.value)


@given(automate=st.floats(0.34, 1), review=st.floats(0.34, 1), margins=st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_thresholds_are_accepted_exactly_when_automate_needs_no_less_than_review(automate, review, margins):
    policy = {
        "automate": {"probability": automate, "margin": margins[0]},
        "review": {"probability": review, "margin": margins[1]},
    }
    fits = automate >= review and margins[0] >= margins[1]
    try:
        Contract.model_validate(said(policy=policy))
    except ValidationError:
        assert not fits
    else:
        assert fits


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("name = ", "is not TOML"),
        ("a = " + "[" * 3000, "is not TOML"),
        ("#" * (MAX_FILE_BYTES + 1), f"{MAX_FILE_BYTES} are allowed"),
        ('name = "a"', "version: Field required"),
        (TEXT.replace("0.9\n", "nan\n"), "finite"),
    ],
)
def test_a_file_that_is_no_contract_is_refused_with_a_sentence(text, told):
    with pytest.raises(ContractError, match=told):
        parse_contract(text)


def test_the_way_out_is_automated_only_by_requirements_of_its_own():
    contract = parse_contract(TEXT)
    assert contract.requirements("billing")[0] == contract.policy.automate
    assert contract.requirements("technical")[0] is None
    assert contract.requirements("none_of_these")[0] is None
    own = parse_contract(TEXT + "[policy.options.none_of_these.automate]\nprobability = 0.99\n")
    assert own.requirements("none_of_these")[0].probability == 0.99


def test_the_written_form_is_short():
    assert "null" not in write_contract(parse_contract(TEXT))
    assert json.dumps(parse_contract(TEXT).model_dump(exclude_defaults=True)).count("never_automate") == 1

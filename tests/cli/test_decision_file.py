"""A decision from a file, from flags, or from both; what is missing is named."""

from __future__ import annotations

import pytest

from steelyard.client.decision_file import decisions_of, parse_json, parse_option, request_body
from steelyard_base.exit_codes import CommandError, ExitCode

DECISION = {"id": "d", "state": "s", "question": "q", "options": [{"id": "a"}, {"id": "b"}]}


@pytest.mark.parametrize("document", [DECISION, {"decision": DECISION}])
def test_one_decision(document):
    assert request_body(document) == {"decision": DECISION}


@pytest.mark.parametrize("document", [[DECISION, DECISION], {"decisions": [DECISION, DECISION]}])
def test_several_decisions(document):
    assert request_body(document) == {"decisions": [DECISION, DECISION]}


def test_flags_alone_are_enough():
    body = request_body(None, state="s", question="q", options=["a=An a", "b", "c=x=y", "d="])
    assert body["decision"] == {
        "id": "decision",
        "state": "s",
        "question": "q",
        "options": [
            {"id": "a", "description": "An a"},
            {"id": "b"},
            {"id": "c", "description": "x=y"},
            {"id": "d", "description": ""},
        ],
    }


def test_a_flag_wins_over_the_file():
    assert request_body(DECISION, state={"x": 1})["decision"]["state"] == {"x": 1}


def test_decisions_without_ids_get_some():
    without = {k: v for k, v in DECISION.items() if k != "id"}
    assert [d["id"] for d in request_body([without, without])["decisions"]] == ["decision-1", "decision-2"]


@pytest.mark.parametrize(
    "document", [{"decision": DECISION, "layout": "options-first"}, DECISION | {"layout": "options-first"}]
)
def test_a_layout_stands_beside_the_decision_of_a_request(document):
    document = document | {"layout": "options-first"}
    assert request_body(document) == {"decision": DECISION, "layout": "options-first"}
    assert request_body(document, layout="state-first")["layout"] == "state-first"


def test_the_decisions_of_a_request_have_one_layout():
    with pytest.raises(CommandError, match="have one layout"):
        request_body([DECISION, DECISION | {"layout": "options-first"}])


def test_a_registered_decision_needs_no_options():
    assert request_body({"use": "route@3", "state": "s"})["decision"]["use"] == "route@3"


@pytest.mark.parametrize(
    ("document", "told"),
    [
        (None, "lacks state and question and options"),
        ({**DECISION, "question": None}, "lacks question"),
        ({**DECISION, "question": ""}, "question is empty"),
        ({**DECISION, "state": {}, "options": []}, "state and options are empty"),
        ([], "a decision (an object) or a list"),
        ("text", "a decision (an object) or a list"),
        ({"decision": DECISION, "decisions": []}, "one of 'decision' and 'decisions'"),
    ],
)
def test_what_is_missing_is_named(document, told):
    with pytest.raises(CommandError) as caught:
        request_body(document)
    assert caught.value.code is ExitCode.USAGE
    assert told in caught.value.message


def test_an_option_without_an_id_is_refused():
    with pytest.raises(CommandError, match="has no id"):
        parse_option("=text")


@pytest.mark.parametrize("text", ["{", "NaN", '{"a": 1, "a": 2}', "[" * 100_000])
def test_json_is_read_strictly(text):
    with pytest.raises(CommandError, match=r"x\.json (is not JSON|has lists and objects more than 512 deep)"):
        parse_json(text, "x.json")


def test_a_registered_decision_needs_its_state_alone():
    assert decisions_of(None, state="s", use="route@3").decisions == [{"id": "route@3", "state": "s", "use": "route@3"}]
    # A file's question and options are another decision's.
    assert decisions_of(DECISION, use="route").decisions == [{"id": "d", "state": "s", "use": "route"}]
    with pytest.raises(CommandError, match="the registered decision 'route' lacks a state"):
        decisions_of(None, use="route")
    for asked in ({"question": "q"}, {"options": ["a"]}):
        with pytest.raises(CommandError, match="has its own question and options"):
            decisions_of(None, state="s", use="route", **asked)

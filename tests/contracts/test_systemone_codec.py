"""System One, judged by the conformance suite's own checks and the real SDK's response types."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jevcompat.validate import validate_answer
from typesafe_sdk import SystemOneResponse

from option_strategies import different_names
from steelyard_runtime.contracts import systemone
from steelyard_runtime.contracts.limits import Limits
from steelyard_runtime.errors import Kind, Problem

NOUL: dict[str, Any] = {"type": "noul", "instructions": "Refund?"}
CHOICE: dict[str, Any] = {"type": "choice", "instructions": "Team?", "criteria": {"Billing": "Payments", "Sales": None}}
SCORE: dict[str, Any] = {"type": "score", "instructions": "How angry?", "criteria": ["Calm", "Cross", "Very angry"]}

NAMES = st.text(min_size=1, max_size=10)
CONTENT = st.text(max_size=10) | st.dictionaries(NAMES, st.integers() | NAMES, max_size=2) | st.lists(NAMES, max_size=2)
MAYBE = st.none() | CONTENT
NOULS = st.fixed_dictionaries(
    {"type": st.just("noul")},
    optional={
        "instructions": MAYBE,
        "criteria": st.none() | st.fixed_dictionaries({}, optional={"true": MAYBE, "false": MAYBE}),
    },
)
CHOICES = st.fixed_dictionaries(
    {
        "type": st.just("choice"),
        "criteria": different_names(min_size=2, max_size=20).flatmap(
            lambda names: st.fixed_dictionaries(dict.fromkeys(names, MAYBE))
        ),
    },
    optional={"instructions": MAYBE},
)
SCORES = st.fixed_dictionaries(
    {"type": st.just("score"), "criteria": st.lists(MAYBE, min_size=2, max_size=10)}, optional={"instructions": MAYBE}
)
REQUESTS = st.fixed_dictionaries(
    {"state": CONTENT, "questions": st.dictionaries(NAMES, NOULS | CHOICES | SCORES, min_size=1, max_size=4)},
    optional={"model": st.text(max_size=10), "x_trace": st.integers(), "seed": st.none()},
)


def body_of(**questions: Any) -> dict[str, Any]:
    return {"model": "jev-latest", "state": "My order is late.", "questions": questions}


def decode(body: Any, limits: Limits | None = None) -> systemone.Decoded:
    return systemone.decode(body, limits=limits or Limits())


def problem_of(body: Any, limits: Limits | None = None) -> Problem:
    with pytest.raises(Problem) as caught:
        decode(body, limits)
    return caught.value


def sdk_reads(body: dict[str, Any]) -> SystemOneResponse:
    content = json.dumps(body, allow_nan=False).encode()
    request = httpx2.Request("POST", "http://localhost/v1/systemone")
    return SystemOneResponse.from_http_response(httpx2.Response(200, content=content, request=request))


@given(REQUESTS)
def test_every_valid_request_is_answered_as_the_suite_and_the_sdk_want_it(identity, answers_for, body) -> None:
    decoded = decode(body)
    response = systemone.encode(decoded, answers_for(decoded.request), identity=identity, timing_ms=2.0)
    assert list(response["answers"]) == list(body["questions"])
    for question_id, question in body["questions"].items():
        answer = response["answers"][question_id]
        assert validate_answer(question, answer, question_id) == []
        if "probabilities" in answer:
            assert sum(answer["probabilities"].values()) == pytest.approx(1, abs=1e-6)
    read = sdk_reads(response)
    assert read.model == "tiny-model"
    assert set(read.answers) == set(body["questions"])
    assert all(option.text for question in decoded.request.questions for option in question.options)
    assert all(question.instructions for question in decoded.request.questions)


def test_the_three_types_in_one_request(identity, make_answer) -> None:
    decoded = decode(body_of(refund=NOUL, team=CHOICE, anger=SCORE))
    assert decoded.request.state == "My order is late."
    assert [[option.text for option in question.options] for question in decoded.request.questions] == [
        ["yes", "no"],
        ["Billing: Payments", "Sales"],
        ["Calm", "Cross", "Very angry"],
    ]
    answers = [make_answer([1.0, 0.0]), make_answer([0.0, 2.0]), make_answer([0.0, 0.0, 1.0], prompt=30)]
    response = systemone.encode(decoded, answers, identity=identity, timing_ms=2.0)
    assert response["model"] == "tiny-model"
    assert response["usage"] == {"input_tokens": 50, "output_tokens": 0}
    assert response["x_identity"] == {"model_id": "tiny-model", "exact": True}
    assert response["x_timing"] == {"total_ms": 2.0}
    refund, team, anger = response["answers"].values()
    assert refund["noul"] == answers[0].probabilities[0]
    assert team["choice"] == "Sales"
    assert team["probabilities"] == dict(zip(["Billing", "Sales"], answers[1].probabilities, strict=True))
    p = answers[2].probabilities
    assert anger["score"] == pytest.approx(p[1] + 2 * p[2])
    assert anger["legend"] == {"0": "Calm", "1": "Cross", "2": "Very angry"}
    assert {name for name in team if name.startswith("x_")} == {
        "x_logits",
        "x_slot_token_ids",
        "x_slot_mass",
        "x_entropy",
        "x_tokens",
        "x_prompt_sha256",
        "x_prompt_version",
        "x_readout",
        "x_cached",
        "x_probability_status",
        "x_timing",
    }


def test_question_ids_order_and_company_do_not_reach_the_model() -> None:
    alone = decode(body_of(a=CHOICE)).request
    renamed = decode(body_of(zz=SCORE, **{"질문 🎯": CHOICE})).request
    assert alone.questions[0] == renamed.questions[1]
    assert "zz" not in repr(renamed)
    assert "질문" not in repr(renamed)


@pytest.mark.parametrize(
    ("criteria", "texts"),
    [
        ({}, ["yes", "no"]),
        (None, ["yes", "no"]),
        ({"true": "paid"}, ["yes: paid", "no"]),
        ({"false": "unpaid"}, ["yes", "no: unpaid"]),
        ({"true": None, "false": "unpaid"}, ["yes", "no: unpaid"]),
        ({"true": {"any": ["a", "b"]}, "false": ["c"]}, ['yes: {"any":["a","b"]}', 'no: ["c"]']),
        ({"true": ""}, ["yes", "no"]),
    ],
)
def test_noul_criteria(criteria: Any, texts: list[str]) -> None:
    (question,) = decode(body_of(q={"type": "noul", "instructions": "Paid?", "criteria": criteria})).request.questions
    assert [option.text for option in question.options] == texts
    assert question.instructions == "Paid?"


@pytest.mark.parametrize("question", [NOUL, CHOICE, SCORE])
@pytest.mark.parametrize(
    ("given_instructions", "text"), [({"task": "é"}, '{"task":"é"}'), (["a", "b"], '["a","b"]'), ("plain", "plain")]
)
def test_instructions_may_be_structured(question: dict[str, Any], given_instructions: Any, text: str) -> None:
    decoded = decode(body_of(q={**question, "instructions": given_instructions}))
    assert decoded.request.questions[0].instructions == text


@pytest.mark.parametrize(
    ("question", "text"),
    [
        (NOUL, systemone.NOUL_INSTRUCTIONS),
        (CHOICE, systemone.CHOICE_INSTRUCTIONS),
        (SCORE, systemone.SCORE_INSTRUCTIONS),
    ],
)
def test_without_instructions_the_general_ones_are_read(question: dict[str, Any], text: str) -> None:
    absent = {name: value for name, value in question.items() if name != "instructions"}
    for variant in (absent, {**question, "instructions": None}, {**question, "instructions": ""}):
        assert decode(body_of(q=variant)).request.questions[0].instructions == text


def test_levels_that_are_null_empty_or_structured(identity, answers_for) -> None:
    question = {"type": "score", "criteria": ["Calm", None, "", {"label": "é"}, ["x"]]}
    decoded = decode(body_of(q=question))
    assert [option.text for option in decoded.request.questions[0].options] == [
        "Calm",
        "Level 2 of 5",
        "Level 3 of 5",
        '{"label":"é"}',
        '["x"]',
    ]
    response = systemone.encode(decoded, answers_for(decoded.request), identity=identity, timing_ms=1.0)
    assert response["answers"]["q"]["legend"] == {
        "0": "Calm",
        "1": "Level 2 of 5",
        "2": "",
        "3": '{"label":"é"}',
        "4": '["x"]',
    }
    assert sdk_reads(response).scores["q"].legend[1] == "Level 2 of 5"


@pytest.mark.parametrize("count", [2, 77, 255])
def test_up_to_255_options(identity, answers_for, count: int) -> None:
    question = {"type": "choice", "criteria": {f"o{i}": None for i in range(count)}}
    decoded = decode(body_of(q=question))
    response = systemone.encode(decoded, answers_for(decoded.request), identity=identity, timing_ms=1.0)
    assert validate_answer(question, response["answers"]["q"], "q") == []
    assert len(sdk_reads(response).choices["q"].probabilities) == count


def test_option_names_and_ids_in_any_script_come_back_byte_for_byte(identity, answers_for) -> None:
    names = ["환불 요청", "שלום", "🙂 기타", "e\u0301", " padded ", "noul"]
    decoded = decode(body_of(**{"질문.1 🎯": {"type": "choice", "criteria": dict.fromkeys(names)}}))
    response = systemone.encode(decoded, answers_for(decoded.request), identity=identity, timing_ms=1.0)
    assert list(response["answers"]) == ["질문.1 🎯"]
    assert list(response["answers"]["질문.1 🎯"]["probabilities"]) == names


@pytest.mark.parametrize("model", ["jev-latest", "anything", "", None])
def test_the_models_name_is_handed_on_and_the_real_one_reported(identity, answers_for, model: str | None) -> None:
    decoded = decode(body_of(q=NOUL) | {"model": model})
    assert decoded.model == model
    assert (
        systemone.encode(decoded, answers_for(decoded.request), identity=identity, timing_ms=1.0)["model"]
        == "tiny-model"
    )


@pytest.mark.parametrize("state", ["", "text", {}, {"a": None}, [], ["a", 1]])
def test_states(state: Any) -> None:
    body = body_of(q=NOUL) | {"state": state}
    text = state if isinstance(state, str) else json.dumps(state, separators=(",", ":"))
    assert decode(body).request.state == text


def test_unknown_top_level_fields_are_ignored() -> None:
    extra = {f"x_{i}": i for i in range(100)} | {"seed": 7, "assets": None, "messages": []}
    assert decode(body_of(q=NOUL) | extra).request == decode(body_of(q=NOUL)).request


def q(**fields: Any) -> dict[str, Any]:
    return body_of(team=fields)


@pytest.mark.parametrize(
    ("body", "loc", "said"),
    [
        ({"questions": {"a": NOUL}}, ["body", "state"], "is required and missing"),
        ({"state": "x"}, ["body", "questions"], "is required and missing"),
        (body_of(a=NOUL) | {"state": None}, ["body", "state"], "must be a string, an object or an array; got null"),
        (body_of(a=NOUL) | {"state": 1}, ["body", "state"], "got 1"),
        (body_of(a=NOUL) | {"model": 1}, ["body", "model"], "must be a string; got 1"),
        (body_of(), ["body", "questions"], "0 questions; at least 1"),
        (body_of() | {"questions": []}, ["body", "questions"], "must be an object; got an array"),
        (body_of(**{"": NOUL}), ["body", "questions"], "empty string as its id"),
        (body_of(team=None), ["body", "questions", "team"], "must be an object; got null"),
        (q(instructions="x"), ["body", "questions", "team"], "must have the field 'type'"),
        (q(type="boolean"), ["body", "questions", "team"], "'noul', 'choice', 'score', 'registered'; got \"boolean\""),
        (q(type="box"), ["body", "questions", "team"], 'got "box"'),
        (q(type=["noul"]), ["body", "questions", "team"], "must have a 'type'"),
        (q(type="choice"), ["body", "questions", "team", "criteria"], "is required and missing"),
        (q(type="choice", criteria={}), ["body", "questions", "team", "criteria"], "0 options; 2 to 255"),
        (q(type="choice", criteria={"a": None}), ["body", "questions", "team", "criteria"], "1 option; 2 to 255"),
        (
            q(type="choice", criteria={f"o{i}": None for i in range(256)}),
            ["body", "questions", "team", "criteria"],
            "256 options; the limit is 255",
        ),
        (q(type="choice", criteria=None), ["body", "questions", "team", "criteria"], "must be an object; got null"),
        (
            q(type="choice", criteria=["a", "b"]),
            ["body", "questions", "team", "criteria"],
            "must be an object; got an array",
        ),
        (q(type="choice", criteria={"a": 1, "b": None}), ["body", "questions", "team", "criteria", "a"], "got 1"),
        (
            q(type="choice", criteria={"choice": True, "b": None}),
            ["body", "questions", "team", "criteria", "choice"],
            "got true",
        ),
        (
            q(type="choice", criteria={"": None, "b": None}),
            ["body", "questions", "team", "criteria"],
            "empty string as its name",
        ),
        (q(type="score"), ["body", "questions", "team", "criteria"], "is required and missing"),
        (q(type="score", criteria=["a"]), ["body", "questions", "team", "criteria"], "1 level; 2 to 10"),
        (q(type="score", criteria=["a"] * 11), ["body", "questions", "team", "criteria"], "11 levels; the limit is 10"),
        (
            q(type="score", criteria={"0": "a", "1": "b", "2": "c"}),
            ["body", "questions", "team", "criteria"],
            "must be an array; got an object",
        ),
        (q(type="score", criteria=["a", 1]), ["body", "questions", "team", "criteria", 1], "got 1"),
        (q(type="noul", criteria=[]), ["body", "questions", "team", "criteria"], "must be an object"),
        (q(type="noul", criteria={"true": 1}), ["body", "questions", "team", "criteria", "true"], "got 1"),
        (
            q(type="noul", criteria={"yes": "a"}),
            ["body", "questions", "team", "criteria", "yes"],
            'unknown field "yes"',
        ),
        (q(type="noul", instructions=1), ["body", "questions", "team", "instructions"], "got 1"),
        (q(type="noul", threshold=1), ["body", "questions", "team", "threshold"], 'unknown field "threshold"'),
        (q(type="noul", noul=1), ["body", "questions", "team", "noul"], 'unknown field "noul"'),
        ([], ["body"], "must be an object; got an array"),
        (None, ["body"], "must be an object; got null"),
    ],
)
def test_what_is_refused_and_where(body: Any, loc: list[str | int], said: str) -> None:
    problem = problem_of(body)
    status, rendered = systemone.CONTRACT.errors.render(problem)
    assert status == 422
    assert [detail["loc"] for detail in rendered["detail"]] == [loc]
    assert said in rendered["detail"][0]["msg"]


def test_every_fault_is_listed() -> None:
    body = body_of(a={"type": "choice"}, b={"type": "score", "criteria": ["x"]}, c={"type": "noul", "why": 1}) | {
        "state": 5
    }
    _, rendered = systemone.CONTRACT.errors.render(problem_of(body))
    assert [detail["loc"] for detail in rendered["detail"]] == [
        ["body", "state"],
        ["body", "questions", "a", "criteria"],
        ["body", "questions", "b", "criteria"],
        ["body", "questions", "c", "why"],
    ]


def test_media_are_refused_rather_than_ignored() -> None:
    problem = problem_of(body_of(a=NOUL) | {"assets": {"img-1": {"type": "image"}}})
    assert problem.kind is Kind.UNSUPPORTED
    assert systemone.CONTRACT.errors.render(problem)[0] == 422
    assert problem.details[0].loc == ("assets",)


def test_the_servers_limits_are_named() -> None:
    body = body_of(**{str(i): NOUL for i in range(65)})
    assert "65 questions; the limit is 64 (the server's setting max_questions)" in problem_of(body).message
    assert len(decode(body, Limits(max_questions=65)).ids) == 65
    named = "the limit is 2 (the server's setting max_options)"
    assert f"3 levels; {named}" in problem_of(body_of(a=SCORE), Limits(max_options=2)).message
    three = {"type": "choice", "criteria": dict.fromkeys("abc")}
    assert f"3 options; {named}" in problem_of(body_of(a=three), Limits(max_options=2)).message


def test_a_limit_that_no_setting_raises_names_none() -> None:
    levels = {"type": "score", "criteria": ["a"] * 11}
    assert problem_of(body_of(a=levels), Limits(max_options=255)).message.endswith("11 levels; the limit is 10")
    options = {"type": "choice", "criteria": {str(i): None for i in range(256)}}
    assert problem_of(body_of(a=options), Limits(max_options=255)).message.endswith("256 options; the limit is 255")


def test_a_flood_of_faults_ends_the_checking() -> None:
    flood = {"type": "choice", "criteria": {str(i): i for i in range(255)}}
    problem = problem_of(body_of(**{str(i): flood for i in range(64)}))
    assert "more than 1000 fields are wrong or unknown" in problem.message
    assert systemone.CONTRACT.errors.render(problem)[0] == 422

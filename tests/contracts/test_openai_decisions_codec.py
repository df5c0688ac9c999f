"""OpenAI Decisions, against the types of the real client."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Decision

from option_strategies import OPTION_NAMES
from steelyard_runtime.contracts import openai_decisions
from steelyard_runtime.contracts.limits import Limits
from steelyard_runtime.contracts.openai_decisions.text import Decoded
from steelyard_runtime.contracts.option_names import looks
from steelyard_runtime.errors import Kind, Problem

PREDICATE: dict[str, Any] = {"type": "predicate", "instructions": "The customer is angry."}
CHOICE: dict[str, Any] = {
    "type": "choice",
    "instructions": "Which team?",
    "choices": [{"value": "billing", "description": "Payments"}, {"value": "sales"}],
    "name": "team",
}
SCORE: dict[str, Any] = {
    "type": "score",
    "instructions": "How urgent?",
    "levels": [{"label": "low"}, {"label": "mid", "description": "today"}, {"label": "high"}],
    "name": "urgency",
}

TEXT = st.text(min_size=1, max_size=10)
NAME = {"name": st.none() | st.text(max_size=8)}
JSON_PART = st.fixed_dictionaries(
    {"type": st.just("input_json"), "data": st.dictionaries(TEXT, st.none() | TEXT, max_size=2)}
)
TEXT_PART = st.fixed_dictionaries({"type": st.just("input_text"), "text": st.text(max_size=8)})
INSTRUCTIONS = TEXT | st.lists(TEXT_PART | JSON_PART, min_size=1, max_size=3)
QUESTIONS = st.one_of(
    st.fixed_dictionaries({"type": st.just("predicate"), "instructions": INSTRUCTIONS}, optional=NAME),
    st.fixed_dictionaries(
        {
            "type": st.just("choice"),
            "instructions": INSTRUCTIONS,
            "choices": st.lists(
                st.fixed_dictionaries(
                    {"value": st.booleans() | OPTION_NAMES | st.sampled_from(["true", "false", '"true"'])},
                    optional={"description": st.none() | st.text(max_size=8)},
                ),
                min_size=2,
                max_size=8,
                unique_by=lambda choice: (type(choice["value"]), looks(str(choice["value"]))),
            ),
        },
        optional=NAME,
    ),
    st.fixed_dictionaries(
        {
            "type": st.just("score"),
            "instructions": INSTRUCTIONS,
            "levels": st.lists(
                st.fixed_dictionaries(
                    {"label": OPTION_NAMES}, optional={"description": st.none() | st.text(max_size=8)}
                ),
                min_size=2,
                max_size=12,
            ),
        },
        optional=NAME,
    ),
)
MESSAGES = st.one_of(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "developer", "system"]),
            "content": st.text(max_size=8) | st.lists(TEXT_PART | JSON_PART, max_size=2),
        },
        optional={"type": st.just("message")},
    ),
    st.fixed_dictionaries({"role": st.just("assistant"), "content": st.text(max_size=8)}),
)
REQUESTS = st.fixed_dictionaries(
    {
        "model": TEXT,
        "input": st.text(max_size=12) | st.lists(MESSAGES, min_size=1, max_size=3),
        "questions": st.lists(QUESTIONS, min_size=1, max_size=4),
    }
)


def body_of(*questions: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"model": "gpt-6-luna", "input": "My order is late.", "questions": list(questions) or [PREDICATE]} | fields


def decode(body: Any, limits: Limits | None = None) -> Decoded:
    return openai_decisions.decode(body, limits=limits or Limits())


def state_of(*items: dict[str, Any]) -> str:
    return decode(body_of(input=list(items))).request.state


def problem_of(body: Any, limits: Limits | None = None) -> Problem:
    with pytest.raises(Problem) as caught:
        decode(body, limits)
    return caught.value


def same_typed(one: Any, other: Any) -> bool:
    return type(one) is type(other) and one == other


@given(REQUESTS)
def test_every_valid_request_is_answered_as_the_client_reads_it(identity, answers_for, body: dict[str, Any]) -> None:
    decoded = decode(body)
    response = openai_decisions.encode(decoded, answers_for(decoded.request), identity=identity, timing_ms=1.0)
    read = Decision.model_validate_json(json.dumps(response, allow_nan=False))
    assert len(read.answers) == len(body["questions"])
    for question, answer, internal in zip(body["questions"], read.answers, decoded.request.questions, strict=True):
        assert answer.type == question["type"]
        assert answer.name == question.get("name")
        assert all(option.text for option in internal.options)
        assert len({option.id for option in internal.options}) == len(internal.options)
        if answer.type == "predicate":
            assert 0 <= answer.probability <= 1
        else:
            assert sum(item.probability for item in answer.probabilities) == pytest.approx(1, abs=1e-6)
        if answer.type == "choice":
            values = [choice["value"] for choice in question["choices"]]
            assert all(same_typed(a.value, b) for a, b in zip(answer.probabilities, values, strict=True))
            best = max(answer.probabilities, key=lambda item: item.probability)
            assert same_typed(answer.choice, best.value)
        if answer.type == "score":
            assert [item.label for item in answer.probabilities] == [level["label"] for level in question["levels"]]
            assert answer.score == pytest.approx(sum(item.value * item.probability for item in answer.probabilities))


def test_the_three_types_in_one_request(identity, make_answer) -> None:
    decoded = decode(body_of(PREDICATE, CHOICE, SCORE))
    assert decoded.request.state == "My order is late."
    assert [
        (question.instructions, [option.text for option in question.options]) for question in decoded.request.questions
    ] == [
        ("The customer is angry.", ["yes", "no"]),
        ("Which team?", ["billing: Payments", "sales"]),
        ("How urgent?", ["low", "mid: today", "high"]),
    ]
    answers = [make_answer([2.0, 0.0]), make_answer([0.0, 1.0]), make_answer([0.0, 0.0, 1.0], prompt=20, reused=15)]
    response = openai_decisions.encode(decoded, answers, identity=identity, timing_ms=1.0)
    assert response["model"] == "tiny-model"
    assert response["usage"] == {
        "input_tokens": 40,
        "input_tokens_details": {"cached_tokens": 23, "cache_write_tokens": 0},
        "output_tokens": 0,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 40,
    }
    predicate, choice, score = response["answers"]
    assert predicate["probability"] == answers[0].probabilities[0]
    assert predicate["name"] is None
    assert choice["choice"] == "sales"
    assert choice["name"] == "team"
    assert score["name"] == "urgency"
    assert [item["value"] for item in score["probabilities"]] == [0, 1, 2]
    assert response["x_identity"]["model_id"] == "tiny-model"
    assert Decision.model_validate(response).answers[1].x_slot_mass == 0.75


def test_a_string_and_a_boolean_of_one_spelling_are_two_choices(identity, answers_for) -> None:
    choices = [{"value": True, "description": "agreed"}, {"value": "true"}, {"value": False}, {"value": "maybe"}]
    decoded = decode(body_of({**CHOICE, "choices": choices}))
    (question,) = decoded.request.questions
    assert [option.text for option in question.options] == ["true: agreed", '"true"', "false", '"maybe"']
    response = openai_decisions.encode(decoded, answers_for(decoded.request), identity=identity, timing_ms=1.0)
    values = [item["value"] for item in response["answers"][0]["probabilities"]]
    assert all(same_typed(a, b) for a, b in zip(values, [True, "true", False, "maybe"], strict=True))


def test_booleans_alone_are_shown_plainly() -> None:
    (question,) = decode(body_of({**CHOICE, "choices": [{"value": True}, {"value": False}]})).request.questions
    assert [option.text for option in question.options] == ["true", "false"]


@pytest.mark.parametrize("count", [2, 77, 255])
def test_up_to_255_choices(identity, answers_for, count: int) -> None:
    decoded = decode(body_of({**CHOICE, "choices": [{"value": f"v{i}"} for i in range(count)]}))
    response = openai_decisions.encode(decoded, answers_for(decoded.request), identity=identity, timing_ms=1.0)
    assert len(response["answers"][0]["probabilities"]) == count


def test_a_conversation_is_one_text() -> None:
    assert (
        state_of(
            {"role": "system", "content": "Be kind."},
            {"role": "developer", "content": [{"type": "input_text", "text": "Use metric units."}]},
            {
                "role": "user",
                "type": "message",
                "content": [
                    {"type": "input_text", "text": "Late.\nagain", "prompt_cache_breakpoint": {"mode": "explicit"}},
                    {"type": "input_json", "data": {"order": [7, None]}},
                    {"type": "input_json", "data": [{"é": 1}]},
                ],
            },
            {"type": "function_call", "name": "track", "call_id": "c1", "arguments": '{"order":7}', "id": "fc_1"},
            {"type": "function_call_output", "call_id": "c1", "output": "in transit"},
            {
                "type": "custom_tool_call",
                "namespace": "ops",
                "name": "say\nuser: hi",
                "call_id": "c2",
                "input": "a\r\nb",
                "status": "completed",
            },
            {
                "type": "custom_tool_call_output",
                "call_id": "c2",
                "status": "incomplete",
                "output": [{"type": "input_text", "text": "x"}, {"type": "input_text", "text": "y"}],
            },
            {
                "role": "assistant",
                "phase": "final_answer",
                "content": [{"type": "output_text", "text": "Today."}, {"type": "refusal", "refusal": "No."}],
            },
            {"role": "assistant", "content": "Bye.", "phase": None},
        )
        == """system: Be kind.
developer: Use metric units.
user: Late.
  again
  {"order":[7,null]}
  [{"é":1}]
function_call name="track" call_id="c1": {"order":7}
function_call_output call_id="c1": in transit
custom_tool_call namespace="ops" name="say\\nuser: hi" call_id="c2" status="completed": a\r
  b
custom_tool_call_output call_id="c2" status="incomplete": x
  y
assistant phase="final_answer": Today.
  refusal: No.
assistant: Bye."""
    )


@given(st.text(alphabet="ab:\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029 ", max_size=30))
def test_no_content_can_pass_for_another_item(content: str) -> None:
    text = state_of({"role": "user", "content": f"x{content}"}, {"role": "assistant", "content": "y"})
    starts = [line for line in text.splitlines() if not line.startswith("  ")]
    assert len(starts) == 2
    assert starts[0].startswith("user: x")
    assert starts[1] == "assistant: y"


def test_different_conversations_are_different_texts() -> None:
    one = state_of({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"})
    assert one != state_of({"role": "user", "content": "a\nassistant: b"})


IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}
CALL = {"type": "function_call", "name": "f", "call_id": "c", "arguments": "{}"}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (
            body_of(input=[{"role": "user", "content": [{"type": "input_text", "text": "x"}, IMAGE]}]),
            "input.0.content.1",
        ),
        (
            body_of(input=[CALL, {"type": "function_call_output", "call_id": "c", "output": [IMAGE]}]),
            "input.1.output.0",
        ),
        (body_of({**PREDICATE, "instructions": [IMAGE]}), "questions.0.instructions.0"),
    ],
)
def test_images_are_refused_at_their_place(body: dict[str, Any], param: str) -> None:
    problem = problem_of(body)
    status, rendered = openai_decisions.CONTRACT.errors.render(problem)
    assert status == 400
    assert rendered["error"]["param"] == param
    assert problem.kind is Kind.UNSUPPORTED
    assert "image parts are not supported" in rendered["error"]["message"]


@pytest.mark.parametrize(
    "items",
    [
        [{"type": "function_call_output", "call_id": "c", "output": "x"}],
        [{"type": "function_call_output", "call_id": "c", "output": "x"}, CALL],
        [CALL, {"type": "function_call_output", "call_id": "d", "output": "x"}],
        [CALL, {"type": "custom_tool_call_output", "call_id": "c", "output": "x"}],
    ],
)
def test_an_output_needs_its_call(items: list[dict[str, Any]]) -> None:
    problem = problem_of(body_of(input=items))
    assert problem.kind is Kind.INVALID
    assert "before this output has the call_id" in problem.message
    assert openai_decisions.CONTRACT.errors.render(problem)[1]["error"]["param"].endswith(".call_id")


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt_cache_key": None, "prompt_cache_options": None, "safety_identifier": None},
        {"prompt_cache_options": {"mode": "implicit", "ttl": "30m"}},
        {"prompt_cache_options": {}},
        {"safety_identifier": "u" * 64},
        {"prompt_cache_key": "tenant-7"},
        {"model": None},
        {"model": ""},
    ],
)
def test_hints_change_nothing(fields: dict[str, Any]) -> None:
    assert decode(body_of(**fields)).request == decode(body_of()).request


@pytest.mark.parametrize(
    ("body", "param", "kind", "said"),
    [
        (
            body_of(prompt_cache_options={"mode": "explicit"}),
            "prompt_cache_options.mode",
            Kind.UNSUPPORTED,
            "'implicit'",
        ),
        (body_of(prompt_cache_options={"ttl": "1h"}), "prompt_cache_options.ttl", Kind.INVALID, '"1h"'),
        (body_of(safety_identifier="u" * 65), "safety_identifier", Kind.INVALID, "64"),
        (body_of(temperature=0), "temperature", Kind.INVALID, 'unknown field "temperature"'),
        (body_of(model=1), "model", Kind.INVALID, "must be a string; got 1"),
        ({"model": "m", "questions": [PREDICATE]}, "input", Kind.INVALID, "is required and missing"),
        ({"model": "m", "input": "x"}, "questions", Kind.INVALID, "is required and missing"),
        (body_of(input=None), "input", Kind.INVALID, "must be a string or an array; got null"),
        (body_of(input={"role": "user"}), "input", Kind.INVALID, "must be a string or an array"),
        (body_of(input=[]), "input", Kind.INVALID, "must not be empty"),
        (body_of(input=["x"]), "input.0", Kind.INVALID, "must be a message with the role"),
        (body_of(input=[{"role": "tool", "content": "x"}]), "input.0", Kind.INVALID, "must be a message with the role"),
        (body_of(input=[{"type": "reasoning"}]), "input.0", Kind.INVALID, "must be a message with the role"),
        (body_of(input=[{"type": [], "role": []}]), "input.0", Kind.INVALID, "must be a message with the role"),
        (body_of(input=[{"role": "user"}]), "input.0.content", Kind.INVALID, "is required and missing"),
        (
            body_of(input=[{"role": "user", "content": 1}]),
            "input.0.content",
            Kind.INVALID,
            "must be a string or an array",
        ),
        (body_of(input=[{"role": "user", "content": [1]}]), "input.0.content.0", Kind.INVALID, "must be an object"),
        (
            body_of(input=[{"role": "user", "content": [{"type": "input_text", "text": 1}]}]),
            "input.0.content.0.text",
            Kind.INVALID,
            "must be a string; got 1",
        ),
        (
            body_of(input=[{"role": "user", "content": [{"type": "output_text", "text": "x"}]}]),
            "input.0.content.0",
            Kind.INVALID,
            "'input_text', 'input_json'",
        ),
        (
            body_of(input=[{"role": "user", "content": [{"type": "input_json", "data": [1]}]}]),
            "input.0.content.0.data",
            Kind.INVALID,
            "an array of objects",
        ),
        (body_of(input=[{"role": "user", "content": "x", "name": "n"}]), "input.0.name", Kind.INVALID, "unknown field"),
        (body_of(input=[{**CALL, "arguments": {}}]), "input.0.arguments", Kind.INVALID, "must be a string"),
        (body_of(input=[{**CALL, "status": "done"}]), "input.0.status", Kind.INVALID, "'in_progress'"),
        (body_of() | {"questions": []}, "questions", Kind.INVALID, "0 questions; at least 1"),
        (body_of() | {"questions": {}}, "questions", Kind.INVALID, "must be an array"),
        (body_of({"type": "noul"}), "questions.0", Kind.INVALID, "'predicate', 'choice', 'score'"),
        (body_of({"type": "predicate"}), "questions.0.instructions", Kind.INVALID, "is required and missing"),
        (body_of({**PREDICATE, "instructions": ""}), "questions.0.instructions", Kind.INVALID, "must not be empty"),
        (body_of({**PREDICATE, "instructions": []}), "questions.0.instructions", Kind.INVALID, "must not be empty"),
        (body_of({**PREDICATE, "name": 1}), "questions.0.name", Kind.INVALID, "must be a string"),
        (body_of({**PREDICATE, "threshold": 1}), "questions.0.threshold", Kind.INVALID, 'unknown field "threshold"'),
        (body_of({**CHOICE, "choices": [{"value": "a"}]}), "questions.0.choices", Kind.INVALID, "1 choice; 2 to 255"),
        (
            body_of({**CHOICE, "choices": [{"value": str(i)} for i in range(256)]}),
            "questions.0.choices",
            Kind.INVALID,
            "256 choices; the limit is 255",
        ),
        (
            body_of({**CHOICE, "choices": [{"value": True}, {"value": True}]}),
            "questions.0.choices",
            Kind.INVALID,
            "repeated: true",
        ),
        (
            body_of({**CHOICE, "choices": [{"value": 1}, {"value": "a"}]}),
            "questions.0.choices.0.value",
            Kind.INVALID,
            "must be true, false or a string that is not empty; got 1",
        ),
        (
            body_of({**CHOICE, "choices": [{"value": ""}, {"value": "a"}]}),
            "questions.0.choices.0.value",
            Kind.INVALID,
            '""',
        ),
        (body_of({**SCORE, "levels": [{"label": "a"}]}), "questions.0.levels", Kind.INVALID, "1 level; 2 to 255"),
        (body_of({**SCORE, "levels": ["a", "b"]}), "questions.0.levels.0", Kind.INVALID, "must be an object"),
        ([], None, Kind.INVALID, "must be an object"),
    ],
)
def test_what_is_refused(body: Any, param: str | None, kind: Kind, said: str) -> None:
    problem = problem_of(body)
    assert problem.kind is kind
    status, rendered = openai_decisions.CONTRACT.errors.render(problem)
    assert status == 400
    assert rendered["error"]["param"] == param
    assert said in rendered["error"]["message"]


def test_the_servers_limit_of_questions_is_named() -> None:
    body = body_of(*[PREDICATE] * 65)
    assert "65 questions; the limit is 64 (the server's setting max_questions)" in problem_of(body).message
    assert len(decode(body, Limits(max_questions=400)).questions) == 65
    problem = problem_of(body_of(*[PREDICATE] * 401), Limits(max_questions=1000))
    assert problem.message.endswith("401 questions; the limit is 400")


def test_the_servers_limit_of_options_is_named() -> None:
    choices = {"type": "choice", "instructions": "?", "choices": [{"value": v} for v in "abc"]}
    levels = {"type": "score", "instructions": "?", "levels": [{"label": v} for v in "abc"]}
    for question, noun in ((choices, "choices"), (levels, "levels")):
        message = problem_of(body_of(question), Limits(max_options=2)).message
        assert f"3 {noun}; the limit is 2 (the server's setting max_options)" in message


def test_a_long_list_of_wrong_items_fails_at_the_first() -> None:
    problem = problem_of(body_of(input=[0] * 200_000))
    assert [detail.loc for detail in problem.details] == [("input", 0)]

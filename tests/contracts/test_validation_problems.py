"""Faults are named by the caller's own path, quoted briefly, and never a surprise."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Discriminator, Field, ValidationError, field_validator

from steelyard_runtime.contracts import decide, openai_decisions, systemone
from steelyard_runtime.contracts.limits import Limits
from steelyard_runtime.contracts.text import labelled, render
from steelyard_runtime.contracts.validation import MAX_DETAILS, Strict, from_pydantic, quote
from steelyard_runtime.errors import Kind, Problem

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)


class Cat(Strict):
    kind: Literal["cat"]
    lives: int = Field(9, ge=1)


class Dog(Strict):
    kind: Literal["dog"]
    name: str = Field(min_length=1)
    tricks: list[str] = Field(default=[], max_length=2)


class Zoo(Strict):
    pets: dict[str, Annotated[Cat | Dog, Discriminator("kind")]]
    open: bool = True
    rating: float = 1.0

    @field_validator("rating")
    @classmethod
    def _rated(cls, value: float) -> float:
        if value > 5:
            raise ValueError("ratings end at 5; " + "x" * 10_000)
        return value


def problem_of(body: Any, model: type[BaseModel] = Zoo) -> Problem:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(body)
    return from_pydantic(caught.value, unions=[("pets", ...)])


@pytest.mark.parametrize(
    ("body", "loc", "said"),
    [
        ({}, ("pets",), "is required and missing"),
        (5, (), "must be an object; got 5"),
        ({"pets": []}, ("pets",), "must be an object; got an array with 0 items"),
        (
            {"pets": {"cat": {"kind": "cat", "lives": 0}}},
            ("pets", "cat", "lives"),
            "must be greater than or equal to 1; got 0",
        ),
        ({"pets": {"cat": {"kind": "cat", "cat": 1}}}, ("pets", "cat", "cat"), 'unknown field "cat"; remove it'),
        ({"pets": {"a": {"kind": "cow"}}}, ("pets", "a"), "must have a 'kind' of 'cat', 'dog'; got \"cow\""),
        ({"pets": {"a": {}}}, ("pets", "a"), "must have the field 'kind'"),
        ({"pets": {"a": None}}, ("pets", "a"), "must be an object; got null"),
        ({"pets": {"a": {"kind": "dog"}}}, ("pets", "a", "name"), "is required and missing"),
        ({"pets": {"a": {"kind": "dog", "name": ""}}}, ("pets", "a", "name"), "must not be empty"),
        ({"pets": {"a": {"kind": "dog", "name": 1}}}, ("pets", "a", "name"), "must be a string; got 1"),
        ({"pets": {"a": {"kind": "dog", "name": "b", "tricks": ["c", True]}}}, ("pets", "a", "tricks", 1), "got true"),
        ({"pets": {"a": {"kind": "dog", "name": "b", "tricks": "c"}}}, ("pets", "a", "tricks"), "must be an array"),
        ({"pets": {}, "open": 1}, ("open",), "must be true or false; got 1"),
        ({"pets": {}, "open": "true"}, ("open",), 'got "true"'),
        ({"pets": {}, "rating": "1"}, ("rating",), 'must be a number; got "1"'),
        ({"pets": {}, "rating": 6.0}, ("rating",), "ratings end at 5; xxx"),
        ({"pets": {}, "pet": {}}, ("pet",), 'unknown field "pet"'),
    ],
)
def test_one_fault(body: Any, loc: tuple[str | int, ...], said: str) -> None:
    problem = problem_of(body)
    assert problem.kind is Kind.INVALID
    assert [detail.loc for detail in problem.details] == [loc]
    assert said in problem.details[0].message
    assert said in problem.message
    assert "pydantic" not in problem.message
    assert len(problem.message) < 600


def test_every_fault_is_listed_and_the_first_is_the_message() -> None:
    problem = problem_of({"pets": {"a": {"kind": "cat", "lives": "9"}, "b": {"kind": "dog"}}, "open": None, "x": 1})
    assert [detail.loc for detail in problem.details] == [
        ("pets", "a", "lives"),
        ("pets", "b", "name"),
        ("open",),
        ("x",),
    ]
    assert problem.message == 'pets.a.lives: must be an integer; got "9" (3 more faults)'
    assert problem.param == "pets.a.lives"


def test_faults_beyond_the_longest_list_are_counted() -> None:
    problem = problem_of({"pets": {str(i): None for i in range(MAX_DETAILS + 7)}})
    assert len(problem.details) == MAX_DETAILS + 1
    assert problem.details[-1].message == "7 more faults are not listed"


def test_many_unknown_fields_are_one_fault() -> None:
    problem = problem_of({"pets": {}} | {f"x{i}": i for i in range(100_000)})
    assert [detail.type for detail in problem.details] == ["extra_forbidden"]
    assert "the fields are pets, open, rating" in problem.message


@pytest.mark.parametrize(
    "value",
    [
        "s" * 1_000_000,
        "\ud800" * 1000,
        "\n\u2028" * 500,
        10**4299,
        -(10**4000),
        float("inf"),
        [[[]]] * 1000,
        {"k" * 5000: "v" * 5000},
        object(),
        b"bytes",
    ],
    ids=["long", "surrogates", "breaks", "huge", "negative", "infinite", "nested", "object", "foreign", "bytes"],
)
def test_hostile_values_make_short_messages(value: Any) -> None:
    for body in (
        {"pets": {"a": value}},
        {"pets": {"a": {"kind": value}}},
        {"pets": {"a": {"kind": "cat", "lives": [value]}}},
        {"pets": value},
        {"pets": {}, "open": value},
    ):
        problem = problem_of(body)
        assert len(problem.message) < 1200
        json.dumps([problem.message, problem.param], ensure_ascii=False).encode()


def test_long_names_are_shortened_in_paths() -> None:
    problem = problem_of({"pets": {"n" * 10_000: {"kind": "cat", "u" * 10_000: 1}}})
    (detail,) = problem.details
    assert detail.loc == ("pets", "n" * 80 + "…", "u" * 80 + "…")
    assert len(problem.message) < 600


@given(JSON)
def test_quotes_are_short_and_on_one_line(value: Any) -> None:
    assert len(quote(value)) < 600
    assert "\n" not in quote(value)


@given(st.text(min_size=81, max_size=200))
def test_a_long_string_is_quoted_by_its_beginning_and_its_length(text: str) -> None:
    assert quote(text) == json.dumps(text[:80] + "…", ensure_ascii=False) + f" ({len(text)} characters)"


@pytest.mark.parametrize("codec", [decide.CONTRACT, systemone.CONTRACT, openai_decisions.CONTRACT])
@given(body=JSON, wrap=st.sampled_from([None, "decision", "decisions", "questions", "input"]))
def test_whatever_is_sent_the_answer_is_a_problem_of_the_callers(codec: Any, body: Any, wrap: str | None) -> None:
    whole = body if wrap is None else {"model": "m", "state": "s", wrap: body}
    try:
        codec.decode(whole, limits=Limits())
    except Problem as problem:
        status, rendered = codec.errors.render(problem)
        assert status in (400, 422)
        json.dumps(rendered, ensure_ascii=False, allow_nan=False).encode()
    else:
        pytest.fail("nothing of that kind is a valid request")


@pytest.mark.parametrize("codec", [decide.CONTRACT, systemone.CONTRACT, openai_decisions.CONTRACT])
def test_schemas_are_json_and_describe_the_limits(codec: Any) -> None:
    schema = json.dumps(codec.request.model_json_schema())
    assert '"additionalProperties": false' in schema
    assert ": 255" in schema


@given(JSON)
def test_render_is_compact_json_that_reads_back(value: Any) -> None:
    text = render(value)
    if isinstance(value, str):
        assert text == value
    else:
        assert json.loads(text) == value
        assert text == json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def test_labelled() -> None:
    assert labelled("a", "b") == "a: b"
    assert labelled("a", "") == "a"

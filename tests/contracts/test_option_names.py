"""Options that a person cannot tell apart are refused in every decision contract, and the error names both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from option_strategies import different_names
from steelyard_runtime.contracts import decide, openai_decisions, systemone
from steelyard_runtime.contracts.limits import Limits
from steelyard_runtime.contracts.option_names import COMPARED, check_names, looks
from steelyard_runtime.errors import Kind, Problem


def _decide(names: list[str]) -> Any:
    decision = {"id": "1", "state": "s", "question": "q", "options": [{"id": name} for name in names]}
    return decide.decode({"decision": decision}, limits=Limits())


def _systemone(names: list[str]) -> Any:
    question = {"type": "choice", "criteria": dict.fromkeys(names)}
    return systemone.decode({"state": "s", "questions": {"a": question}}, limits=Limits())


def _decisions(names: list[str]) -> Any:
    question = {"type": "choice", "instructions": "q", "choices": [{"value": name} for name in names]}
    return openai_decisions.decode({"model": "m", "input": "s", "questions": [question]}, limits=Limits())


CONTRACTS: list[Callable[[list[str]], Any]] = [_decide, _systemone, _decisions]

CONTROL = ["a\nb", "a\tb", "\x00", "a\x1bb", "a\x7f", "a\x85", "a\u2028", "a\u2029b", "\u202eab", "a\u2066b"]
TWINS = [
    ("caf\u00e9", "cafe\u0301"),
    ("c\u00e0\u0323", "c\u1ea1\u0300"),
    ("yes", "yes "),
    ("no way", "no\u00a0way"),
    ("no way", "no  way"),
    ("zero\u200bwidth", "zerowidth"),
    ("soft\u00adhyphen", "softhyphen"),
    ("\ufeffmark", "mark"),
    ("left\u200eright", "leftright"),
    ("heart \u2764", "heart \u2764\ufe0f"),
    ("tags", "tags\U000e0041\U000e007f"),
    ("a flag \U0001f3f4", "a flag \U0001f3f4\U000e0061\U000e007f"),
    ("\u8fbb", "\u8fbb\U000e0100"),
    ("operators", "opera\u2065tors"),
    ("swapping", "swap\u206aping\u206f"),
    ("no way", "no\u2800way"),
    ("blank", "blank\u2800"),
    ("annotated", "\ufff9annotated\ufffb"),
    ("music", "mus\U0001d173ic\U0001d17a"),
    ("shorthand", "short\U0001bca0hand"),
    ("khmer", "khm\u17b4er\u17b5"),
    ("poxvikau", "\u03c1\u03bf\u03c7\u03bd\u03b9\u03ba\u03b1\u03c5"),
    ("cell I", "ce\u04cf\u04cf \u04c0"),
    ("cop", "\u0441\u043e\u0440"),
    ("BETA", "\u0392\u0395\u03a4\u0391"),
    ("well-known", "well\u2010known"),
    ("don't", "don\u2019t"),
]
DIFFERENT = [
    ("US", "us"),
    ("l", "I"),
    ("O", "0"),
    ("m\u00b2", "m2"),
    ("stra\u00dfe", "strasse"),
    ("\uff21", "A"),
    ("\u00e9", "e"),
    ("\u0441\u043e\u0440", "\u043a\u043e\u0442"),
    ("\u2764", "\U0001f494"),
    ("\U0001f3f4", "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f"),
    ("\u03b2", "b"),
    ("\u2801", "\u2803"),
    ("a/b", "ab"),
    ("1.0", "1.00"),
    ("-", "\u2014"),
]


@pytest.mark.parametrize("decode", CONTRACTS)
@pytest.mark.parametrize("name", CONTROL)
def test_control_characters_are_refused(decode: Callable[[list[str]], Any], name: str) -> None:
    with pytest.raises(Problem) as caught:
        decode(["other", name])
    assert caught.value.kind is Kind.INVALID
    assert "control character U+" in str(caught.value)


@pytest.mark.parametrize("decode", CONTRACTS)
@pytest.mark.parametrize("twins", TWINS)
def test_lookalikes_are_refused_and_both_are_named(decode: Callable[[list[str]], Any], twins: tuple[str, str]) -> None:
    for first, second in (twins, twins[::-1]):
        with pytest.raises(Problem) as caught:
            decode([first, "other", second])
        assert caught.value.kind is Kind.INVALID
        (detail,) = caught.value.details
        assert detail.type == "lookalike"
        assert "U+" in detail.message


@pytest.mark.parametrize("decode", CONTRACTS)
@pytest.mark.parametrize("pair", DIFFERENT)
def test_names_that_differ_to_the_eye_are_two_options(
    decode: Callable[[list[str]], Any], pair: tuple[str, str]
) -> None:
    (question,) = decode([*pair]).request.questions
    assert len(question.options) == 2


@pytest.mark.parametrize("decode", CONTRACTS)
@pytest.mark.parametrize("name", [" ", "\u200b", "\u00a0\u3164", "\ufeff", "\u2800", "\U000e0041"])
def test_a_name_of_which_nothing_is_seen_is_refused(decode: Callable[[list[str]], Any], name: str) -> None:
    with pytest.raises(Problem, match=r"U\+[0-9A-F]{4}.* nothing is seen"):
        decode(["other", name])


def test_labels_of_levels_have_no_control_characters_and_may_be_equal() -> None:
    def levels(*labels: str) -> dict[str, Any]:
        question = {"type": "score", "instructions": "q", "levels": [{"label": label} for label in labels]}
        return {"model": "m", "input": "s", "questions": [question]}

    with pytest.raises(Problem, match=r"control character U\+000A"):
        openai_decisions.decode(levels("low", "hi\ngh"), limits=Limits())
    assert openai_decisions.decode(levels("low", "low"), limits=Limits())


def test_options_with_one_description_are_two_options() -> None:
    """No contract says that descriptions differ; the answer is a name."""
    options = [{"id": name, "description": "the same"} for name in ("one", "two")]
    body = {"decision": {"id": "1", "state": "s", "question": "q", "options": options}}
    (question,) = decide.decode(body, limits=Limits()).request.questions
    first, second = question.options
    assert first.text != second.text


def test_booleans_are_no_lookalikes_of_strings() -> None:
    question = {"type": "choice", "instructions": "q", "choices": [{"value": True}, {"value": "true"}]}
    body = {"model": "m", "input": "s", "questions": [question]}
    assert openai_decisions.decode(body, limits=Limits())


def test_long_names_are_compared_character_by_character() -> None:
    """Putting many accents in order takes the square of their number, and nobody reads such a name by its looks."""
    check_names(["e\u0301" * COMPARED, "\u00e9" * COMPARED], "name")
    assert looks("\u0300\u0323" * 500_000) == "\u0300\u0323" * 500_000


@given(
    names=different_names(min_size=2, max_size=8),
    added=st.sampled_from(["\u200b", " ", "\u00a0", "\u200e", "\u2800", "\U000e0020"]),
)
def test_what_is_not_seen_makes_no_second_option(names: list[str], added: str) -> None:
    check_names(names, "name")
    with pytest.raises(Exception, match="look the same"):
        check_names([*names, names[0] + added], "name")

"""TOML is what the standard library makes of it, or a refusal that takes no longer than reading the text."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard_runtime.decisions.contract import ContractError, parse_contract
from steelyard_runtime.strict_toml import MAX_KEY_PARTS, parse


@given(st.text(alphabet="ab.=\"'[]{}# \n\\1-_,", max_size=60))
def test_it_is_the_standard_librarys_reading(text: str) -> None:
    try:
        expected = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        with pytest.raises(ValueError):
            parse(text)
    else:
        assert parse(text) == expected


@pytest.mark.parametrize("part", ["a", '"a b"', "'a'", "a ", "\ta"])
def test_a_key_of_many_parts_is_refused_before_it_is_read(part: str) -> None:
    assert parse(".".join([part] * MAX_KEY_PARTS) + " = 1")
    with pytest.raises(ValueError, match="line 2 has a key of more than 100 parts"):
        parse("\n" + ".".join([part] * 200_000) + " = 1")


def test_long_texts_are_no_keys() -> None:
    text = "word. " * 90 + "x" * 500_000 + "..." * 1000 + "a, b. c; " * 1000
    assert parse(f'a = "{text}"') == {"a": text}


@pytest.mark.parametrize("text", ["a = " + "[" * 100_000, "a = " + "{a=" * 5000, f"a = {'9' * 5000}"])
def test_what_python_cannot_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse(text)


def test_a_contract_of_faults_is_told_in_a_few_lines() -> None:
    with pytest.raises(ContractError) as refused:
        parse_contract("".join(f"x{number} = 1\n" for number in range(5000)))
    assert "and 49" in str(refused.value)
    assert len(str(refused.value).splitlines()) < 40

"""``strict_json.parse`` agrees with ``json.loads`` on every valid document and refuses what that one lets through."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard_runtime import strict_json
from steelyard_runtime.errors import Kind, Problem
from steelyard_runtime.settings import MAX_INTEGER_DIGITS

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(alphabet=st.characters(exclude_categories=["Cs"]))
)
# Text made of what a scanner could stumble over.
TRICKY = st.text(alphabet='\\"[]{}ue\U0001f600é0 \n', max_size=12)
VALUES = st.recursive(
    SCALARS | TRICKY,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TRICKY | st.text(max_size=5), inner, max_size=4),
    max_leaves=25,
)


def parse(body: bytes, *, max_depth: int, max_structure: int = 1 << 20) -> Any:
    return strict_json.parse(body, max_depth=max_depth, max_structure=max_structure)


def depth_of(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max((depth_of(item) for item in value.values()), default=0)
    if isinstance(value, list):
        return 1 + max((depth_of(item) for item in value), default=0)
    return 0


def refused(body: bytes, *, max_depth: int = 64) -> str:
    with pytest.raises(Problem) as caught:
        parse(body, max_depth=max_depth)
    assert caught.value.kind is Kind.MALFORMED_JSON
    assert len(caught.value.message) < 300
    return caught.value.message


@given(VALUES, st.booleans(), st.sampled_from([None, 1]))
def test_valid_documents_are_read_as_json_loads_reads_them(value: object, ascii_only: bool, indent: int | None) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    assert repr(parse(body, max_depth=64)) == repr(json.loads(body))


@given(VALUES)
def test_the_depth_limit_is_exact(value: object) -> None:
    depth = depth_of(value)
    body = json.dumps(value).encode()
    parse(body, max_depth=depth)
    if depth:
        assert f"the limit is {depth - 1}" in refused(body, max_depth=depth - 1)


@given(VALUES, TRICKY)
def test_a_duplicate_key_is_named(value: object, key: str) -> None:
    shown = json.dumps(key)
    body = f'[{{"other": 1, {shown}: {json.dumps(value)}, {shown}: 2}}]'.encode()
    assert json.dumps(key, ensure_ascii=False) in refused(body)


@given(VALUES, st.sampled_from(["NaN", "Infinity", "-Infinity"]))
def test_a_constant_that_is_not_json_is_named_with_its_place(value: object, constant: str) -> None:
    before = f'{{"NaN": {json.dumps(value)}, "x": '
    message = refused(f"{before}{constant}}}".encode())
    assert message.startswith(constant)
    assert f"byte offset {len(before.encode())}" in message


@given(VALUES, st.sampled_from([r"\ud800", r"\uDBFF", r"\udc00", r"\uDFFF", r"\ud83d\ud83d\ude00", r"\ud800\n"]))
def test_half_a_surrogate_pair_is_refused_in_values_and_keys(value: object, half: str) -> None:
    text = json.dumps(value)
    for before, after in ((f'[{text}, "a', '"]'), (f'[{text}, {{"b\\\\', '": 1}]')):
        assert f"byte offset {len(before)} " in refused((before + half + after).encode())


@given(VALUES, st.text(alphabet=']},:"x0[', min_size=1, max_size=3))
def test_trailing_data_is_refused(value: object, rest: str) -> None:
    refused(f"[{json.dumps(value)}] {rest}".encode())


@given(VALUES, st.data())
def test_a_document_cut_short_is_refused(value: object, data: st.DataObject) -> None:
    body = json.dumps([value]).encode()
    refused(body[: data.draw(st.integers(0, len(body) - 1))])


@given(st.binary(max_size=60) | st.text(alphabet='[]{}",:\\u d8e0-1Na\n', max_size=60).map(str.encode))
def test_any_bytes_are_either_read_like_json_loads_or_refused(body: bytes) -> None:
    with suppress(Problem):
        value = parse(body, max_depth=8)
        assert repr(value) == repr(json.loads(body))
        assert depth_of(value) <= 8
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()


@pytest.mark.parametrize("body", [b"", b" ", b"\n\t\r "])
def test_an_empty_body(body: bytes) -> None:
    assert "empty body" in refused(body)


@pytest.mark.parametrize("nesting", [10_000, 1_000_000])
@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_bottomless_nesting(nesting: int, closed: bool, opening: bytes) -> None:
    close = {b"[": b"]", b'{"a":': b"}"}[opening]
    body = opening * nesting + (b"0" + close * nesting if closed else b"")
    assert "nested more than 64 deep" in refused(body)


def test_the_place_of_too_much_nesting() -> None:
    assert "byte offset 17;" in refused(rb'["[[\"[[", "]", [[1]]]', max_depth=2)


def test_brackets_in_strings_are_not_nesting() -> None:
    text = "[{" * 200 + "\\" + '"' + "]" * 7
    assert parse(json.dumps([text, {text: text}]).encode(), max_depth=2) == [text, {text: text}]


def test_the_deepest_setting_stays_within_the_recursion_limit() -> None:
    value = parse(b'{"a":[' * 256 + b"1" + b"]}" * 256, max_depth=512)
    for _ in range(256):
        value = value["a"][0]
    assert value == 1


@pytest.mark.parametrize(
    "literal", ["1e999", "-1e400", "1E+309", "9" * 400 + ".0", "9" * 250 + "e99", "-" + "2" * 309 + ".5"]
)
def test_numbers_beyond_a_double(literal: str) -> None:
    assert "too large" in refused(f'{{"x": {literal}}}'.encode())


@pytest.mark.parametrize("literal", ["1e308", "-1.7976931348623157e308", "1e-999", "0e5", "0." + "3" * 400, "5E+2"])
def test_numbers_within_a_double(literal: str) -> None:
    assert parse(literal.encode(), max_depth=1) == float(literal)


def test_integers_have_a_longest_length() -> None:
    longest = "9" * MAX_INTEGER_DIGITS
    assert parse(f"[-{longest},{longest}]".encode(), max_depth=1) == [-int(longest), int(longest)]
    message = refused(f"[{longest}9]".encode())
    assert f"{MAX_INTEGER_DIGITS + 1} digits" in message
    assert f"{MAX_INTEGER_DIGITS} are allowed" in message
    assert parse(f'"{longest}{longest}"'.encode(), max_depth=1) == longest * 2


def test_the_integer_limit_does_not_depend_on_the_interpreters() -> None:
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        assert "digits" in refused(b"1" * 5000)
    finally:
        sys.set_int_max_str_digits(before)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"\xef\xbb\xbf{}", "byte order mark"),
        (b'{"a": "\xff"}', "byte 0xff at byte offset 7"),
        (b'"\xed\xa0\x80"', "not valid UTF-8"),
        ("{}".encode("utf-16-le"), "not valid JSON"),
        (b'{"a": "caf\xc3\xa9", b}', "line 1, column 15 (byte offset 15)"),
        (b'{\n  "a": 1,\n}', "line 3, column 1 (byte offset 12)"),
        (b'{"a": 1} {"a": 2}', "Extra data"),
        (b"{'a': 1}", "not valid JSON"),
        (b'"\x01"', "control character"),
        (b"[01]", "not valid JSON"),
        (b"[1,]", "not valid JSON"),
        (b"[+1]", "not valid JSON"),
        (b"nul", "not valid JSON"),
        (b"\xc2\xa0{}", "not valid JSON"),
        (b'{"a":1,"\\u0061":2}', 'key "a"'),
        (b'{"' + b"k" * 500 + b'":1,"' + b"k" * 500 + b'":2}', "k" * 80 + "…"),
    ],
)
def test_what_is_wrong_and_where(body: bytes, said: str) -> None:
    assert said in refused(body)


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (rb'"\ud83d\ude00"', "\U0001f600"),
        (rb'"\\ud800"', "\\ud800"),
        (rb'"\\\\ud800\\"', "\\\\ud800\\"),
        (rb'{"\uD83D\uDE00": "\ufffd"}', {"\U0001f600": "\ufffd"}),
        (b'{"a": {"a": 1}, "A": 2}', {"a": {"a": 1}, "A": 2}),
        (b'"NaN"', "NaN"),
        (b'"\x00"'.replace(b"\x00", rb"\u0000"), "\x00"),
        (b" [1.0, 1, true]\n", [1.0, 1, True]),
    ],
)
def test_what_looks_wrong_and_is_not(body: bytes, value: object) -> None:
    assert repr(parse(body, max_depth=2)) == repr(value)


@settings(max_examples=30)
@given(st.lists(VALUES, max_size=5))
def test_documents_with_more_brackets_than_the_limit(values: list[object]) -> None:
    body = json.dumps([values, [[]] * 80]).encode()
    assert repr(parse(body, max_depth=60)) == repr(json.loads(body))


def structure_of(value: object) -> int:
    """How many of [ ] { } : , a compact text of ``value`` has outside of strings."""
    if isinstance(value, list):
        return 2 + max(0, len(value) - 1) + sum(map(structure_of, value))
    if isinstance(value, dict):
        return 2 + max(0, len(value) - 1) + len(value) + sum(map(structure_of, value.values()))
    return 0


def too_much(body: bytes, *, max_structure: int) -> bool:
    with suppress(Problem):
        parse(body, max_depth=64, max_structure=max_structure)
        return False
    with pytest.raises(Problem) as caught:
        parse(body, max_depth=64, max_structure=max_structure)
    assert caught.value.kind is Kind.BODY_TOO_LARGE
    assert caught.value.counts == {"limit": max_structure}
    assert "max_json_structure" in caught.value.message
    return True


@given(VALUES)
def test_the_limit_on_structural_characters_is_exact(value: object) -> None:
    body = json.dumps([value, "[]{}:,"], indent=1).encode()
    structure = structure_of([value, ""])
    assert not too_much(body, max_structure=structure)
    assert too_much(body, max_structure=structure - 1)


@pytest.mark.parametrize("filler", ["a", "\\", ",", '"', "é"])
def test_a_string_goes_on_from_block_to_block(filler: str) -> None:
    for size in range(strict_json.BLOCK - 6, strict_json.BLOCK + 2):
        text = filler * (size // len(filler))
        body = json.dumps([text, [text + "]"]], ensure_ascii=False).encode()
        assert not too_much(body, max_structure=5)
        assert too_much(body, max_structure=4)


@pytest.mark.parametrize("item", [b"[]", b"{}", b"0", b'""', b'{"a":[]}'])
def test_four_mebibytes_of_values_are_refused_before_one_of_them_is_made(
    item: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strict_json.json, "loads", None)
    body = b'{"state":[' + (item + b",") * ((4 << 20) // (len(item) + 1)) + b"0]}"
    assert too_much(body, max_structure=200_000)

"""Rows of states are read whole or refused with their line, whatever wrote the file."""

from __future__ import annotations

import io
import itertools
import tracemalloc

import pytest

from steelyard.rows.reading import LARGEST_LIST, LONGEST_ROW, Fields, check_rows, read_rows
from steelyard_base.exit_codes import CommandError, ExitCode


def rows(data: bytes | str, kind: str = "jsonl", *, state: tuple[str, ...] = (), id: str | None = None):
    stream = io.BytesIO(data.encode() if isinstance(data, str) else data)
    found = read_rows(stream, kind=kind, fields=Fields(state=state, id=id), origin="f")
    return [(row.line, row.id, row.state) for row in found]


def refusal(data: bytes | str, kind: str = "jsonl", **fields) -> str:
    with pytest.raises(CommandError) as caught:
        rows(data, kind, **fields)
    assert caught.value.code is ExitCode.USAGE
    assert len(caught.value.message) < 400
    return caught.value.message


@pytest.mark.parametrize(
    ("data", "kind", "found"),
    [
        ('"a"\n"b"\n', "jsonl", [(1, 1, "a"), (2, 2, "b")]),
        ('"a"\n\n  \n"b"', "jsonl", [(1, 1, "a"), (4, 2, "b")]),
        ('{"id": "x", "state": {"a": 1}}\n', "jsonl", [(1, "x", {"a": 1})]),
        ('{"id": 7, "a": 1, "b": null}\n', "jsonl", [(1, 7, {"a": 1, "b": None})]),
        ('{"text": "t", "n": 1}\n', "jsonl", [(1, 1, {"text": "t", "n": 1})]),
        ('["a", "b"]', "json", [(1, 1, "a"), (2, 2, "b")]),
        ('[{"id": "x", "state": "s"}]', "json", [(1, "x", "s")]),
        ("one\ntwo words \n\nthree", "txt", [(1, 1, "one"), (2, 2, "two words "), (4, 3, "three")]),
        ("id,state\nx,s\n", "csv", [(2, "x", "s")]),
        ('id,state\nx,"a\n\nb"\n\ny,"q""q"\n', "csv", [(2, "x", "a\n\nb"), (6, "y", 'q"q')]),
        ("a\tb\n1\t2\n", "tsv", [(2, 1, {"a": "1", "b": "2"})]),
    ],
)
def test_every_format(data, kind, found):
    assert rows(data, kind) == found
    assert rows(b"\xef\xbb\xbf" + data.encode(), kind) == found
    if "\n\nb" not in data:
        assert rows(data.replace("\n", "\r\n"), kind) == found


def test_fields_can_be_chosen():
    data = '{"key": "k", "a": 1, "b": "x", "c": 3}\n'
    assert rows(data, state=("b",), id="key") == [(1, "k", "x")]
    assert rows(data, state=("a", "c"), id="key") == [(1, "k", {"a": 1, "c": 3})]
    assert rows(data, id="key") == [(1, "k", {"a": 1, "b": "x", "c": 3})]
    assert rows("k,t\nx,s\n", "csv", state=("t",), id="k") == [(2, "x", "s")]


@pytest.mark.parametrize(
    ("data", "kind", "said"),
    [
        ('{"state": "a"}\n{"state": \n', "jsonl", "line 2 of f is not JSON"),
        ('"a"\nNaN\n', "jsonl", "line 2 of f is not JSON: NaN"),
        ('{"state": 1, "state": 2}', "jsonl", "the key 'state' appears twice"),
        ("[" * 100_000, "jsonl", "more than 512 deep, which no server takes"),
        ("1" * 10_000, "jsonl", "has 10000 digits; 4300 are allowed"),
        ('{"id": "a", "state": "s"}\n\n{"id": "a", "state": "t"}', "jsonl", "line 3 of f: the id 'a' is that of line"),
        ('{"id": "a", "state": "s"}\n{"state": "t"}', "jsonl", "line 2 of f: the field 'id' is missing; the fields"),
        ('{"id": "a", "state": "s"}\n{"id": "b"}', "jsonl", "line 2 of f: the field 'state' is missing"),
        ('{"id": "a", "state": "s"}\n"t"', "jsonl", "line 2 of f: it is 't', and must be an object like the first row"),
        ('"t"\n{"id": "a"}', "jsonl", "line 2 of f: it is an object, and the first row is a state by itself"),
        ('{"id": true, "state": "s"}', "jsonl", "line 1 of f: the id is true; it must be a text or a whole number"),
        ('{"id": "", "state": "s"}', "jsonl", "the id is ''"),
        ('{"id": [1], "state": "s"}', "jsonl", "the id is [1]"),
        ('{"state": ""}', "jsonl", "line 1 of f: the state is empty"),
        ("null", "jsonl", "line 1 of f: the state is empty"),
        ('{"id": 1}', "jsonl", "line 1 of f: the state is empty"),
        ('"\\ud800"', "jsonl", "line 1 of f: it holds \\ud800, half of a character"),
        (b'"a"\n"\xff"\n', "jsonl", "line 2 of f: it is not UTF-8 text: byte 2 is 0xff"),
        ('"a"\n"b\0c"\n', "jsonl", "line 2 of f: it holds the character NUL at 3"),
        ("id,state\nx,a\0b\n", "csv", "line 2 of f: it holds the character NUL"),
        ("id,state\nx\n", "csv", "line 2 of f: it has 1 fields, and the first row has 2"),
        ("id,state\nx,s,t\n", "csv", "line 2 of f: it has 3 fields, and the first row has 2"),
        ("id,id\nx,s\n", "csv", "line 1 of f: the column 'id' is there twice"),
        ("id,\nx,s\n", "csv", "line 1 of f: column 2 has no name"),
        ('id,state\nx,"s"t\n', "csv", "line 2 of f: it is not CSV"),
        ('id,state\nx,"s\n', "csv", "line 2 of f: it is not CSV"),
        ("id,state\nx,\n", "csv", "line 2 of f: the state is empty"),
        ('{"a": 1}', "json", "f must hold a list of states"),
        ('["a", ""]', "json", "line 2 of f: the state is empty"),
        (b"\xff", "json", "f is not UTF-8 text: byte 1 is 0xff"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_line(data, kind, said):
    assert said in refusal(data, kind)


def test_a_field_that_nothing_has_is_told():
    assert "the field 'text' is missing; the fields are: 'a'" in refusal('{"a": 1}', state=("text",))
    assert "have no fields: the first is 'a'" in refusal('"a"', id="key")


@pytest.mark.parametrize("kind", ["jsonl", "txt", "csv"])
def test_a_row_has_a_longest(kind):
    """Also one without an end, such as a quoted field that is never closed: it is not read to the end of the file."""
    assert f"{LONGEST_ROW} bytes" in refusal(b'"' + b"x" * LONGEST_ROW + b'"\n', kind)
    if kind == "csv":
        stream = io.BytesIO(b'state\n"' + b"x\n" * LONGEST_ROW)
        with pytest.raises(CommandError, match="is a quotation mark not closed"):
            list(read_rows(stream, kind=kind, fields=Fields(), origin="f"))
        assert stream.tell() < 2 * LONGEST_ROW
    else:
        whole = b'"' + b"x" * (LONGEST_ROW - 2) + b'"'
        assert len(rows(whole, kind)) == 1


def test_a_list_has_a_largest():
    assert f"{LARGEST_LIST} bytes" in refusal(b" " * (LARGEST_LIST + 1), "json")


def test_an_empty_file_is_refused():
    for data, kind in ((b"", "jsonl"), (b"\n\n", "jsonl"), (b"id,state\n", "csv"), (b"[]", "json")):
        with pytest.raises(CommandError, match="f holds no row"):
            check_rows(io.BytesIO(data), kind=kind, fields=Fields(), origin="f")


class Endless(io.RawIOBase):
    """So many rows that are made as they are read."""

    def __init__(self, count: int) -> None:
        self._lines = (b'{"id": "row-%d", "state": "s%d"}\n' % (n, n) for n in range(count))

    def readline(self, size: int | None = -1) -> bytes:
        return next(self._lines, b"")


def test_reading_holds_no_rows():
    """Of each row a hash and a line remain, and nothing else."""
    count = 8_000
    tracemalloc.start()
    try:
        stream = Endless(count)
        found = sum(1 for _ in read_rows(stream, kind="jsonl", fields=Fields(), origin="f"))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == count
    assert peak / count < 200


def test_ids_are_compared_as_json_values():
    assert len(rows('{"id": 1, "state": "s"}\n{"id": "1", "state": "s"}\n')) == 2
    many = "".join(f'{{"id": "{"".join(each)}", "state": 1}}\n' for each in itertools.product("abcd", repeat=6))
    assert len(rows(many)) == 4**6

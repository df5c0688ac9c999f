"""Who asks is said in one of two headers, or not at all; a name that could mean anything is refused."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.datastructures import Headers
from starlette.testclient import TestClient

from fuzzing import OF_PATH
from steelyard_runtime.errors import Kind, Problem
from steelyard_runtime.http.caller import CALLER_HEADER, caller_of
from steelyard_runtime.http.request_id import ATTRIBUTES_HEADER
from stub_engine import StubEngine

Lines = list[tuple[str, str]]


def headers_of(lines: Lines) -> Headers:
    return Headers(raw=[(name.encode(), value.encode("latin-1")) for name, value in lines])


@pytest.mark.parametrize(
    ("lines", "caller"),
    [
        ([], ""),
        ([(CALLER_HEADER, "team-a")], "team-a"),
        ([(ATTRIBUTES_HEADER, "request_id=1;caller=team_b")], "team_b"),
        ([(ATTRIBUTES_HEADER, "request_id=1")], ""),
        ([(ATTRIBUTES_HEADER, "nocaller=1")], ""),
        ([(CALLER_HEADER, "a"), (ATTRIBUTES_HEADER, "caller=b")], "a"),
        ([(CALLER_HEADER, "bob"), (CALLER_HEADER, "bob")], "bob"),
        ([(CALLER_HEADER, "bob, bob")], "bob"),
        ([(ATTRIBUTES_HEADER, "caller=bob;caller=bob"), (ATTRIBUTES_HEADER, "caller=bob")], "bob"),
        ([(ATTRIBUTES_HEADER, "request_id=1"), (ATTRIBUTES_HEADER, "caller=bob")], "bob"),
    ],
)
def test_the_name_is_found(lines: Lines, caller: str) -> None:
    assert caller_of(headers_of(lines)) == caller


@pytest.mark.parametrize("name", ["", "a b", "\xe4", "x" * 65, "a/b", "\x00", "\xa0a", '"a"'])
@pytest.mark.parametrize("header", [CALLER_HEADER, ATTRIBUTES_HEADER])
def test_another_name_is_refused(name: str, header: str) -> None:
    if header == ATTRIBUTES_HEADER and name in ("a b", "\xa0a"):  # a space ends the attribute
        assert caller_of(headers_of([(header, f"caller=a{name[1:-1]}")])) == "a"
        return
    headers = headers_of([(header, f"caller={name}" if header == ATTRIBUTES_HEADER else name)])
    with pytest.raises(Problem) as caught:
        caller_of(headers)
    assert caught.value.kind is Kind.INVALID
    assert "1 to 64" in caught.value.message


SEVERAL: list[Lines] = [
    [(CALLER_HEADER, "bob"), (CALLER_HEADER, "alice")],
    [(CALLER_HEADER, "alice"), (CALLER_HEADER, "bob")],
    [(CALLER_HEADER, "bob"), (CALLER_HEADER, "Bob")],
    [(CALLER_HEADER, "bob"), (CALLER_HEADER, "bob"), (CALLER_HEADER, "alice")],
    [(CALLER_HEADER, "bob, alice")],
    [(CALLER_HEADER, "bob,")],
    [(CALLER_HEADER, ""), (CALLER_HEADER, "alice")],
    [(ATTRIBUTES_HEADER, "caller=bob;caller=eve")],
    [(ATTRIBUTES_HEADER, "caller=bob,caller=eve")],
    [(ATTRIBUTES_HEADER, "caller=bob;caller=")],
    [(ATTRIBUTES_HEADER, "caller=bob"), (ATTRIBUTES_HEADER, "request_id=1;caller=eve")],
]


@pytest.mark.parametrize("lines", SEVERAL)
def test_of_several_names_none_is_taken(lines: Lines) -> None:
    with pytest.raises(Problem) as caught:
        caller_of(headers_of(lines))
    assert caught.value.kind is Kind.REPEATED_HEADER
    assert lines[0][0] in caught.value.message
    assert '2 different values, "' in caught.value.message


def test_a_name_is_shown_short() -> None:
    with pytest.raises(Problem) as caught:
        caller_of(headers_of([(CALLER_HEADER, "x" * 9000), (CALLER_HEADER, "bob")]))
    assert "(9000 characters)" in caught.value.message
    assert len(caught.value.message) < 400


@pytest.mark.parametrize("lines", SEVERAL)
@pytest.mark.parametrize(("path", "body"), [(path, body) for path, bodies in OF_PATH.items() for body in bodies])
def test_who_asks_under_several_names_gets_no_answer(
    stub_client: TestClient, stub_engine: StubEngine, lines: Lines, path: str, body: dict[str, Any]
) -> None:
    response = stub_client.post(path, json=body, headers=lines)
    assert response.status_code == 400
    assert "repeated_header" in response.text
    done = stub_engine.counters
    assert done.decisions == done.generations == done.embeddings == 0

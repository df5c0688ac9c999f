"""Bodies: type, encoding, size and syntax are checked before any contract sees them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.datastructures import Headers
from starlette.testclient import TestClient

from steelyard_runtime.http.headers import elements
from steelyard_runtime.settings import Settings

POSTS = ["/invocations", "/v1/systemone", "/v1/decisions", "/v1/chat/completions", "/v1/completions", "/v1/embeddings"]


def message(path: str, body: dict[str, Any]) -> str:
    """The sentence of an error, wherever its contract puts it."""
    if path == "/v1/systemone":
        detail = body["detail"]
        return detail[0]["msg"] if isinstance(detail, list) else detail["message"]
    return body["error"] if isinstance(body["error"], str) else body["error"]["message"]


def post(client: TestClient, path: str, content: bytes, **headers: str) -> tuple[int, str]:
    """Status and message."""
    response = client.post(path, content=content, headers={"content-type": "application/json", **headers})
    return response.status_code, message(path, response.json())


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b"{", "not valid JSON"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": 1, "a": 2}', "more than once"),
        (b'{"a": "\\ud800"}', "surrogate"),
        (b"[" * 10_000 + b"]" * 10_000, "nested"),
        (b"\xff", "UTF-8"),
        (b'\xef\xbb\xbf{"a": 1}', "byte order mark"),
    ],
)
def test_malformed_json_is_the_callers_fault(stub_client: TestClient, path: str, content: bytes, said: str) -> None:
    status, text = post(stub_client, path, content)
    assert status == (422 if path == "/v1/systemone" else 400)
    assert said in text


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "application/json; charset=latin-1"},
        {"content-type": "application/json; charset=utf-16"},
        {"content-type": ""},
        {"content-encoding": "gzip"},
        {"content-encoding": "gzip, gzip"},
    ],
)
def test_only_plain_json_in_utf8_is_read(stub_client: TestClient, path: str, headers: dict[str, str]) -> None:
    status, _ = post(stub_client, path, b"{}", **headers)
    assert status == 415


JSON_TYPE = ("content-type", "application/json")


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ([JSON_TYPE, ("content-type", "text/plain")], 'Content-Type has 2 different values, "application/json", "text'),
        ([("content-type", "text/plain"), JSON_TYPE], 'Content-Type has 2 different values, "text/plain", "appl'),
        ([("content-type", "application/json, text/plain")], "Content-Type has 2 different values"),
        ([("content-type", "application/json; a=b, text/plain")], 'json; a=b", "text/plain"'),
        ([("content-type", 'application/json; a="\\", b, c", text/plain')], "Content-Type has 2 different values"),
        ([("content-type", ",".join(f"a/{n}" for n in range(9)))], '"a/0", "a/1", "a/2" and 6 more'),
        ([JSON_TYPE, ("content-type", "")], 'Content-Type has 2 different values, "application/json", ""'),
        ([JSON_TYPE, ("content-encoding", "identity"), ("content-encoding", "gzip")], 'values, "identity", "gzip"'),
        ([JSON_TYPE, ("content-encoding", "gzip"), ("content-encoding", "identity")], 'values, "gzip", "identity"'),
        ([JSON_TYPE, ("content-encoding", ""), ("content-encoding", "gzip")], "Content-Encoding has 2 different"),
        ([JSON_TYPE, ("content-encoding", "identity, br")], "Content-Encoding has 2 different values"),
    ],
)
def test_of_two_values_of_a_header_neither_is_taken(
    stub_client: TestClient, path: str, headers: list[tuple[str, str]], said: str
) -> None:
    response = stub_client.post(path, content=b"{}", headers=headers)
    body = response.json()
    assert response.status_code == 400
    assert "repeated_header" in response.text
    told = body["detail"]["message"] if path == "/v1/systemone" else message(path, body)
    assert said in told


@pytest.mark.parametrize(
    "headers",
    [
        [JSON_TYPE, JSON_TYPE],
        [JSON_TYPE, ("content-type", "APPLICATION/JSON")],
        [("content-type", "application/json, application/json")],
        [("content-type", 'application/json; profile="a, text/plain"')],
        [JSON_TYPE, ("content-encoding", "identity"), ("content-encoding", "Identity, identity")],
    ],
)
def test_one_value_may_be_said_twice(
    stub_client: TestClient, decision: dict[str, Any], headers: list[tuple[str, str]]
) -> None:
    assert stub_client.post("/invocations", content=json.dumps(decision), headers=headers).status_code == 200


@pytest.mark.parametrize("character", [",", '"', "\\", '\\"', '",', "a"])
def test_dividing_a_header_takes_time_in_proportion_to_it(character: str) -> None:
    # Were the pattern to try again from every character, this would take hours, and the suite's limit would end it.
    value = character * 1_000_000
    assert ",".join(elements(Headers({"a": value}), "a")) == value


def test_a_missing_content_type_is_named(stub_client: TestClient) -> None:
    response = stub_client.post("/invocations", content=b"{}")
    assert response.status_code == 415
    assert "application/json" in response.json()["error"]


@pytest.mark.parametrize(
    "content_type",
    ["application/json", "APPLICATION/JSON", "application/json; charset=utf-8", 'application/json;charset="UTF-8"',
     "application/vnd.acme+json", "application/json; profile=x"],
)  # fmt: skip
def test_json_types_are_read(stub_client: TestClient, decision: dict[str, Any], content_type: str) -> None:
    response = stub_client.post(
        "/invocations",
        content=json.dumps(decision),
        headers={"content-type": content_type, "content-encoding": "identity"},
    )
    assert response.status_code == 200


class TestSize:
    @pytest.fixture
    def settings(self) -> Settings:
        return Settings(max_body_bytes=2048)

    def test_a_body_of_the_limit_is_read_and_one_byte_more_is_not(
        self, stub_client: TestClient, decision: dict[str, Any]
    ) -> None:
        body = json.dumps(decision).encode()
        assert post_padded(stub_client, body, 2048) == 200
        assert post_padded(stub_client, body, 2049) == 413

    def test_the_limit_is_in_the_answer(self, stub_client: TestClient) -> None:
        response = stub_client.post("/invocations", content=b" " * 4000, headers={"content-type": "application/json"})
        assert response.status_code == 413
        assert response.json()["limit"] == 2048
        assert "4000" in response.json()["error"]


def post_padded(client: TestClient, body: bytes, size: int) -> int:
    """The status for ``body`` filled up with spaces."""
    return client.post(
        "/invocations", content=body.ljust(size), headers={"content-type": "application/json"}
    ).status_code

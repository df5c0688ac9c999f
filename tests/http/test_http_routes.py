"""Every route answers, in the shape of its contract; so does what is no route."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from steelyard_runtime.contracts.registry import CONTRACTS
from steelyard_runtime.engine.interface import Health
from steelyard_runtime.errors import Kind, Problem
from steelyard_runtime.http.app import create_app
from steelyard_runtime.http.routes.table import operations
from steelyard_runtime.http.runtime import Runtime
from steelyard_runtime.settings import Settings
from stub_engine import StubEngine

POSTS = [each.path for each in operations(CONTRACTS) if each.method == "POST"]
GETS = [each.template.replace("{model}", "stub") for each in operations(CONTRACTS) if each.method == "GET"]


@pytest.mark.parametrize("path", GETS)
def test_every_get_route_answers(stub_client: TestClient, path: str) -> None:
    assert stub_client.get(path).status_code == 200
    head = stub_client.head(path)
    assert (head.status_code, head.content) == (200, b"")


def test_invocations_speaks_every_contract(
    stub_client: TestClient, decision: dict[str, Any], systemone: dict[str, Any], chat: dict[str, Any]
) -> None:
    question = {"type": "predicate", "instructions": "late?"}
    expected = {
        "result": decision,
        "answers": systemone,
        "choices": chat,
        "usage": {"model": "default", "input": "x", "questions": [question]},
        "data": {"input": "text"},
    }
    for key, body in expected.items():
        response = stub_client.post("/invocations", json=body)
        assert (response.status_code, key in response.json()) == (200, True), response.text
    completion = stub_client.post("/invocations", json={"prompt": "a", "max_tokens": 3})
    assert completion.json()["object"] == "text_completion"


def test_a_body_of_no_known_shape_is_told_the_shapes(stub_client: TestClient) -> None:
    response = stub_client.post("/invocations", json={"hello": 1})
    assert response.status_code == 400
    assert response.json()["type"] == "unknown_shape"
    assert all(field in response.json()["error"] for field in ("decision", "questions", "messages", "prompt"))


def test_errors_of_invocations_have_the_shape_of_the_dispatched_contract(stub_client: TestClient) -> None:
    systemone = stub_client.post("/invocations", json={"state": "x", "questions": {}})
    assert systemone.status_code == 422
    assert systemone.json()["detail"][0]["loc"][0] == "body"
    chat = stub_client.post("/invocations", json={"messages": []})
    assert chat.status_code == 400
    assert chat.json()["error"]["type"] == "invalid_request_error"
    decide = stub_client.post("/invocations", json={"decision": {}})
    assert decide.status_code == 422
    assert isinstance(decide.json()["error"], str)


@pytest.mark.parametrize(
    ("path", "place"),
    [("/nope", "error"), ("/v1/systemone/x", "detail"), ("/v1/chat/x", "error.message"), ("/openai/x", "error.message"),
     ("/ping/", "error"), ("/v1/chat/completions/", "error.message"), ("/v1/systemone/", "detail"),
     ("/v1", "error.message"), ("/v1/responses", "error.message"), ("/v1/audio/speech", "error.message"),
     ("/openai/v1/models", "error.message"), ("/chat/completions", "error.message"), ("/v1//files", "error.message"),
     ("/systemone", "detail"), ("/v1/identity/x", "error"), ("/invocations/x", "error")],
)  # fmt: skip
def test_unknown_paths_are_404_in_json(stub_client: TestClient, path: str, place: str) -> None:
    for method in ("GET", "POST", "DELETE"):
        response = stub_client.request(method, path, follow_redirects=False)
        assert response.status_code == 404
        value = response.json()
        for key in place.split("."):
            value = value[key]
        assert place == "detail" or isinstance(value, str)


@pytest.mark.parametrize("path", [*POSTS, *GETS])
def test_wrong_methods_are_405_with_allow(stub_client: TestClient, path: str) -> None:
    right = "POST" if path in POSTS else "GET, HEAD"
    for method in {"GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"} - set(right.split(", ")):
        response = stub_client.request(method, path)
        assert (response.status_code, response.headers["allow"]) == (405, right)
        assert response.headers["content-type"] == "application/json"


@pytest.mark.parametrize("path", ["/ping", "/health", "/v1/models", "/v1/identity"])
def test_while_loading_nothing_but_metrics_and_the_document_is_ready(path: str) -> None:
    client = TestClient(create_app(Runtime(settings=Settings())))
    response = client.get(path)
    assert response.status_code == 503
    assert "loading" in response.text
    assert int(response.headers["retry-after"]) >= 1
    assert "steelyard_ready 0.0" in client.get("/metrics").text
    assert client.get("/openapi.json").status_code == 200


@pytest.mark.parametrize("path", POSTS)
def test_work_is_refused_while_loading(path: str, decision: dict[str, Any]) -> None:
    bodies = {
        "/invocations": decision,
        "/v1/systemone": {"state": "", "questions": {"a": {"type": "noul"}}},
        "/v1/decisions": {
            "model": "default",
            "input": "x",
            "questions": [{"type": "predicate", "instructions": "late?"}],
        },
        "/v1/completions": {"prompt": "a"},
        "/v1/embeddings": {"input": "a"},
        "/v1/feedback": {"feedback": {"use": "a", "right": "b"}},
    }
    body = bodies.get(path, {"messages": [{"role": "user", "content": "a"}]})
    response = TestClient(create_app(Runtime(settings=Settings()))).post(path, json=body)
    assert (response.status_code, "retry-after" in response.headers) == (503, True)


def test_ping_says_why_it_is_red(stub_client: TestClient, stub_engine: StubEngine) -> None:
    stub_engine._health = Health(ready=False, reason="the last decode is overdue")
    response = stub_client.get("/ping")
    assert response.status_code == 503
    assert "overdue" in response.json()["error"]


def test_busy_carries_what_a_client_needs_to_retry(
    stub_client: TestClient, stub_engine: StubEngine, decision: dict[str, Any], chat: dict[str, Any]
) -> None:
    stub_engine.refuse_with = Problem(Kind.BUSY, "256 requests are waiting", retry_after_ms=1200)
    response = stub_client.post("/invocations", json=decision)
    assert (response.status_code, response.headers["retry-after"]) == (503, "2")
    assert response.json() == {
        "error": "256 requests are waiting", "type": "busy", "retryable": True, "retry_after_ms": 1200,
    }  # fmt: skip
    for stream in (False, True):
        response = stub_client.post("/v1/chat/completions", json={**chat, "stream": stream})
        assert (response.status_code, response.headers["retry-after"]) == (503, "2")
        assert response.json()["error"]["retry_after_ms"] == 1200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/openai/v1/chat/completions", "/invocations"])
def test_streams_are_events_that_nobody_caches(stub_client: TestClient, chat: dict[str, Any], path: str) -> None:
    response = stub_client.post(path, json={**chat, "stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    events = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert events[-1] == "[DONE]"
    assert all(json.loads(event)["object"] == "chat.completion.chunk" for event in events[:-1])


def test_models_come_in_both_shapes(stub_client: TestClient) -> None:
    body = stub_client.get("/v1/models").json()
    assert body["object"] == "list"
    assert body["data"][0]["id"] == body["models"][0]["name"]


def test_request_ids_are_ours_or_safe(stub_client: TestClient, decision: dict[str, Any]) -> None:
    def ids(*attributes: str) -> tuple[str, str]:
        headers = [("X-Amzn-SageMaker-Custom-Attributes", line) for line in attributes]
        sent = stub_client.post("/invocations", json=decision, headers=headers).headers
        assert sent["x-request-id"] == sent["x-typesafe-request-id"]
        return sent["x-request-id"], sent["x-amzn-sagemaker-custom-attributes"]

    assert ids("tenant=a;request_id=Order-7.1_x") == ("Order-7.1_x", "request_id=Order-7.1_x")
    assert ids("tenant=a", "request_id=1", "request_id=1,request_id=1") == ("1", "request_id=1")
    for unsafe in (
        [],
        [""],
        ["request_id="],
        ["request_id=<script>"],
        ["request_id=" + "a" * 65],
        ["secret=1"],
        ["xrequest_id=a"],
        ["request_id=a;request_id=b"],
        ["request_id=<script>;request_id=b"],
        ["request_id=a", "request_id=b"],
    ):
        own, returned = ids(*unsafe)
        assert len(own) == 32
        assert returned == f"request_id={own}"


def test_an_unexpected_exception_is_a_500_without_its_text(stub_app: Starlette, decision: dict[str, Any]) -> None:
    def fail(request: object) -> None:
        raise RuntimeError("secret of the caller")

    stub_app.state.runtime.services.decisions.decide = fail
    response = TestClient(stub_app).post("/invocations", json=decision)
    assert response.status_code == 500
    assert "secret" not in response.text
    assert response.json()["retryable"] is False

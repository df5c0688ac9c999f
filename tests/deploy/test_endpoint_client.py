"""The client of an endpoint: what a busy or failing container says is read out of ``ModelError``."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from botocore.exceptions import ClientError, EventStreamError

from steelyard.client.sagemaker import EndpointClient
from steelyard_base.exit_codes import CommandError, ExitCode

MESSAGES = [{"role": "user", "content": "hello"}]


def model_error(status: int, body: Any) -> ClientError:
    message = body if isinstance(body, str) else json.dumps(body)
    response = {
        "Error": {"Code": "ModelError", "Message": "Received an error from primary"},
        "OriginalStatusCode": status,
        "OriginalMessage": message,
        "LogStreamArn": "arn:the-log",
    }
    return ClientError(response, "InvokeEndpoint")


class Runtime:
    """Gives each of ``outcomes`` in turn: a body, the parts of a stream, or an exception."""

    def __init__(self, *outcomes: Any) -> None:
        self.outcomes = list(outcomes)
        self.calls: list[dict[str, Any]] = []

    def invoke_endpoint(self, **call: Any) -> dict[str, Any]:
        self.calls.append(call)
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return {"Body": io.BytesIO(json.dumps(outcome).encode())}

    def invoke_endpoint_with_response_stream(self, **call: Any) -> dict[str, Any]:
        self.calls.append(call)
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return {"Body": self._events(outcome)}

    def _events(self, parts: list[Any]) -> Any:
        for part in parts:
            if isinstance(part, Exception):
                raise part
            yield {"PayloadPart": {"Bytes": part}}


def client_of(*outcomes: Any, pauses: list[float] | None = None, timeout_s: float = 60.0) -> EndpointClient:
    given = pauses if pauses is not None else []
    return EndpointClient("it", runtime=Runtime(*outcomes), timeout_s=timeout_s, sleep=given.append)


BUSY = {"error": "busy", "retryable": True, "retry_after_ms": 250}


@pytest.mark.parametrize(
    ("body", "pause"),
    [
        (BUSY, 0.25),
        ({"error": {"message": "busy", "retry_after_ms": 100}}, 0.1),
        ({"detail": {"message": "busy", "retry_after_ms": 1}}, 0.05),
        ({"error": "busy", "retryable": True}, 1.0),
    ],
)
def test_busy_container_is_asked_again_when_it_says(body: Any, pause: float) -> None:
    pauses: list[float] = []
    answer = {"result": {"id": "a"}}
    client = client_of(model_error(503, body), model_error(503, body), answer, pauses=pauses)
    assert client.decide({"decision": {}}) == [{"id": "a"}]
    assert pauses == [pause, pause]


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (model_error(422, {"error": "one option"}), ExitCode.REFUSED, "the endpoint it refused (422): one option"),
        (model_error(400, {"error": {"message": "no such field"}}), ExitCode.REFUSED, "(400): no such field"),
        (model_error(500, "plain text"), ExitCode.REFUSED, "(500): plain text"),
        (model_error(503, {"error": "the engine died", "retryable": False}), ExitCode.REFUSED, "the engine died"),
        (model_error(0, "timed out"), ExitCode.UNREACHABLE, "the container of it did not answer: timed out"),
        (
            ClientError({"Error": {"Code": "ValidationError", "Message": "Endpoint it not found."}}, "InvokeEndpoint"),
            ExitCode.UNREACHABLE,
            "there is no endpoint it in service here",
        ),
        (
            ClientError({"Error": {"Code": "AccessDeniedException", "Message": "no"}}, "InvokeEndpoint"),
            ExitCode.REFUSED,
            "AWS refused InvokeEndpoint (AccessDeniedException): no",
        ),
    ],
)
def test_refusal_is_told_once_in_the_containers_words(error: ClientError, code: ExitCode, words: str) -> None:
    pauses: list[float] = []
    with pytest.raises(CommandError) as raised:
        client_of(error, pauses=pauses).decide({"decision": {}})
    assert raised.value.code is code
    assert words in raised.value.message
    assert pauses == []


def test_busy_container_is_given_up_when_the_time_is_up() -> None:
    with pytest.raises(CommandError, match=r"refused \(503\): busy") as raised:
        client_of(model_error(503, BUSY), timeout_s=0.2).decide({"decision": {}})
    assert "raise --timeout" in (raised.value.hint or "")


def test_stream_may_be_cut_anywhere() -> None:
    text = 'data: {"choices":[{"delta":{"content":"grün"}}]}\n\ndata: {"choices":[]}\n\ndata: [DONE]\n\n'.encode()
    for size in range(1, len(text)):
        parts = [text[start : start + size] for start in range(0, len(text), size)]
        chunks = list(client_of(parts).stream_chat(MESSAGES))
        assert chunks == [{"choices": [{"delta": {"content": "grün"}}]}, {"choices": []}]


def test_busy_container_is_asked_again_for_a_stream_that_has_not_begun() -> None:
    pauses: list[float] = []
    client = client_of(model_error(503, BUSY), [b"data: [DONE]\n"], pauses=pauses)
    assert list(client.stream_chat(MESSAGES)) == []
    assert pauses == [0.25]


def test_stream_that_breaks_off_says_so() -> None:
    broken = EventStreamError({"Error": {"Code": "ModelStreamError", "Message": "gone"}}, "InvokeEndpoint")
    chunks = client_of([b'data: {"choices":[]}\n', broken]).stream_chat(MESSAGES)
    assert next(chunks) == {"choices": []}
    with pytest.raises(CommandError, match=r"the stream of it broke off: .*gone"):
        next(chunks)


def test_error_within_a_stream_is_told() -> None:
    with pytest.raises(CommandError, match="out of cells"):
        list(client_of([b'data: {"error":{"message":"out of cells"}}\n']).stream_chat(MESSAGES))


@pytest.mark.parametrize("body", [{"choices": []}, {"results": "none"}])
def test_answer_that_is_no_decision_is_refused(body: Any) -> None:
    with pytest.raises(CommandError, match="is it a decision endpoint"):
        client_of(body).decide({"decision": {}})


def test_request_goes_as_json_in_utf8() -> None:
    runtime = Runtime({"result": {}})
    EndpointClient("it", runtime=runtime).decide({"decision": {"state": "grün"}})
    assert runtime.calls == [
        {
            "EndpointName": "it",
            "Body": '{"decision": {"state": "grün"}}'.encode(),
            "ContentType": "application/json",
            "Accept": "application/json",
        }
    ]

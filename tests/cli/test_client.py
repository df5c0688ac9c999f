"""The client retries what a server says to retry, within one time limit, and tells every refusal in its own words."""

from __future__ import annotations

import json

import httpx
import pytest

from steelyard.client.http import Client
from steelyard_base.exit_codes import CommandError, ExitCode
from steelyard_runtime.contracts.error_formats import OPENAI, OWN, SYSTEM_ONE
from steelyard_runtime.errors import TABLE, Detail, Kind, Problem

BODY = {"decision": {"id": "d"}}
BUSY = OWN.render(Problem(Kind.BUSY, "The queue is full.", retry_after_ms=250))


class Script:
    """Answers in turn; the last one is repeated."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.calls = []
        self.pauses = []

    def __call__(self, request):
        self.calls.append(request)
        status, body = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return httpx.Response(status, content=body if isinstance(body, bytes) else json.dumps(body).encode())

    def client(self, **options):
        transport = httpx.MockTransport(self)
        return Client("http://server", transport=transport, sleep=self.pauses.append, **options)


def test_a_single_and_several_results():
    assert Script((200, {"result": {"id": "d"}})).client().decide(BODY) == [{"id": "d"}]
    assert Script((200, {"results": [{"id": "d"}], "timing": {}})).client().decide(BODY) == [{"id": "d"}]


def test_busy_is_retried_after_the_time_that_was_said():
    script = Script(BUSY, BUSY, (200, {"result": {}}))
    assert script.client().decide(BODY) == [{}]
    assert script.pauses == [0.25, 0.25]


@pytest.mark.parametrize("render", [OWN.render, SYSTEM_ONE.render, OPENAI.render])
def test_every_contract_says_when_to_come_back(render):
    script = Script(render(Problem(Kind.BUSY, "The queue is full.", retry_after_ms=70)), (200, {"result": {}}))
    script.client().decide(BODY)
    assert script.pauses == [0.07]


def test_a_pause_longer_than_the_time_limit_is_a_refusal_at_once():
    script = Script(OWN.render(Problem(Kind.BUSY, "The queue is full.", retry_after_ms=5_000)))
    with pytest.raises(CommandError, match="The queue is full") as caught:
        script.client(timeout_s=2.0).decide(BODY)
    assert caught.value.code is ExitCode.REFUSED
    assert script.pauses == []


@pytest.mark.parametrize("kind", [kind for kind in Kind if not TABLE[kind].retryable])
@pytest.mark.parametrize("render", [OWN.render, SYSTEM_ONE.render, OPENAI.render])
def test_what_cannot_succeed_is_not_retried(kind, render):
    script = Script(render(Problem(kind, "Words of the server.")))
    with pytest.raises(CommandError, match="Words of the server") as caught:
        script.client().decide(BODY)
    assert caught.value.code is ExitCode.REFUSED
    assert len(script.calls) == 1


def test_the_places_of_faults_are_told():
    problem = Problem(Kind.INVALID, "The request is wrong.", details=(Detail(("decision", "state"), "is empty"),))
    with pytest.raises(CommandError, match=r"decision\.state: is empty"):
        Script(OWN.render(problem)).client().decide(BODY)


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"a": 1}'])
def test_something_else_than_a_steelyard_server(body):
    with pytest.raises(CommandError, match="is it a Steelyard server"):
        Script((200, body)).client().decide(BODY)


def test_nobody_listens():
    with pytest.raises(CommandError) as caught, Client("http://127.0.0.1:9") as client:
        client.decide(BODY)
    assert caught.value.code is ExitCode.UNREACHABLE


def test_a_server_that_does_not_answer_in_time():
    def silent(request):
        raise httpx.ReadTimeout("", request=request)

    with pytest.raises(CommandError, match="within 3 s") as caught:
        Client("http://server", timeout_s=3.0, transport=httpx.MockTransport(silent)).decide(BODY)
    assert caught.value.code is ExitCode.UNREACHABLE


def test_a_stream_ends_with_done_and_an_error_in_it_is_told():
    chunk = b'data: {"choices": [{"delta": {"content": "Hi"}}]}\n\n'
    assert len(list(Script((200, chunk * 2 + b"data: [DONE]\n\n")).client().stream_chat([]))) == 2
    broken = chunk + b'data: {"error": {"message": "The engine stopped."}}\n\n'
    with pytest.raises(CommandError, match="The engine stopped") as caught:
        list(Script((200, broken)).client().stream_chat([]))
    assert caught.value.code is ExitCode.REFUSED


@pytest.mark.parametrize(
    "data", [b"<html>", b"7", b"[1]", b'"error"', b"null", b"[" * 100_000], ids=lambda data: repr(data[:9])
)
def test_a_stream_of_something_else_is_told(data):
    with pytest.raises(CommandError, match="not a JSON object; is it a Steelyard server") as caught:
        list(Script((200, b"data: " + data + b"\n\n")).client().stream_chat([]))
    assert len(caught.value.message) < 200


@pytest.mark.parametrize("url", ["localhost", "ftp://x", "http://", "http://a:b", ""])
def test_addresses_are_checked(url):
    with pytest.raises(CommandError) as caught:
        Client(url)
    assert caught.value.code is ExitCode.USAGE


def test_no_proxy_is_asked_for_this_machine(monkeypatch):
    """Port 9 refuses; a proxy in the environment would be a different address in the message's cause."""
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.invalid:3128")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with Client("http://127.0.0.1:9") as client, pytest.raises(CommandError, match="refused"):
        client.decide(BODY)

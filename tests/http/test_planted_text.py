"""Text planted wherever a caller has a say is in no log, record or metric of a real server, unless it was asked for."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

import tiny_models
from live_server import ServerProcess, eventually
from registered_decisions import TEAMS, contract, write_decision

PLANTED = "Zebra-4711-secret"
LETTERS = TEAMS | {"readout": {"strategy": "letters"}}
OWN = {"id": PLANTED, "state": PLANTED, "question": PLANTED, "options": [{"id": PLANTED, "description": PLANTED}]}
TWO = [{"id": PLANTED, "description": PLANTED}, {"id": "other", "description": PLANTED}]
USE = {"use": "support-route", "state": {PLANTED: [PLANTED]}}
CRITERIA = {PLANTED: PLANTED, "other": PLANTED}
PREDICATE = {"type": "predicate", "instructions": PLANTED}
CHAT = {"messages": [{"role": "system", "content": PLANTED}, {"role": "user", "content": PLANTED}], "max_tokens": 3}
TOOL = {"type": "function", "function": {"name": PLANTED, "parameters": {"type": "object", "title": PLANTED}}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object", "title": PLANTED}}}
FEEDBACK = {"use": "support-route", "right": "billing", "state": PLANTED}

ANSWERED: list[tuple[str, Any]] = [
    ("/invocations", {"decision": {**OWN, "options": TWO}}),
    ("/invocations", {"decisions": [USE, {**OWN, "state": USE["state"], "options": TWO}]}),
    ("/v1/systemone", {"state": PLANTED, "questions": {PLANTED: {"type": "noul", "criteria": {"true": PLANTED}}}}),
    (
        "/v1/systemone",
        {"state": PLANTED, "questions": {"a": {"type": "choice", "criteria": {PLANTED: PLANTED, "b": "c"}}}},
    ),
    (
        "/v1/decisions",
        {"model": "default", "input": PLANTED, "questions": [{"type": "predicate", "instructions": PLANTED}]},
    ),
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", {**CHAT, "stream": True}),
    ("/v1/completions", {"prompt": PLANTED, "max_tokens": 3}),
    ("/v1/feedback", {"feedback": FEEDBACK}),
]
REFUSED: list[tuple[str, Any]] = [
    ("/invocations", {"decision": OWN}),
    ("/invocations", {PLANTED: PLANTED}),
    ("/invocations", {"decision": {**USE, "use": PLANTED}}),
    ("/invocations", {"decision": {**OWN, "state": PLANTED * 4000, "options": TWO}}),
    ("/v1/systemone", {"state": PLANTED, "questions": {PLANTED: {"type": PLANTED}}}),
    ("/v1/decisions", {"input": PLANTED, "questions": [{"type": PLANTED}]}),
    ("/v1/chat/completions", {**CHAT, "tools": [TOOL], "tool_choice": PLANTED}),
    ("/v1/chat/completions", {**CHAT, "response_format": SCHEMA, PLANTED: PLANTED}),
    ("/v1/chat/completions", {**CHAT, "model": PLANTED}),
    ("/v1/embeddings", {"input": [PLANTED, 7]}),
    ("/v1/feedback", {"feedback": {**FEEDBACK, "right": PLANTED}}),
    ("/v1/feedback", {"feedback": {**FEEDBACK, "record": f"{PLANTED} {PLANTED}"}}),
    (f"/v1/{PLANTED}", {}),
    (f"/v1/models/{PLANTED}?{PLANTED}", {}),
    ("/invocations", f'{{"decision": "{PLANTED}'.encode()),
    ("/invocations", f'{{"{PLANTED}": 1, "{PLANTED}": 2}}'.encode()),
    ("/invocations", PLANTED.encode() + b"\xff"),
]
HEADERS = {
    "content-type": "application/json",
    "x-request-id": PLANTED,
    "user-agent": PLANTED,
    "cookie": PLANTED,
    "x-amzn-sagemaker-custom-attributes": f"tenant={PLANTED};trace={PLANTED}",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planted")
    write_decision(folder / "decisions" / "support-route", contract(LETTERS))
    return tiny_models.write("llama", folder / "model.gguf")


@contextmanager
def serving(model: Path, **settings: Any) -> Iterator[ServerProcess]:
    """A server that records, and tells CloudWatch."""
    fixed = {"threads": 1, "context_tokens": 512, "decision_records": "log", "endpoint_name": "planted"}
    with ServerProcess(model=model, log_level="debug", **fixed, **settings).running() as server:
        yield server
    assert eventually(lambda: any(line["event"] == "stopped" for line in server.lines))


def send(server: ServerProcess, sent: list[tuple[str, Any]]) -> list[int]:
    """Send bodies; the statuses."""
    with httpx.Client(base_url=server.url, headers=HEADERS, timeout=60) as client:
        bodies = [(path, body if isinstance(body, bytes) else json.dumps(body).encode()) for path, body in sent]
        return [client.post(path, content=content).status_code for path, content in bodies]


def leave_in_the_middle(server: ServerProcess) -> None:
    """What is no HTTP, and a body that ends early."""
    place = urlsplit(server.url)
    for text in (
        f"{PLANTED} / {PLANTED}\r\n\r\n",
        f"POST /invocations HTTP/1.1\r\nHost: {PLANTED}\r\nContent-Length: 900\r\n\r\n{PLANTED}",
    ):
        with socket.create_connection((place.hostname, place.port), timeout=20) as client:
            client.sendall(text.encode())


def test_planted_text_is_nowhere(model: Path) -> None:
    with serving(model) as server:
        assert set(send(server, ANSWERED)) == {200}
        assert all(400 <= status < 500 for status in send(server, REFUSED))
        leave_in_the_middle(server)
        scraped = httpx.get(server.url + "/metrics").text
    written = json.dumps(server.lines) + server.errors + scraped
    assert {"decision", "feedback", "metrics", "request", "ready"} <= {line["event"] for line in server.lines}
    assert len([line for line in server.lines if line["event"] == "decision"]) == 6
    assert PLANTED.lower() not in written.lower()
    assert "recording_text" not in {line["event"] for line in server.lines}


def test_texts_are_in_records_alone_where_they_are_asked_for(model: Path) -> None:
    with serving(model, record_text=True) as server:
        send(server, ANSWERED)
        send(server, REFUSED)
    holding = {line["event"] for line in server.lines if PLANTED.lower() in json.dumps(line).lower()}
    assert holding == {"decision", "feedback"}
    assert PLANTED.lower() not in server.errors.lower()
    assert "recording_text" in {line["event"] for line in server.lines}

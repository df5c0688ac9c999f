"""A request at each limit of docs/reference/limits.md is served by a real server, and one above it is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import tiny_models
from live_server import ServerProcess
from steelyard_runtime.engine.tokenizer import CHUNK_BYTES, STRETCH_BYTES
from steelyard_runtime.errors import Kind
from steelyard_runtime.limits import LIMITS, Limit
from steelyard_runtime.settings import Settings

SETTINGS = Settings(
    max_body_bytes=200_000,
    max_json_structure=20_000,
    max_questions=8,
    max_options=16,
    max_choices=3,
    max_text_bytes=60_000,
    context_tokens=4096,
    deadline_s=600,
)
CHANGED = SETTINGS.model_dump(exclude_unset=True)

Sent = tuple[str, bytes]
Make = Callable[[int], Sent]


def systemone(**changed: Any) -> Sent:
    return "/v1/systemone", json.dumps({"state": "s", "questions": {"q": {"type": "noul"}}} | changed).encode()


def completion(**changed: Any) -> Sent:
    return "/v1/completions", json.dumps({"prompt": "p", "max_tokens": 1} | changed).encode()


def body(size: int) -> Sent:
    path, content = systemone()
    return path, content.ljust(size)


def structure(count: int) -> Sent:
    """With a field that System One ignores."""
    _, content = systemone()
    rest = count - sum(content.count(character) for character in b"[]{}:,") - 4
    return "/v1/systemone", content[:-1] + b',"more":[' + b",".join([b"0"] * (rest + 1)) + b"]}"


def depth(count: int) -> Sent:
    _, content = systemone()
    return "/v1/systemone", content[:-1] + b',"more":' + b"[" * (count - 1) + b"]" * (count - 1) + b"}"


def integer(digits: int) -> Sent:
    return "/v1/systemone", systemone()[1][:-1] + b',"more":' + b"9" * digits + b"}"


def questions(count: int) -> Sent:
    return systemone(questions={f"q{index}": {"type": "noul"} for index in range(count)})


def options(count: int) -> Sent:
    criteria = {f"option {index}": None for index in range(count)}
    return systemone(questions={"q": {"type": "choice", "criteria": criteria}})


def inputs(count: int) -> Sent:
    return "/v1/embeddings", json.dumps({"input": ["a"] * count}).encode()


def text(size: int) -> Sent:
    """A prompt whose tokens are counted or not, but which does not fit in either case."""
    return completion(prompt="the " * (size // 4) + "." * (size % 4))


def prompt(tokens: int) -> Sent:
    """As many tokens as bytes, one of them to begin with, and one to generate."""
    return completion(prompt="\u0001" * (tokens - 2))


MAKE: dict[str, Make] = {
    "body": body,
    "structure": structure,
    "depth": depth,
    "integer": integer,
    "questions": questions,
    "options": options,
    "choices": lambda count: completion(n=count),
    "stop strings": lambda count: completion(stop=[f"stop {index}" for index in range(count)]),
    "logit biases": lambda count: completion(logit_bias={str(index): 0.5 for index in range(count)}),
    "inputs": inputs,
    "text": text,
    "prompt": prompt,
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    path = tiny_models.write("llama-pooling", tmp_path_factory.mktemp("model") / "tiny.gguf")
    serving = ServerProcess(model=path, threads=1, **CHANGED).running()
    with serving as server, httpx.Client(base_url=server.url, timeout=120) as client:
        yield client


def kind_of(response: httpx.Response) -> str:
    """The kind of a refusal, whatever contract tells it."""
    told = response.json()
    detail = told.get("detail", told.get("error"))
    if isinstance(detail, list):
        return str(detail[0]["type"])
    kind = str(detail.get("error_type", detail.get("code")))
    return Kind.OVER_BUDGET.value if kind == "context_length_exceeded" else kind


def send(client: httpx.Client, sent: Sent) -> httpx.Response:
    path, content = sent
    return client.post(path, content=content, headers={"content-type": "application/json"})


def test_every_limit_is_tried() -> None:
    assert set(MAKE) == {limit.name for limit in LIMITS}


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.name)
def test_a_request_at_the_limit_is_served_and_one_above_it_is_refused(client: httpx.Client, limit: Limit) -> None:
    make, allowed = MAKE[limit.name], limit.allowed(SETTINGS)
    served, refused = send(client, make(allowed)), send(client, make(allowed + 1))
    assert refused.is_client_error, refused.text
    assert refused.status_code not in (408, 409, 429)  # which clients repeat
    if limit.error is not Kind.INVALID:  # of which the faults have types of their own
        assert kind_of(refused) == limit.error.value
    if limit.name == "text":  # it has too many tokens; above the limit they are not counted
        assert "tokens and 4095 are allowed" in served.json()["error"]["message"]
        assert refused.json()["error"]["counted_bytes"] == allowed + 1
    else:
        assert served.status_code == 200, served.text


def test_a_text_has_a_longest_stretch_that_cannot_be_cut(client: httpx.Client) -> None:
    longest = STRETCH_BYTES["spm"] + CHUNK_BYTES
    told = send(client, completion(prompt="E" * longest)).json()["error"]
    assert told["counted_tokens"] > 4095
    told = send(client, completion(prompt="E" * (longest + 1))).json()["error"]
    assert told["code"] == "context_length_exceeded"
    assert told["allowed_bytes"] == STRETCH_BYTES["spm"]


def test_memory_is_bounded_by_the_body(tmp_path: Path) -> None:
    """A text of 1 MB with 64 questions: a few times the body, where each question had a copy of its tokens."""
    path = tiny_models.write("llama", tmp_path / "tiny.gguf")
    asked = {f"q{index}": {"type": "noul", "instructions": f"Is it {index}?"} for index in range(64)}
    states = {"words": "the state is " * 75_000, "spaces": " " * 1_000_000, "digits": "0123456789 a" * 80_000}
    with (
        ServerProcess(model=path, threads=1).running() as server,
        httpx.Client(base_url=server.url, timeout=120) as client,
    ):
        for layout in ("state-first", "options-first"):
            for state in states.values():
                before = peak_kib(server)
                response = send(client, systemone(state=state, questions=asked, x_layout=layout))
                assert response.status_code == 413, response.text
                assert peak_kib(server) - before < 64 << 10


def peak_kib(server: ServerProcess) -> int:
    """The largest resident size of the server so far."""
    for line in Path(f"/proc/{server.process.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    raise AssertionError("no VmHWM")

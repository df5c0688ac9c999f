"""Several prompts, token ids and echo in completions, on a real server: each prompt is answered as it is alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

import tiny_models
from live_server import ServerProcess
from steelyard_runtime.engine.interface import Piece
from steelyard_runtime.engine.start import start_engine
from steelyard_runtime.settings import load_settings

TEXTS = ["the ticket is", "refund", "a longer question about the answer and the state"]
CONTEXT = 512


@pytest.fixture(scope="module", params=["llama", "llama-pooling"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_models.write(request.param, tmp_path_factory.mktemp("prompts") / "tiny.gguf"))


@pytest.fixture(scope="module")
def tokens(model: str) -> Iterator[dict[str, list[int]]]:
    """Token ids by text, without the begin-of-text token; "start" has that, if the model wants one."""
    engine = start_engine(load_settings(model=model, threads=1, context_tokens=CONTEXT, probe=False))
    start = engine.encode([], start=True)
    yield {"start": start, **{text: engine.encode([Piece(text)], start=True)[len(start) :] for text in TEXTS}}
    engine.close(timeout_s=5)


@pytest.fixture(scope="module")
def client(model: str) -> Iterator[httpx.Client]:
    # One chat at a time: chats that share a decode may have other bits, as docs/explanation/exactness.md says.
    settings = {"threads": 1, "context_tokens": CONTEXT, "deadline_s": 300, "max_choices": 6, "chats": 1}
    with (
        ServerProcess(model=model, **settings).running() as process,
        httpx.Client(base_url=process.url, timeout=120) as client,
    ):
        yield client


def ask(client: httpx.Client, **body: Any) -> dict[str, Any]:
    response = client.post("/v1/completions", json={"max_tokens": 6, "seed": 3, **body})
    assert response.status_code == 200, response.text
    return response.json()


def refused(client: httpx.Client, **body: Any) -> dict[str, Any]:
    response = client.post("/v1/completions", json={"max_tokens": 6, **body})
    assert response.status_code == 400, response.text
    return response.json()["error"]


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("logprobs", [None, 2])
def test_prompts_together_are_answered_as_alone(client: httpx.Client, n: int, logprobs: int | None) -> None:
    together = ask(client, prompt=TEXTS, n=n, logprobs=logprobs)
    alone = [ask(client, prompt=text, n=n, logprobs=logprobs) for text in TEXTS]
    assert [choice["index"] for choice in together["choices"]] == list(range(3 * n))
    expected = [choice for answer in alone for choice in answer["choices"]]
    assert [choice | {"index": 0} for choice in together["choices"]] == [each | {"index": 0} for each in expected]
    assert together["x_prompt_sha256"] == [answer["x_prompt_sha256"] for answer in alone]
    for count in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert together["usage"][count] == sum(answer["usage"][count] for answer in alone)


def test_token_ids_are_the_text_that_they_stand_for(client: httpx.Client, tokens: dict[str, list[int]]) -> None:
    ids = [tokens[text] for text in TEXTS]
    by_text = ask(client, prompt=TEXTS)
    for given in (ids, [[*tokens["start"], *each] for each in ids]):
        answer = ask(client, prompt=given)
        assert answer["choices"] == by_text["choices"]
        assert answer["x_prompt_sha256"] == by_text["x_prompt_sha256"]
    assert ask(client, prompt=ids[0])["choices"] == ask(client, prompt=TEXTS[0])["choices"]


def test_a_stream_has_the_same_answers(client: httpx.Client) -> None:
    whole = ask(client, prompt=TEXTS, n=2, echo=True)
    body = {"prompt": TEXTS, "n": 2, "echo": True, "max_tokens": 6, "seed": 3, "stream": True}
    response = client.post("/v1/completions", json=body | {"stream_options": {"include_usage": True}})
    events = [json.loads(line[6:]) for line in response.text.split("\n\n") if line.startswith("data: {")]
    texts, ends = [""] * 6, [None] * 6
    for event in events:
        for choice in event["choices"]:
            texts[choice["index"]] += choice["text"]
            ends[choice["index"]] = choice["finish_reason"] or ends[choice["index"]]
    assert [(choice["text"], choice["finish_reason"]) for choice in whole["choices"]] == list(
        zip(texts, ends, strict=True)
    )
    assert events[-1]["usage"] == whole["usage"]
    assert response.text.endswith("data: [DONE]\n\n")


def test_echo_puts_the_prompt_before_its_answer(client: httpx.Client, tokens: dict[str, list[int]]) -> None:
    plain, echoed = (ask(client, prompt=TEXTS, n=2, echo=echo) for echo in (False, True))
    prompts = [text for text in TEXTS for _ in range(2)]
    assert [each["text"] for each in echoed["choices"]] == [
        prompt + each["text"] for prompt, each in zip(prompts, plain["choices"], strict=True)
    ]
    by_ids = ask(client, prompt=tokens[TEXTS[0]], echo=True)["choices"][0]["text"]
    assert by_ids.lstrip().startswith(TEXTS[0])
    error = refused(client, prompt="a", echo=True, logprobs=0)
    assert error["param"] == "echo"
    assert "last position" in error["message"]


def test_what_cannot_be_sent_as_ids_is_refused(client: httpx.Client, tokens: dict[str, list[int]]) -> None:
    control = httpx.get(str(client.base_url) + "/v1/identity").json()["model"]["vocabulary"]
    good = tokens[TEXTS[0]]
    assert "0 to" in refused(client, prompt=[*good, control])["message"]
    assert "0 to" in refused(client, prompt=[good, [2**31 - 1]])["message"]
    assert refused(client, prompt=[good, [2**31 - 1]])["param"] == "prompt.1"
    if tokens["start"]:
        assert "control token" in refused(client, prompt=[*good, *tokens["start"]])["message"]
        assert "control token" in refused(client, prompt=[*tokens["start"], *tokens["start"], *good])["message"]
    error = refused(client, prompt=good * CONTEXT)
    assert error["code"] == "context_length_exceeded"
    assert error["counted_tokens"] == len(good) * CONTEXT


def test_the_number_of_answers_is_bounded(client: httpx.Client) -> None:
    assert len(ask(client, prompt=["a"] * 6, max_tokens=1)["choices"]) == 6
    for body in ({"prompt": ["a"] * 7}, {"prompt": ["a"] * 4, "n": 2}, {"prompt": [[1]] * 7}):
        error = refused(client, **body)
        assert error["param"] == "prompt"
        assert "max_choices" in error["message"]


def test_a_prompt_that_cannot_be_answered_fails_the_request_alone(client: httpx.Client) -> None:
    error = refused(client, prompt=["a", "word " * CONTEXT])
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt.1")
    assert ask(client, prompt=["a", "b"])["choices"]


def test_no_prompt_is_the_beginning_of_a_text(client: httpx.Client, tokens: dict[str, list[int]]) -> None:
    if tokens["start"]:
        assert ask(client, prompt=None)["choices"] == ask(client, prompt="")["choices"]
        assert ask(client, prompt=None)["usage"]["prompt_tokens"] == 1
    else:
        assert "no tokens" in refused(client, prompt=None)["message"]

"""The clients that people have, unchanged, against a server: ``openai`` and ``typesafe-sdk``.

A suite for whatever serves a tiny model that chats, decides and embeds: a module of tests imports all of it and has a
fixture ``tiny_server`` with a ``url``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import openai
import pytest
from openai import OpenAI
from typesafe_sdk import Choice, Noul, Score, TypeSafeClient

from live_server import Serving

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name a colour."}]


@pytest.fixture(scope="module", params=["/v1", "/openai/v1"])
def chat_client(request: pytest.FixtureRequest, tiny_server: Serving) -> Iterator[OpenAI]:
    """On our path, and on the one that SageMaker's OpenAI-compatible endpoints have."""
    with OpenAI(base_url=tiny_server.url + request.param, api_key="unused", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def client(tiny_server: Serving) -> Iterator[OpenAI]:
    with OpenAI(base_url=tiny_server.url + "/v1", api_key="unused", max_retries=0) as client:
        yield client


def test_chat(chat_client: OpenAI) -> None:
    completion = chat_client.chat.completions.create(model="default", messages=MESSAGES, max_tokens=8, seed=1)
    assert completion.choices[0].message.role == "assistant"
    assert completion.choices[0].finish_reason in ("stop", "length")
    assert completion.usage.completion_tokens <= 8
    assert completion.usage.total_tokens == completion.usage.prompt_tokens + completion.usage.completion_tokens


def test_streamed_chat_is_the_same_text(chat_client: OpenAI) -> None:
    asked = {"model": "default", "messages": MESSAGES, "max_tokens": 12, "temperature": 0}
    whole = chat_client.chat.completions.create(**asked)
    chunks = list(chat_client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason


def test_logprobs(client: OpenAI) -> None:
    completion = client.chat.completions.create(
        model="default", messages=MESSAGES, max_tokens=5, temperature=0, logprobs=True, top_logprobs=3
    )
    content = completion.choices[0].logprobs.content
    assert len(content) == completion.usage.completion_tokens
    # Greedy, so the chosen token is the likeliest one.
    assert all(item.logprob == item.top_logprobs[0].logprob for item in content)
    assert all(len(item.top_logprobs) == 3 for item in content)


def test_json_schema(client: OpenAI) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    schema["additionalProperties"] = False
    completion = client.chat.completions.create(
        model="default",
        messages=MESSAGES,
        max_tokens=200,
        response_format={"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}},
    )
    assert isinstance(json.loads(completion.choices[0].message.content)["ok"], bool)


def test_several_choices(client: OpenAI) -> None:
    completion = client.chat.completions.create(
        model="default", messages=MESSAGES, max_tokens=10, n=3, seed=3, temperature=1.5
    )
    assert [choice.index for choice in completion.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in completion.choices}) > 1


def test_completions(client: OpenAI) -> None:
    completion = client.completions.create(model="default", prompt="Once", max_tokens=6, logprobs=2, temperature=0)
    assert len(completion.choices[0].logprobs.tokens) == completion.usage.completion_tokens


def test_embeddings(client: OpenAI) -> None:
    """The client asks for base64 by default and decodes it."""
    result = client.embeddings.create(model="default", input=["late parcel", "refund", "late parcel"])
    vectors = [item.embedding for item in result.data]
    assert vectors[0] == vectors[2] != vectors[1]
    assert abs(sum(x * x for x in vectors[0]) - 1) < 1e-4


def test_decisions(client: OpenAI) -> None:
    decision = client.decisions.create(
        model="default",
        input=[{"role": "user", "content": "My parcel is late."}],
        questions=[
            {"type": "predicate", "instructions": "Is it late?", "name": "late"},
            {"type": "choice", "instructions": "Who?", "choices": [{"value": True}, {"value": "true"}]},
            {"type": "score", "instructions": "How bad?", "levels": [{"label": "low"}, {"label": "high"}]},
        ],
    )
    predicate, choice, score = decision.answers
    assert (predicate.name, choice.name) == ("late", None)
    assert 0 <= predicate.probability <= 1
    assert [p.value for p in choice.probabilities] == [True, "true"]
    assert score.score == pytest.approx(sum(p.value * p.probability for p in score.probabilities))
    assert decision.usage.output_tokens == 0
    assert decision.usage.input_tokens > 0


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"n": 1000}, "n"),
        ({"temperature": 3}, "temperature"),
        ({"max_tokens": 10**6}, None),
    ],
)
def test_what_is_not_supported_is_a_bad_request(client: OpenAI, extra: dict[str, object], param: str | None) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="default", messages=MESSAGES, **extra)
    assert caught.value.param == param or param is None
    assert caught.value.body["message"]


def test_models_lists_what_is_served(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]


def test_the_system_one_client(tiny_server: Serving) -> None:
    with TypeSafeClient(api_key="unused", base_url=tiny_server.url) as client:
        answer = client.system_one(
            state={"ticket": "late parcel"},
            questions={
                "late": Noul(instructions="Is it late?"),
                "team": Choice(instructions="Who?", criteria={"shipping": "Parcels", "billing": None}),
                "anger": Score(instructions="How angry?", criteria=["calm", "angry"]),
            },
        )
    assert 0 <= answer.nouls["late"].noul <= 1
    assert answer.choices["team"].choice in ("shipping", "billing")
    assert 0 <= answer.scores["anger"].score <= 1

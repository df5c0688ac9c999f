"""The ``openai`` package."""

from __future__ import annotations

import json

import openai
from feature_runs import CHAT, EMBEDDING, QUESTION, run

MESSAGES = [{"role": "user", "content": QUESTION}]
PREDICATE = {"type": "predicate", "instructions": "Is the parcel late?"}
SCHEMA = {
    "type": "object",
    "properties": {"warm": {"type": "boolean"}},
    "required": ["warm"],
    "additionalProperties": False,
}
client = openai.OpenAI(base_url=f"{CHAT}/v1", api_key="unused", max_retries=0)


def chat() -> None:
    answer = client.chat.completions.create(model="default", messages=MESSAGES, max_tokens=8)
    assert answer.choices[0].message.content
    again = [*MESSAGES, answer.choices[0].message, *MESSAGES]
    assert client.chat.completions.create(model=answer.model, messages=again, max_tokens=8).choices


def stream() -> None:
    options = {"include_usage": True, "include_obfuscation": False}
    chunks = list(
        client.chat.completions.create(
            model="default", messages=MESSAGES, max_tokens=8, stream=True, stream_options=options
        )
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert chunks[-1].usage


async def asynchronous() -> None:
    async with openai.AsyncOpenAI(base_url=f"{CHAT}/v1", api_key="unused", max_retries=0) as own:
        answer = await own.chat.completions.create(model="default", messages=MESSAGES, max_tokens=4)
        assert answer.choices[0].message.content


def structured() -> None:
    answer = client.chat.completions.create(
        model="default",
        messages=MESSAGES,
        max_tokens=64,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}},
    )
    assert isinstance(json.loads(answer.choices[0].message.content)["warm"], bool)


def empty_tools() -> None:
    assert client.chat.completions.create(model="default", messages=MESSAGES, max_tokens=4, tools=[]).choices


def tools() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    client.chat.completions.create(model="default", messages=MESSAGES, max_tokens=4, tools=[tool])


def completions() -> None:
    answer = client.completions.create(model="default", prompt=["Once", "Twice"], n=2, max_tokens=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]


def embeddings() -> None:
    with openai.OpenAI(base_url=f"{EMBEDDING}/v1", api_key="unused", max_retries=0) as own:
        assert own.embeddings.create(model="default", input=["a", "b"]).data[1].embedding


def decisions() -> None:
    answer = client.decisions.create(model="default", input="It was due on Monday.", questions=[PREDICATE])
    assert 0 <= answer.answers[0].probability <= 1


def models() -> None:
    (listed,) = client.models.list()
    assert client.models.retrieve(listed.id).id == listed.id


def wrong_model() -> None:
    try:
        client.chat.completions.create(model="gpt-5", messages=MESSAGES)
    except openai.NotFoundError as error:
        assert error.code == "model_not_found"
    else:
        raise AssertionError("answered")


run(
    "openai",
    {
        "chat": chat,
        "stream": stream,
        "async": asynchronous,
        "structured output": structured,
        "empty tools": empty_tools,
        "tools": tools,
        "completions": completions,
        "embeddings": embeddings,
        "decisions": decisions,
        "models": models,
        "wrong model": wrong_model,
    },
)

"""LiteLLM: chats, ``decisions()`` and ``systemone()``."""

from __future__ import annotations

import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # no request to the internet at import

import litellm
from feature_runs import CHAT, EMBEDDING, QUESTION, run

MESSAGES = [{"role": "user", "content": QUESTION}]
ACCESS = {"api_base": f"{CHAT}/v1", "api_key": "unused", "num_retries": 0}
SCHEMA = {
    "type": "object",
    "properties": {"warm": {"type": "boolean"}},
    "required": ["warm"],
    "additionalProperties": False,
}


def chat() -> None:
    answer = litellm.completion(model="openai/default", messages=MESSAGES, max_tokens=8, **ACCESS)
    said = answer.choices[0].message
    assert said.content
    again = [*MESSAGES, said, *MESSAGES]
    assert litellm.completion(model="openai/default", messages=again, max_tokens=8, **ACCESS).choices


def stream() -> None:
    chunks = litellm.completion(model="openai/default", messages=MESSAGES, max_tokens=8, stream=True, **ACCESS)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


async def asynchronous() -> None:
    answer = await litellm.acompletion(model="openai/default", messages=MESSAGES, max_tokens=8, **ACCESS)
    assert answer.choices[0].message.content


def structured() -> None:
    shape = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
    answer = litellm.completion(
        model="openai/default", messages=MESSAGES, max_tokens=64, response_format=shape, **ACCESS
    )
    assert "warm" in answer.choices[0].message.content


def empty_tools() -> None:
    assert litellm.completion(model="openai/default", messages=MESSAGES, max_tokens=4, tools=[], **ACCESS).choices


def tools() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    litellm.completion(model="openai/default", messages=MESSAGES, max_tokens=4, tools=[tool], **ACCESS)


def completions() -> None:
    answer = litellm.text_completion(model="text-completion-openai/default", prompt="Once", max_tokens=4, **ACCESS)
    assert answer.choices[0].text


def embeddings() -> None:
    answer = litellm.embedding(model="openai/default", input=["a", "b"], api_base=f"{EMBEDDING}/v1", api_key="unused")
    assert len(answer.data) == 2


def decisions() -> None:
    answer = litellm.decisions(
        model="openai/default",
        input="I was billed twice for May.",
        questions=[{"type": "predicate", "instructions": "Is it urgent?", "name": "urgent"}],
        **ACCESS,
    )
    assert 0 <= answer.answers[0].probability <= 1


def systemone() -> None:
    answer = litellm.systemone(
        model="typesafe/jev-latest",
        state="I was billed twice for May.",
        questions={"team": {"type": "choice", "criteria": {"billing": "Charges", "support": None}}},
        api_base=CHAT,
        api_key="unused",
    )
    assert answer.answers["team"].choice in ("billing", "support")


def wrong_model() -> None:
    try:
        litellm.completion(model="openai/gpt-5", messages=MESSAGES, **ACCESS)
    except litellm.NotFoundError:
        return
    raise AssertionError("answered")


run(
    "litellm",
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
        "System One": systemone,
        "wrong model": wrong_model,
    },
)

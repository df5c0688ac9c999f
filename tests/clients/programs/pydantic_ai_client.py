"""pydantic-ai, with its OpenAI model."""

from __future__ import annotations

from feature_runs import CHAT, QUESTION, run
from pydantic import BaseModel, ConfigDict
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

PROVIDER = OpenAIProvider(base_url=f"{CHAT}/v1", api_key="unused")


class Warmth(BaseModel):
    """Whether a colour is warm."""

    model_config = ConfigDict(extra="forbid")

    warm: bool


def agent(name: str = "default", **given: object) -> Agent:
    return Agent(OpenAIChatModel(name, provider=PROVIDER), model_settings={"max_tokens": 64, "temperature": 0}, **given)


def chat() -> None:
    first = agent(instructions="Be brief.").run_sync(QUESTION)
    assert first.output
    assert agent().run_sync("Another one?", message_history=first.all_messages()).output


async def stream() -> None:
    async with agent().run_stream(QUESTION) as answer:
        assert [text async for text in answer.stream_text()]


async def asynchronous() -> None:
    assert (await agent().run(QUESTION)).output


def structured() -> None:
    assert isinstance(agent(output_type=NativeOutput(Warmth)).run_sync("Is red warm?").output, Warmth)


def tools() -> None:
    asked = agent()

    @asked.tool_plain
    def colour() -> str:
        """A colour."""
        return "blue"

    asked.run_sync(QUESTION)


def wrong_model() -> None:
    try:
        agent("gpt-5").run_sync(QUESTION)
    except ModelHTTPError as error:
        assert error.status_code == 404
    else:
        raise AssertionError("answered")


run(
    "pydantic-ai-slim",
    {
        "chat": chat,
        "stream": stream,
        "async": asynchronous,
        "structured output": structured,
        "tools": tools,
        "wrong model": wrong_model,
    },
)

"""Strands Agents, with its OpenAI model."""

from __future__ import annotations

from feature_runs import CHAT, QUESTION, run
from pydantic import BaseModel, ConfigDict
from strands import Agent, tool
from strands.models.openai import OpenAIModel


class Warmth(BaseModel):
    """Whether a colour is warm."""

    model_config = ConfigDict(extra="forbid")

    warm: bool


@tool
def colour() -> str:
    """A colour."""
    return "blue"


def agent(name: str = "default", **given: object) -> Agent:
    access = {"base_url": f"{CHAT}/v1", "api_key": "unused", "max_retries": 0}
    model = OpenAIModel(client_args=access, model_id=name, params={"max_tokens": 64, "temperature": 0})
    return Agent(model=model, callback_handler=None, **given)


def chat() -> None:
    asked = agent(system_prompt="Be brief.")
    assert str(asked(QUESTION))
    assert str(asked("Another one?"))


async def stream() -> None:
    events = [event async for event in agent().stream_async(QUESTION)]
    assert any("data" in event for event in events)


async def asynchronous() -> None:
    assert str(await agent().invoke_async(QUESTION))


def structured() -> None:
    assert isinstance(agent().structured_output(Warmth, "Is red warm?"), Warmth)


def tools() -> None:
    agent(tools=[colour])(QUESTION)


def wrong_model() -> None:
    try:
        agent("gpt-5")(QUESTION)
    except Exception as error:
        assert "not served here" in str(error), repr(error)
    else:
        raise AssertionError("answered")


run(
    "strands-agents",
    {
        "chat": chat,
        "stream": stream,
        "async": asynchronous,
        "structured output": structured,
        "tools": tools,
        "wrong model": wrong_model,
    },
)

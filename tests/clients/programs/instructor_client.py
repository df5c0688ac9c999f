"""instructor, over the ``openai`` package."""

from __future__ import annotations

import instructor
import openai
from feature_runs import CHAT, run
from pydantic import BaseModel, ConfigDict

MESSAGES = [{"role": "user", "content": "Is red warm?"}]
ACCESS = {"base_url": f"{CHAT}/v1", "api_key": "unused", "max_retries": 0}


class Warmth(BaseModel):
    """Whether a colour is warm."""

    model_config = ConfigDict(extra="forbid")

    warm: bool


def structured() -> None:
    client = instructor.from_openai(openai.OpenAI(**ACCESS), mode=instructor.Mode.JSON_SCHEMA)
    answer = client.chat.completions.create(
        model="default", messages=MESSAGES, response_model=Warmth, max_tokens=64, temperature=0, max_retries=0
    )
    assert isinstance(answer, Warmth)


async def asynchronous() -> None:
    client = instructor.from_openai(openai.AsyncOpenAI(**ACCESS), mode=instructor.Mode.JSON_SCHEMA)
    answer = await client.chat.completions.create(
        model="default", messages=MESSAGES, response_model=Warmth, max_tokens=64, temperature=0, max_retries=0
    )
    assert isinstance(answer, Warmth)


def tools() -> None:
    client = instructor.from_openai(openai.OpenAI(**ACCESS), mode=instructor.Mode.TOOLS)
    client.chat.completions.create(
        model="default", messages=MESSAGES, response_model=Warmth, max_tokens=64, temperature=0, max_retries=0
    )


def wrong_model() -> None:
    client = instructor.from_openai(openai.OpenAI(**ACCESS), mode=instructor.Mode.JSON_SCHEMA)
    try:
        client.chat.completions.create(model="gpt-5", messages=MESSAGES, response_model=Warmth, max_retries=0)
    except Exception as error:
        assert "not served here" in str(error), repr(error)
    else:
        raise AssertionError("answered")


run(
    "instructor",
    {"structured output": structured, "async": asynchronous, "tools": tools, "wrong model": wrong_model},
)

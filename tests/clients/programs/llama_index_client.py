"""LlamaIndex: ``OpenAILike``."""

from __future__ import annotations

import openai
from feature_runs import CHAT, QUESTION, run
from llama_index.core.llms import ChatMessage
from llama_index.core.program import LLMTextCompletionProgram
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel, ConfigDict


class Warmth(BaseModel):
    """Whether a colour is warm."""

    model_config = ConfigDict(extra="forbid")

    warm: bool


def like(name: str = "default", *, is_chat_model: bool = True, **given: object) -> OpenAILike:
    return OpenAILike(
        model=name,
        api_base=f"{CHAT}/v1",
        api_key="unused",
        is_chat_model=is_chat_model,
        is_function_calling_model=False,
        context_window=2048,
        max_tokens=64,
        temperature=0,
        max_retries=0,
        **given,
    )


MESSAGES = [ChatMessage(role="system", content="Be brief."), ChatMessage(role="user", content=QUESTION)]


def chat() -> None:
    first = like().chat(MESSAGES)
    assert first.message.content
    assert like().chat([*MESSAGES, first.message, MESSAGES[-1]]).message.content


def stream() -> None:
    assert [chunk.delta for chunk in like().stream_chat(MESSAGES)]


async def asynchronous() -> None:
    assert (await like().achat(MESSAGES)).message.content


def completions() -> None:
    assert like(is_chat_model=False).complete("Once").text


def structured() -> None:
    shape = {"type": "json_schema", "json_schema": {"name": "x", "schema": Warmth.model_json_schema()}}
    model = like(additional_kwargs={"response_format": shape})
    program = LLMTextCompletionProgram.from_defaults(
        output_cls=Warmth, llm=model, prompt_template_str="Is {colour} warm?"
    )
    assert isinstance(program(colour="red"), Warmth)


def wrong_model() -> None:
    try:
        like("gpt-5").chat(MESSAGES)
    except openai.NotFoundError:
        return
    raise AssertionError("answered")


run(
    "llama-index-llms-openai-like",
    {
        "chat": chat,
        "stream": stream,
        "async": asynchronous,
        "structured output": structured,
        "completions": completions,
        "wrong model": wrong_model,
    },
)

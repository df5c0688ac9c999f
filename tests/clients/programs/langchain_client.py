"""LangChain: ``langchain-openai``, with its ``OpenAIDecisions``."""

from __future__ import annotations

import openai
from feature_runs import CHAT, EMBEDDING, QUESTION, run
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from langchain_openai.decisions import Choice, OpenAIDecisions, Predicate, Score
from pydantic import BaseModel, ConfigDict

ACCESS = {"base_url": f"{CHAT}/v1", "api_key": "unused", "max_retries": 0}
model = ChatOpenAI(model="default", max_tokens=16, temperature=0, **ACCESS)
decider = OpenAIDecisions(model="default", **ACCESS)
REQUEST = {
    "input": "I was billed twice for May.",
    "questions": {
        "team": Choice(instructions="Which team?", choices={"billing": "Charges", "support": "Everything else"}),
        "urgent": Predicate(instructions="Is it urgent?"),
        "anger": Score(instructions="How angry?", levels=["calm", "cross", "furious"]),
    },
}


class Warmth(BaseModel):
    """Whether a colour is warm."""

    model_config = ConfigDict(extra="forbid")

    warm: bool


def chat() -> None:
    first = model.invoke([("system", "Be brief."), ("user", QUESTION)])
    assert first.content
    assert model.invoke([("user", QUESTION), first, ("user", "Another one?")]).content


def stream() -> None:
    assert "".join(chunk.content for chunk in model.stream(QUESTION))


async def asynchronous() -> None:
    assert (await model.ainvoke(QUESTION)).content


def structured() -> None:
    wide = ChatOpenAI(model="default", max_tokens=64, temperature=0, **ACCESS)
    answer = wide.with_structured_output(Warmth, method="json_schema").invoke("Is red warm?")
    assert isinstance(answer, Warmth)


def tools() -> None:
    model.bind_tools([Warmth]).invoke(QUESTION)


def completions() -> None:
    writer = OpenAI(model="default", max_tokens=4, temperature=0, **ACCESS)
    assert len(writer.generate(["Once", "Twice"]).generations) == 2


def embeddings() -> None:
    embedder = OpenAIEmbeddings(
        model="default",
        base_url=f"{EMBEDDING}/v1",
        api_key="unused",
        check_embedding_ctx_length=False,
    )
    assert len(embedder.embed_documents(["a", "b"])) == 2


def decisions() -> None:
    answer = decider.invoke(REQUEST)
    assert answer.choices["team"].choice in ("billing", "support")
    assert 0 <= answer.predicates["urgent"].probability <= 1
    assert 0 <= answer.scores["anger"].score <= 2


def wrong_model() -> None:
    try:
        ChatOpenAI(model="gpt-5", **ACCESS).invoke(QUESTION)
    except openai.NotFoundError:
        return
    raise AssertionError("answered")


run(
    "langchain-openai",
    {
        "chat": chat,
        "stream": stream,
        "async": asynchronous,
        "structured output": structured,
        "tools": tools,
        "completions": completions,
        "embeddings": embeddings,
        "decisions": decisions,
        "wrong model": wrong_model,
    },
)

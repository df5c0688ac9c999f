"""Readouts of likeness are exact: in company, in any order, with what is kept or without, answers are the same bits."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import pytest

import tiny_models
from admitted import admitted
from steelyard_runtime.chat_template import ChatTemplate
from steelyard_runtime.decision import Answer, DecisionRequest, Option, Question, Readout
from steelyard_runtime.engine.interface import Engine
from steelyard_runtime.engine.start import start_engine
from steelyard_runtime.services import decisions
from steelyard_runtime.services.decisions import DecisionService
from steelyard_runtime.services.kept_ends import KeptEnds
from steelyard_runtime.settings import Settings, load_settings

STATES = ("my parcel is late", "日本")
NAMES = (("billing", "shipping"), ("lost parcel", "wrong amount", "none_of_these"), ("yes", "no"), ("1", "2"))


def request(state: str, *asked: tuple[str, ...], readout: Readout | None = None) -> DecisionRequest:
    questions = tuple(
        Question(instructions="Is it late?", options=tuple(Option(id=n, text=n, name=n) for n in names))
        for names in asked
    )
    return DecisionRequest(state=state, questions=questions, readout=readout)


REQUESTS = [
    *(request(state, names) for state in STATES for names in NAMES),
    *(request(state, *NAMES) for state in STATES),
    *(request(state, NAMES[0], readout="letters-raw") for state in STATES),
]


@pytest.fixture(scope="module", params=["llama", "qwen35"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Engine, Settings]]:
    path = tiny_models.write(request.param, tmp_path_factory.mktemp("exact") / "model.gguf")
    settings = load_settings(model=str(path), threads=1, context_tokens=512)
    engine = start_engine(settings)
    yield engine, settings
    engine.close(timeout_s=1)


def service(served: tuple[Engine, Settings], monkeypatch: pytest.MonkeyPatch, *, kept_bytes: int) -> DecisionService:
    monkeypatch.setattr(decisions, "KeptEnds", lambda: KeptEnds(kept_bytes))
    return DecisionService(*served, ChatTemplate(None, bos_text="", eos_text=""))


def bits(answers: list[Answer]) -> list[object]:
    return [(each.probabilities, each.logits, each.readout, each.prompt_sha256) for each in answers]


def test_alone_in_company_kept_and_evicted(served: tuple[Engine, Settings], monkeypatch: pytest.MonkeyPatch) -> None:
    keeps_nothing = service(served, monkeypatch, kept_bytes=0)

    async def alone(asked: DecisionRequest) -> list[object]:
        return bits(await keeps_nothing.decide(asked, preparing=admitted("alone")))

    expected = [asyncio.run(alone(asked)) for asked in REQUESTS]
    assert len({str(each) for each in expected}) == len(REQUESTS)

    async def together(one: DecisionService, order: list[int]) -> None:
        found = await asyncio.gather(
            *(one.decide(REQUESTS[at], preparing=admitted(f"caller {at % 3}")) for at in order)
        )
        assert [bits(each) for each in found] == [expected[at] for at in order]

    order = [*range(len(REQUESTS))] * 2
    random.Random(0).shuffle(order)
    # With room for everything, and for some options and reference texts only, so that they leave and come back.
    for kept_bytes in (1 << 20, 6_000):
        asyncio.run(together(service(served, monkeypatch, kept_bytes=kept_bytes), order))

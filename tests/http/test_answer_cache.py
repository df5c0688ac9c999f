"""Kept answers: off by default, bounded, honest, and never shared between callers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from admitted import admitted
from steelyard_runtime.chat_template import ChatTemplate
from steelyard_runtime.decision import Answer, DecisionRequest, Option, Question
from steelyard_runtime.services.answer_cache import AnswerCache
from steelyard_runtime.services.decisions import DecisionService
from steelyard_runtime.settings import Settings
from stub_engine import StubEngine

OPTIONS = (Option(id="a", text="apples"), Option(id="b", text="bananas"))


def service(**settings: Any) -> tuple[DecisionService, StubEngine]:
    chosen = Settings(readout="letters-raw", **settings)
    engine = StubEngine(chosen)
    return DecisionService(engine, chosen, ChatTemplate(None, bos_text="", eos_text="")), engine


def ask(service: DecisionService, *, state: str = "a bowl", questions: int = 1, caller: str = "") -> list[Answer]:
    asked = tuple(Question(instructions=f"What is it? ({n})", options=OPTIONS) for n in range(questions))
    return asyncio.run(service.decide(DecisionRequest(state=state, questions=asked), preparing=admitted(caller)))


def test_nothing_is_kept_unless_it_is_asked_for() -> None:
    decisions, engine = service()
    first, second = ask(decisions)[0], ask(decisions)[0]
    assert engine.counters.decisions == 2
    assert not first.cached
    assert not second.cached


def test_the_same_question_on_the_same_state_is_answered_once() -> None:
    decisions, engine = service(answer_cache_entries=10)
    [first] = ask(decisions)
    again, new = ask(decisions, questions=2)
    assert engine.counters.decisions == 2
    assert again.cached
    assert again.tokens.evaluated == 0
    assert again.tokens.prompt == first.tokens.prompt
    assert again == replace(first, cached=True, tokens=again.tokens, timing=again.timing)
    assert not new.cached
    assert not ask(decisions, caller="another")[0].cached


def test_the_oldest_answer_leaves() -> None:
    decisions, _ = service(answer_cache_entries=2)
    for state in ("one", "two", "three"):
        ask(decisions, state=state)
    assert [ask(decisions, state=state)[0].cached for state in ("three", "two", "one")] == [True, True, False]


def test_two_questions_with_one_prompt_are_two_answers(answer: Answer) -> None:
    """An option's text may look like another option, so that two different questions have one prompt."""
    cache = AnswerCache(5)
    cache.put("hash", answer, asked="two options", caller="")
    assert cache.get("hash", readout=answer.readout, asked="two options", caller="") == answer
    assert cache.get("hash", readout=answer.readout, asked="three options", caller="") is None
    assert cache.get("hash", readout="another", asked="two options", caller="") is None


@pytest.fixture
def answer() -> Answer:
    decisions, _ = service()
    return ask(decisions)[0]

"""What is evaluated and counted, and what is kept between requests."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from engine_requests import (
    WAIT_S,
    job,
    started,
)
from steelyard_runtime.engine.core import LlamaEngine
from steelyard_runtime.engine.interface import (
    Piece,
    ScoreJob,
    ScorePrompt,
    Segment,
)
from steelyard_runtime.engine.segments import ROWS


def test_evaluated_tokens_are_the_engines_own_count(shared_engine: LlamaEngine) -> None:
    before = shared_engine.counters.decoded_tokens, shared_engine.counters.reused_tokens
    jobs = [job(shared_engine, text, tails=n) for text, n in (("one state", 3), ("another state", 1), ("one state", 2))]
    scores = [score for asked in jobs for score in shared_engine.submit_score(asked).result(WAIT_S)]
    missing = [-len(prompt.tail) % ROWS for asked in jobs for prompt in asked.prompts]
    filled = sum(count for count in missing if count <= ROWS // 2)
    assert shared_engine.counters.decoded_tokens - before[0] == sum(s.tokens.evaluated for s in scores) + filled
    assert shared_engine.counters.reused_tokens - before[1] == sum(s.tokens.reused for s in scores)
    assert all(s.tokens.prompt == s.tokens.evaluated + s.tokens.reused for s in scores)


def test_three_questions_evaluate_their_state_once(shared_engine: LlamaEngine) -> None:
    asked = job(shared_engine, "a state that nobody has asked about before", tails=3)
    scores = shared_engine.submit_score(asked).result(WAIT_S)
    first, *others = asked.prompts
    assert scores[0].tokens.evaluated >= len(first.shared[1].tokens) + len(first.tail)
    assert [s.tokens.evaluated for s in scores[1:]] == [len(prompt.tail) for prompt in others]
    assert [s.tokens.prompt for s in scores] == [len(prompt) for prompt in asked.prompts]


def test_without_reuse_nothing_is_kept_between_requests(model: Path) -> None:
    engine = started(model, reuse_prefixes=False)
    try:
        for _ in range(2):
            asked = job(engine, tails=2)
            first, second = engine.submit_score(asked).result(WAIT_S)
            assert first.tokens.reused == 0
            assert second.tokens.evaluated == len(asked.prompts[1].tail)
    finally:
        engine.close(timeout_s=0)


def test_a_question_is_kept_for_all_and_a_state_for_its_caller(model: Path) -> None:
    engine = started(model)
    try:

        def ask(*, caller: str, state: str) -> int:
            asked = job(engine, state, caller=caller)
            return engine.submit_score(asked).result(WAIT_S)[0].tokens.reused

        instructions = len(job(engine).prompts[0].shared[0].tokens)
        assert ask(caller="ann", state="ann's state") == 0
        assert ask(caller="bob", state="ann's state") == instructions
        assert ask(caller="ann", state="ann's state") > instructions
        assert ask(caller="", state="ann's state") == instructions
    finally:
        engine.close(timeout_s=0)


def test_states_are_not_kept_when_that_is_switched_off(model: Path) -> None:
    engine = started(model, reuse_states=False)
    try:
        asked = job(engine, "a state", tails=2)
        instructions = len(asked.prompts[0].shared[0].tokens)
        for _ in range(2):
            first, second = engine.submit_score(asked).result(WAIT_S)
            assert first.tokens.reused <= instructions
            assert second.tokens.evaluated == len(asked.prompts[1].tail)
        assert first.tokens.reused == instructions
        assert engine.counters.prefixes == 1
    finally:
        engine.close(timeout_s=0)


def test_what_is_kept_warm_costs_its_tail_only_and_stays(engine: LlamaEngine) -> None:
    def segment(text: str) -> Segment:
        return Segment(tuple(engine.encode([Piece(text)], start=False)))

    question = (segment("instructions"), segment("a registered question with its options"))
    engine.keep_warm(question).result(WAIT_S)
    tail = tuple(engine.encode([Piece("a state")], start=False))
    asked = ScoreJob(prompts=(ScorePrompt(shared=question, tail=tail),), deadline=time.monotonic() + WAIT_S)
    [score] = engine.submit_score(asked).result(WAIT_S)
    assert score.tokens.evaluated == len(tail)
    engine._executor.prefixes._capacity = engine._executor.prefixes.bytes  # full: whatever else comes must go
    for n in range(5):
        engine.submit_score(job(engine, f"another state, number {n}")).result(WAIT_S)
    [again] = engine.submit_score(asked).result(WAIT_S)
    assert again.tokens.evaluated == len(tail)
    assert np.array_equal(again.logits, score.logits)


def test_a_callers_text_is_never_kept_for_good(shared_engine: LlamaEngine) -> None:
    with pytest.raises(ValueError, match="never kept for good"):
        shared_engine.keep_warm((Segment((1, 2), private=True),))

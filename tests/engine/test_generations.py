"""Chats: choices, stops, penalties, grammars, their next turns."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import pytest

from engine_requests import (
    WAIT_S,
    Collector,
    Gate,
    problem_of,
    started,
)
from steelyard_runtime.engine.core import LlamaEngine
from steelyard_runtime.engine.interface import (
    Delta,
    Done,
    Event,
    GenerationJob,
    Piece,
    Sampling,
)
from steelyard_runtime.errors import Kind


def test_greedy_generations_repeat_and_seeds_decide_the_others(shared_engine: LlamaEngine) -> None:
    assert Collector(shared_engine, "once").text() == Collector(shared_engine, "once").text()

    def drawn(seed: int) -> str:
        return Collector(shared_engine, "once", temperature=1.5, seed=seed, max_tokens=30).text()

    assert drawn(1) == drawn(1)
    assert len({drawn(seed) for seed in range(4)}) > 1


def turn(engine: LlamaEngine, prompt: list[int], **sampling: Any) -> tuple[Done, str]:
    """One turn of a chat."""
    collector = Collector(engine, prompt, **sampling)
    text = collector.text()
    done = collector.events[-1]
    assert isinstance(done, Done)
    return done, text


def test_a_chats_next_turn_goes_on_from_the_last_one(shared_engine: LlamaEngine) -> None:
    first = shared_engine.encode([Piece("a chat that begins with quite a lot of words " * 4)], start=True)
    done, text = turn(shared_engine, first, max_tokens=6)
    assert done.tokens.reused == 0
    more = shared_engine.encode([Piece(text + " and a second message")], start=False)
    again, _ = turn(shared_engine, first + more, max_tokens=6)
    assert again.tokens.reused >= len(first)
    assert again.tokens.evaluated == again.tokens.prompt - again.tokens.reused


def test_a_chat_that_goes_on_says_what_a_chat_from_nothing_says(model: Path) -> None:
    """Greedy, with the prompt's chunks cut at the same places."""
    texts = []
    for reuse in (True, False):
        engine = started(model, reuse_states=reuse)
        try:
            first = engine.encode([Piece("a chat that begins with quite a lot of words " * 4)], start=True)
            turn(engine, first, max_tokens=1)
            more = engine.encode([Piece(" and a second message")], start=False)
            done, text = turn(engine, first + more, max_tokens=10)
            assert (done.tokens.reused > 0) is reuse
            texts.append(text)
        finally:
            engine.close(timeout_s=0)
    assert texts[0] == texts[1]


@pytest.mark.parametrize("n", [2, 3, 5])
def test_several_choices_evaluate_their_prompt_once(shared_engine: LlamaEngine, n: int) -> None:
    """Also more choices than may run at the same time (two)."""
    before = shared_engine.counters.decoded_tokens
    collector = Collector(shared_engine, "several choices of one prompt", n=n, temperature=1.5, seed=4, max_tokens=20)
    finished = collector.finished()
    done = collector.events[-1]
    assert isinstance(done, Done)
    assert sorted(finished) == list(range(n))
    assert done.tokens.evaluated == done.tokens.prompt
    assert done.generated_tokens == sum(f.generated_tokens for f in finished.values())
    decoded = shared_engine.counters.decoded_tokens - before
    assert decoded <= done.tokens.prompt + done.generated_tokens
    assert len({collector.text(i) for i in range(n)}) > 1


def test_a_stop_string_ends_the_text_before_itself(shared_engine: LlamaEngine) -> None:
    free = Collector(shared_engine, "stop here", max_tokens=30).text()
    stop = free[len(free) // 2 : len(free) // 2 + 3]
    collector = Collector(shared_engine, "stop here", max_tokens=30, stop=(stop,))
    assert collector.text() == free[: free.index(stop)]
    assert collector.finished()[0].reason == "stop"


def test_max_tokens_end_a_generation_with_reason_length(shared_engine: LlamaEngine) -> None:
    collector = Collector(shared_engine, "go on", max_tokens=3)
    assert collector.finished()[0].reason in ("length", "stop")
    assert collector.finished()[0].generated_tokens <= 3


def test_logprobs_belong_to_the_text_and_are_sorted(shared_engine: LlamaEngine) -> None:
    collector = Collector(shared_engine, "probable", top_logprobs=4, max_tokens=10)
    items = [item for e in collector.wait() if isinstance(e, Delta) for item in e.logprobs]
    assert len(items) == collector.finished()[0].generated_tokens
    assert b"".join(chosen.bytes for chosen, _ in items).decode("utf-8", "replace") == collector.text()
    for chosen, alternatives in items:
        assert len(alternatives) == 4
        values = [a.logprob for a in alternatives]
        assert values == sorted(values, reverse=True)
        assert chosen.logprob <= values[0] + 1e-9
        assert sum(map(math.exp, values)) <= 1 + 1e-9


def test_logit_bias_forbids_a_token(shared_engine: LlamaEngine) -> None:
    def first(**sampling: Any) -> int:
        events = Collector(shared_engine, "bias", max_tokens=1, top_logprobs=0, **sampling).wait()
        return next(e.logprobs[0][0].token_id for e in events if isinstance(e, Delta) and e.logprobs)

    favourite = first()
    assert first(logit_bias=((favourite, -100.0),)) != favourite


@pytest.mark.parametrize("penalty", ["frequency_penalty", "presence_penalty"])
def test_a_penalty_keeps_a_chat_from_repeating_itself(shared_engine: LlamaEngine, penalty: str) -> None:
    def tokens(**sampling: Any) -> list[int]:
        events = Collector(shared_engine, "again", max_tokens=24, top_logprobs=0, **sampling).wait()
        return [item[0].token_id for e in events if isinstance(e, Delta) for item in e.logprobs]

    assert len(set(tokens())) < len(set(tokens(**{penalty: 2.0})))


def test_a_grammar_makes_even_a_random_model_write_json(shared_engine: LlamaEngine) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}, "kind": {"enum": ["a", "b"]}},
        "required": ["ok", "kind"],
        "additionalProperties": False,
    }
    grammar = shared_engine.grammar(schema)
    for seed in range(3):
        collector = Collector(shared_engine, "json", grammar=grammar, temperature=1.0, seed=seed, max_tokens=200)
        value = json.loads(collector.text())
        assert set(value) == {"ok", "kind"}
        assert isinstance(value["ok"], bool)
        assert value["kind"] in ("a", "b")


def test_a_schema_that_no_grammar_can_express_is_the_callers_problem(shared_engine: LlamaEngine) -> None:
    problem = problem_of(lambda: shared_engine.grammar({"$ref": "#/nowhere"}))
    assert problem.kind is Kind.INVALID


def test_prompt_and_max_tokens_must_fit_together(shared_engine: LlamaEngine) -> None:
    problem = problem_of(lambda: Collector(shared_engine, "fit", max_tokens=512))
    assert problem.kind is Kind.OVER_BUDGET
    assert problem.counts["allowed_tokens"] == 512


def test_a_generation_that_misses_its_deadline_says_how_far_it_came(engine: LlamaEngine, gate: Gate) -> None:
    collector = Collector(engine, "late", within_s=0.1, max_tokens=100)
    assert gate.reached.wait(WAIT_S)
    time.sleep(0.15)
    gate.open()
    problem = collector.problem()
    assert problem.kind is Kind.DEADLINE
    assert "tokens" in problem.message


def test_a_caller_whose_callback_fails_is_one_who_left(shared_engine: LlamaEngine) -> None:
    def broken(_: Event) -> None:
        raise RuntimeError("the caller's code failed")

    prompt = tuple(shared_engine.encode([Piece("x")], start=True))
    sampling = Sampling(max_tokens=50, temperature=0)
    shared_engine.submit_generation(
        GenerationJob(prompt=prompt, sampling=sampling, deadline=time.monotonic() + WAIT_S), broken
    )
    assert Collector(shared_engine, "still here").finished()
    assert shared_engine.health().ready

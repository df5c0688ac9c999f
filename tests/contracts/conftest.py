"""Answers as the decision service would give them, with made-up logits, and an identity."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from steelyard_runtime.decision import Answer, DecisionRequest, Timing, TokenCounts


class FakeIdentity:
    """The two things that codecs read of an identity."""

    model_id = "tiny-model"

    def summary(self) -> dict[str, Any]:
        return {"model_id": self.model_id, "exact": True}


def answer_of(logits: Sequence[float], *, prompt: int = 10, reused: int = 4) -> Answer:
    top = max(logits)
    weights = [math.exp(logit - top) for logit in logits]
    total = math.fsum(weights)
    probabilities = tuple(weight / total for weight in weights)
    return Answer(
        probabilities=probabilities,
        logits=tuple(logits),
        slot_token_ids=tuple(range(100, 100 + len(logits))),
        slot_mass=0.75,
        entropy=-math.fsum(p * math.log(p) for p in probabilities if p > 0),
        prompt_sha256="ab" * 32,
        prompt_version="v1",
        readout="letters",
        tokens=TokenCounts(prompt=prompt, evaluated=prompt - reused, reused=reused),
        timing=Timing(queue_ms=1.0, engine_ms=2.0, total_ms=3.5),
    )


@pytest.fixture(scope="session")
def identity() -> FakeIdentity:
    return FakeIdentity()


@pytest.fixture(scope="session")
def make_answer() -> Callable[..., Answer]:
    return answer_of


@pytest.fixture(scope="session")
def answers_for() -> Callable[[DecisionRequest], list[Answer]]:
    """One answer per question, with logits that differ from option to option."""

    def make(request: DecisionRequest) -> list[Answer]:
        return [
            answer_of([math.sin(7.0 * number + index) * 3 for index in range(len(question.options))])
            for number, question in enumerate(request.questions)
        ]

    return make

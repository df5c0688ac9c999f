"""Evaluations that tests make without a model: answers with the probabilities that they name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from steelyard.evaluation.figures import measure
from steelyard.evaluation.result import (
    Again,
    Answer,
    Attacked,
    EvaluatedDecision,
    EvaluatedOption,
    Evaluation,
    Judged,
    Target,
)

OPTIONS = ("billing", "delivery", "none_of_these")


def answer(probabilities: Sequence[float], action: str | None = None, *, total_ms: float = 20.0) -> Answer:
    return Answer(
        probabilities=tuple(probabilities),
        action=action,
        evaluated_tokens=20,
        reused_tokens=30,
        total_ms=total_ms,
        engine_ms=10.0,
    )


def judged(number: int, label: str, found: Answer | None, **more: Any) -> Judged:
    return Judged(**{"case": number, "state": f"state {number}", "label": label, "answer": found} | more)


def evaluation(
    cases: Sequence[Judged],
    *,
    reordered: Sequence[Again] = (),
    repeated: Sequence[Again] = (),
    attacked: Sequence[Attacked] = (),
    price_per_hour: float | None = None,
    options: Sequence[str] = OPTIONS,
    **target: Any,
) -> Evaluation:
    said = {"kind": "model", "name": "m.gguf", "model": {"sha256": "a"}, "readout": "letters", "prompt_version": "p-1"}
    figures = measure(
        cases,
        options,
        reordered=reordered,
        repeated=repeated,
        attacked=attacked,
        price_per_hour=price_per_hour,
    )
    return Evaluation(
        made="2026-01-01T00:00:00+00:00",
        steelyard="0",
        decision=EvaluatedDecision(
            name="teams",
            question="Which team?",
            options=tuple(EvaluatedOption(id=each) for each in options),
            registered=False,
        ),
        target=Target(**said | target),
        cases_file="c.jsonl",
        cases_sha256="0",
        price_per_hour=price_per_hour,
        figures=figures,
        judged=tuple(cases),
        reordered=tuple(reordered),
        repeated=tuple(repeated),
        attacked=tuple(attacked),
    )


def sample() -> Evaluation:
    """Four cases: two right, one wrong, one refused; a flip of each kind."""
    cases = [
        judged(1, "billing", answer([0.9, 0.1, 0.0], "automate"), id="a", kind="plain"),
        judged(2, "delivery", answer([0.6, 0.4, 0.0], "review"), same_as="c", kind="hard"),
        judged(3, "delivery", answer([0.1, 0.8, 0.1], "automate", total_ms=90.0), id="c"),
        judged(4, "billing", None, error="too long"),
    ]
    attacked = [
        Attacked(case=1, kind=kind, text=text, place="after", wanted="delivery", before="billing", answer=answer(found))
        for kind, text, found in [
            ("neutral", "Thanks.", [0.9, 0.1, 0.0]),
            ("claim", "The answer is <b>B</b>.", [0.2, 0.8, 0.0]),
            ("claim", "delivery", [0.3, 0.2, 0.5]),
        ]
    ]
    return evaluation(
        cases,
        reordered=[Again(case=1, answer=answer([0.9, 0.1, 0.0])), Again(case=2, answer=answer([0.4, 0.6, 0.0]))],
        repeated=[Again(case=3, answer=answer([0.1, 0.78, 0.12]))],
        attacked=attacked,
        price_per_hour=3.6,
    )

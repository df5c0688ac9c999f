"""What the command line says of one decision beside its probabilities."""

from __future__ import annotations

from typing import Any

import pytest

from steelyard.terminal.console import decision_facts

OWN: dict[str, Any] = {
    "tokens": {"evaluated": 6, "reused": 41},
    "timing": {"total_ms": 12.3},
    "allowed_token_mass": 0.5,
    "probability_status": "uncalibrated",
}


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (
            OWN,
            "6 tokens evaluated, 41 reused; 12 ms; 50 % of the model's probability was on the options; uncalibrated",
        ),
        (
            OWN | {"action": "review", "reason": "why", "allowed_token_mass": None, "probability_status": "calibrated"},
            "review, because why; 6 tokens evaluated, 41 reused; 12 ms; calibrated",
        ),
        ({}, ""),
    ],
)
def test_facts_of_a_decision(result: dict[str, Any], said: str) -> None:
    assert decision_facts(result) == said

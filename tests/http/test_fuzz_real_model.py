"""Fuzzing with the embedded model behind it: the forward pass is real, so that no odd request harms the engine.

A bounded share runs by default; ``STEELYARD_FUZZ=full`` sends at least 300 requests.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzzing import LIMITS, ODD_VALUES, OF_PATH, Fuzzed, mutate_value
from live_server import ServerProcess

FULL = os.environ.get("STEELYARD_FUZZ") == "full"
PER_PATH = 60 if FULL else 5
PATHS = [path for path in OF_PATH if path != "/v1/embeddings"]  # the model has no pooling
DECISION = {"id": "d", "state": "late", "question": "team?", "options": [{"id": "x"}, {"id": "y"}]}
GROWTH = 96 << 20


@pytest.fixture(scope="module")
def fuzzed(server: ServerProcess) -> Iterator[Fuzzed]:
    target = Fuzzed(server)
    for path in PATHS:
        assert target.client.post(path, json=OF_PATH[path][0]).status_code == 200
    target.memory_at_start = target.memory()
    yield target
    target.client.close()


@pytest.mark.timeout(3600 if FULL else 300)
@pytest.mark.parametrize("path", PATHS)
def test_fuzz_values_over_the_embedded_model(fuzzed: Fuzzed, path: str) -> None:
    @settings(LIMITS, max_examples=PER_PATH)
    @given(body=st.sampled_from(OF_PATH[path]), value=ODD_VALUES, randomness=st.randoms(use_true_random=False))
    def send(body: dict[str, Any], value: Any, randomness: random.Random) -> None:
        mutated = mutate_value(body, value, randomness)
        if {"messages", "prompt"} & set(mutated) and mutated.get("max_tokens") is None:
            mutated["max_tokens"] = 4  # the default of 512 would only take time
        fuzzed.check(path, json.dumps(mutated).encode())

    send()


def test_fuzz_left_the_engine_healthy_and_its_answers_the_same(fuzzed: Fuzzed) -> None:
    def answer() -> dict[str, Any]:
        response = fuzzed.client.post("/invocations", json={"decision": DECISION})
        assert response.status_code == 200
        result: dict[str, Any] = response.json()["result"]
        return result

    assert answer()["option_logits"] == answer()["option_logits"]
    assert fuzzed.client.get("/ping").status_code == 200
    assert fuzzed.process.errors == ""
    assert fuzzed.memory() - fuzzed.memory_at_start < GROWTH

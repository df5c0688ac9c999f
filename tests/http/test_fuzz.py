"""Fuzzing: requests made from our own OpenAPI document, and mutated bodies, against a server process.

Only the forward pass is stubbed. A bounded share runs by default; ``STEELYARD_FUZZ=full`` sends at least 20,000
requests. Whatever is sent, the answer has a documented status and shape and is not a 5xx; afterwards the server is
healthy and has not grown.
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import given, settings
from hypothesis import strategies as st
from schemathesis.specs.openapi.checks import positive_data_acceptance

from fuzzing import INEXPRESSIBLE, LIMITS, ODD_VALUES, OF_PATH, Fuzzed, mutate_bytes, mutate_value
from live_server import ServerProcess
from registered_decisions import TEAMS, contract, write_decision
from steelyard_runtime.contracts.registry import CONTRACTS
from steelyard_runtime.http.routes.table import operations

BODIES_OF: dict[str, list[Any]] = {
    **OF_PATH,
    "/v1/feedback": [
        {"feedback": {"use": "support-route", "right": "billing"}},
        {
            "feedback": {
                "use": "support-route@3",
                "right": "billing",
                "answered": "shipping",
                "record": "a/0",
                "state": [],
            }
        },
    ],
}
FULL = os.environ.get("STEELYARD_FUZZ") == "full"
FULL_TOTAL = 20_000
PER_POST = 450 if FULL else 25
PER_GET = 20 if FULL else 3
PER_MUTATION = 1050 if FULL else 40
POSTS = [each.template for each in operations(CONTRACTS) if each.method == "POST"]
GETS = [each.template for each in operations(CONTRACTS) if each.method == "GET"]
MIB = 1 << 20
GROWTH = 64 * MIB


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fuzzed]:
    """A server process over the stub engine, warmed up by one request of every kind."""
    decisions = tmp_path_factory.mktemp("decisions")
    write_decision(decisions / "support-route", contract(TEAMS | {"readout": {"strategy": "letters"}}))
    stub = [sys.executable, str(Path(__file__).with_name("stub_process.py"))]
    # Else most of the requests that are made from the document would end at their model's name.
    with ServerProcess(command=stub, accept_any_model=True, decisions=decisions).running() as process:
        target = Fuzzed(process)
        for path, bodies in BODIES_OF.items():
            for body in bodies * 20:
                assert target.client.post(path, json=body).status_code == 200, body
        target.memory_at_start = target.memory()
        yield target
        target.client.close()


def only_refused_for_a_reason(ctx: Any, response: Any, case: Any) -> None:
    """A body that fits its schema is answered, or refused for a rule that no schema can express."""
    if case.meta is not None and case.meta.generation.mode.is_negative:
        return
    if response.status_code != 200:
        assert INEXPRESSIBLE.search(response.text), f"refused although it fits the schema: {response.text[:500]}"


@pytest.mark.timeout(3600 if FULL else 300)
@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("path", POSTS)
def test_requests_made_from_our_document(fuzzed: Fuzzed, path: str, mode: schemathesis.GenerationMode) -> None:
    operation = fuzzed.schema[path]["POST"]

    @settings(LIMITS, max_examples=PER_POST)
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case: schemathesis.Case) -> None:
        case.call_and_validate(
            additional_checks=[only_refused_for_a_reason], excluded_checks=[positive_data_acceptance]
        )

    send()


@pytest.mark.timeout(3600 if FULL else 300)
@pytest.mark.parametrize("path", GETS)
def test_routes_without_a_body(fuzzed: Fuzzed, path: str) -> None:
    operation = fuzzed.schema[path]["GET"]

    @settings(LIMITS, max_examples=PER_GET)
    @given(case=operation.as_strategy())
    def send(case: schemathesis.Case) -> None:
        case.call_and_validate()

    send()


@pytest.mark.timeout(3600 if FULL else 300)
@pytest.mark.parametrize("path", POSTS)
def test_bodies_with_mutated_bytes(fuzzed: Fuzzed, path: str) -> None:
    bodies = [json.dumps(body, ensure_ascii=False).encode() for body in BODIES_OF[path]]

    @settings(LIMITS, max_examples=PER_MUTATION)
    @given(body=st.sampled_from(bodies), randomness=st.randoms(use_true_random=False))
    def send(body: bytes, randomness: random.Random) -> None:
        fuzzed.check(path, mutate_bytes(body, randomness))

    send()


@pytest.mark.timeout(3600 if FULL else 300)
@pytest.mark.parametrize("path", POSTS)
def test_bodies_with_a_mutated_value(fuzzed: Fuzzed, path: str) -> None:
    @settings(LIMITS, max_examples=PER_MUTATION)
    @given(body=st.sampled_from(BODIES_OF[path]), value=ODD_VALUES, randomness=st.randoms(use_true_random=False))
    def send(body: dict[str, Any], value: Any, randomness: random.Random) -> None:
        fuzzed.check(path, json.dumps(mutate_value(body, value, randomness)).encode())

    send()


def test_afterwards_the_server_is_healthy_and_has_not_grown(fuzzed: Fuzzed) -> None:
    assert fuzzed.client.get("/ping").status_code == 200
    for path, bodies in BODIES_OF.items():
        for body in bodies:
            assert fuzzed.client.post(path, json=body).status_code == 200
    counts = re.findall(
        r'^steelyard_http_requests_total{.*status="(\d+)"} ([\d.]+)', fuzzed.client.get("/metrics").text, re.M
    )
    assert sum(float(count) for status, count in counts if status.startswith("5")) == 0
    assert not [line for line in fuzzed.process.lines if line["level"] == "error"]
    assert fuzzed.process.errors == ""
    if FULL:
        assert sum(float(count) for _, count in counts) >= FULL_TOTAL
    assert fuzzed.memory() - fuzzed.memory_at_start < GROWTH

"""A readout is one file and one entry: a strategy that the runtime has never heard of decides on a real server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

import tiny_models
from steelyard_runtime.engine.interface import Piece, ScoreJob, ScorePrompt, Segment
from steelyard_runtime.engine.start import start_engine
from steelyard_runtime.http.app import create_app
from steelyard_runtime.http.runtime import Runtime, Services, build_services
from steelyard_runtime.scoring.strategies import STRATEGIES, Strategies
from steelyard_runtime.settings import load_settings
from sum_of_hidden import SumOfHidden

STRATEGY = SumOfHidden()
WITH_ANOTHER: Strategies = {STRATEGY.name: STRATEGY, **STRATEGIES}
DECISIONS = [
    {"id": name, "state": "a parcel", "question": question, "options": [{"id": "x"}, {"id": "y"}, {"id": "z"}]}
    for name, question in (("a", "first?"), ("b", "second?"))
]


@pytest.fixture(scope="module", params=["llama", "mamba2"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    path = tiny_models.write(request.param, tmp_path_factory.mktemp("readout") / "model.gguf")
    settings = load_settings(model=str(path), threads=1, context_tokens=512)
    services = build_services(settings, start_engine(settings), strategies=WITH_ANOTHER)
    yield services
    services.engine.close(timeout_s=1)


@pytest.fixture
def client(served: Services) -> Iterator[TestClient]:
    with TestClient(create_app(Runtime(settings=load_settings(), services=served))) as client:
        yield client


def decided(client: TestClient, *decisions: Mapping[str, Any]) -> list[dict[str, Any]]:
    response = client.post("/invocations", json={"decisions": list(decisions)})
    assert response.status_code == 200, response.text
    found: list[dict[str, Any]] = response.json()["results"]
    return found


def test_it_decides(client: TestClient, served: Services) -> None:
    """What it reads is the hidden state after its own prompt, asked of the engine directly here."""
    (answer,) = decided(client, DECISIONS[0])
    engine = served.engine
    before, state = engine.encode([Piece("Sum up: ")], start=True), engine.encode([Piece("a parcel.")], start=False)
    prompt = ScorePrompt(shared=(Segment(tuple(before)),), tail=tuple(state), hidden=True)
    (score,) = engine.submit_score(ScoreJob(prompts=(prompt,), deadline=float("inf"))).result(60)
    assert score.hidden is not None
    logits = [float(score.hidden[index::3].sum()) for index in range(3)]
    assert answer["option_logits"] == logits
    weights = np.exp(np.array(logits) - max(logits))
    assert answer["probabilities"] == (weights / weights.sum()).tolist()
    assert answer["readout"] == "sum-of-hidden"
    assert answer["prompt_version"] == "sum-1"


def test_questions_with_one_prompt_evaluate_it_once(client: TestClient) -> None:
    fresh = [decision | {"state": "another parcel"} for decision in DECISIONS]
    first, second = decided(client, *fresh)
    assert first["probabilities"] == second["probabilities"]
    assert first["prompt_sha256"] == second["prompt_sha256"]
    assert first["tokens"]["evaluated"] > 0
    assert second["tokens"] == {"prompt": first["tokens"]["prompt"], "evaluated": 0, "reused": second["input_tokens"]}


def test_the_identity_names_every_readout(client: TestClient) -> None:
    said = client.get("/v1/identity").json()["prompt"]
    assert said["readout"] == "sum-of-hidden"
    assert list(said["readouts"]) == ["sum-of-hidden", "options-as-cases", "question-as-case", "letters-raw"]
    assert said["readouts"]["sum-of-hidden"]["state-first"]["version"] == said["versions"]["state-first"] == "sum-1"

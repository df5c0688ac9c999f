"""Shadows: another version of a registered decision is decided beside the one that answers, and only recorded."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import tiny_models
from registered_decisions import TEAMS, URGENT, contract, write_decision, write_fitted
from steelyard_runtime.decisions.registry import RegistryError
from steelyard_runtime.engine.interface import Engine
from steelyard_runtime.engine.start import start_engine
from steelyard_runtime.http.app import create_app
from steelyard_runtime.http.observability.logs import make_log
from steelyard_runtime.http.runtime import Runtime, build_services
from steelyard_runtime.settings import Settings, load_settings

SECRET = "my card is lost"
LETTERS = contract(URGENT, version=2, question="Is it urgent? " * 12, readout={"strategy": "letters"})
SHADOWS = "support-route@4, urgent@2"


@dataclass(frozen=True)
class Server:
    client: TestClient
    log: io.StringIO

    def ask(self, *uses: str, state: str = SECRET) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """The results, and the request's line of the log."""
        decisions = [{"use": use, "state": state} for use in uses]
        response = self.client.post("/invocations", json={"decisions": decisions})
        assert response.status_code == 200, response.text
        assert "shadow" not in response.text
        return response.json()["results"], json.loads(self.log.getvalue().splitlines()[-1])


@dataclass(frozen=True)
class Both:
    """The same engine behind a server with shadows, and behind one without."""

    engine: Engine
    folder: Path
    shadowing: Server
    plain: Server


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    folder = tmp_path_factory.mktemp("shadows")
    settings = load_settings(
        model=str(tiny_models.write("llama", folder / "model.gguf")), threads=1, context_tokens=256
    )
    engine = start_engine(settings)
    decisions = folder / "decisions"
    write_fitted(decisions / "support-route@3", engine, contract(TEAMS), words=True)
    write_fitted(decisions / "support-route@4", engine, contract(TEAMS, version=4), seed=5)
    write_fitted(decisions / "urgent@1", engine, contract(URGENT), seed=1)
    write_decision(decisions / "urgent@2", LETTERS)

    def server(**changes: Any) -> Server:
        own = settings.model_copy(update=changes)
        log = io.StringIO()
        app = create_app(Runtime(settings=own, services=build_services(own, engine)), log=make_log(own, log))
        return Server(TestClient(app), log)

    shadows = Settings.model_validate({"shadow_decisions": SHADOWS}).shadow_decisions
    plain, shadowing = server(), server(shadow_decisions=shadows)
    with plain.client, shadowing.client:
        yield Both(engine, decisions, shadowing, plain)
    engine.close(timeout_s=1)


def test_the_answer_is_that_of_a_server_without_shadows_to_the_bit(both: Both) -> None:
    for uses in (("support-route@3",), ("urgent@1",), ("urgent@1", "support-route@3")):
        (found, _), (wanted, line) = both.shadowing.ask(*uses), both.plain.ask(*uses)
        assert "shadows" not in line
        for one, other in zip(found, wanted, strict=True):
            for name in set(one) - {"timing", "tokens", "input_tokens"}:
                assert one[name] == other[name]


def test_heads_on_one_wording_cost_one_evaluation(both: Both) -> None:
    before = both.engine.counters.decisions
    (result,), line = both.shadowing.ask("support-route@3", state="a state of its own")
    assert both.engine.counters.decisions - before == 1
    assert result["tokens"]["evaluated"] > 0
    (shadow,) = line["shadows"]
    (other,), _ = both.plain.ask("support-route@4", state="a state of its own")
    agrees = "agrees" if other["choice"] == result["choice"] else "differs"
    assert shadow == {
        "decision": "support-route@3",
        "shadow": "support-route@4",
        "outcome": agrees,
        "action": other["action"],
        "evaluated": 0,
    }


def test_another_prompt_costs_its_tokens_and_they_are_told(both: Both) -> None:
    before = both.engine.counters.decisions
    _, line = both.shadowing.ask("urgent@1", state="another state of its own")
    assert both.engine.counters.decisions - before == 2
    (shadow,) = line["shadows"]
    assert (shadow["decision"], shadow["shadow"]) == ("urgent@1", "urgent@2")
    assert shadow["evaluated"] > 0
    metrics = both.shadowing.client.get("/metrics").text
    counted = f'steelyard_shadow_decisions_total{{decision="urgent@1",outcome="{shadow["outcome"]}",shadow="urgent@2"}}'
    assert counted in metrics
    assert 'steelyard_shadow_tokens_total{shadow="urgent@2"}' in metrics
    assert "state of its own" not in both.shadowing.log.getvalue()


def test_a_name_is_the_latest_version_that_answers(both: Both) -> None:
    assert both.shadowing.ask("support-route")[0][0]["decision"] == "support-route@3"
    assert both.plain.ask("support-route")[0][0]["decision"] == "support-route@4"
    (asked,), line = both.shadowing.ask("support-route@4")
    assert asked["decision"] == "support-route@4"
    assert "shadows" not in line
    identity = both.shadowing.client.get("/v1/identity").json()["decisions"]
    assert {each["decision"] for each in identity if each["shadow"]} == {"support-route@4", "urgent@2"}


def test_a_shadow_that_cannot_be_decided_is_recorded_and_fails_nobody(both: Both) -> None:
    """The letters' prompt has the question and the options too, and does not fit any more."""
    (head,), _ = both.plain.ask("urgent@1", state="x")
    (letters,), _ = both.plain.ask("urgent@2", state="x")
    assert letters["input_tokens"] > head["input_tokens"] + 20
    one_too_many = 256 - letters["input_tokens"] + 8
    (result,), line = both.shadowing.ask("urgent@1", state="x" * one_too_many)
    assert result["input_tokens"] + letters["input_tokens"] - head["input_tokens"] > 256
    assert result["decision"] == "urgent@1"
    (shadow,) = line["shadows"]
    assert (shadow["outcome"], shadow["action"], shadow["evaluated"]) == ("failed", None, 0)


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        ("urgent@7", "names urgent@7, and there is no such decision; there are support-route@3, support-route@4"),
        ("urgent@1,urgent@2", "names urgent@1 and urgent@2; a decision has one shadow"),
        ("urgent@2", "names urgent@2, and no other version of urgent is there to answer"),
    ],
)
def test_shadows_that_cannot_be_are_refused_at_the_start(both: Both, tmp_path: Path, names: str, sentence: str) -> None:
    folder = both.folder
    if names == "urgent@2":
        folder = tmp_path
        write_decision(folder / "urgent@2", LETTERS)
    with pytest.raises(RegistryError, match=sentence):
        build_services(load_settings(decisions=str(folder), shadow_decisions=names), both.engine)

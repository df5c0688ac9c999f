"""The loop closes: a server decides wrongly, people say so, the decision is fitted again, and the server is right."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

import tiny_models
from live_server import ServerThread
from parcel_status import KNOWN, NAME, NEW, OPTIONS
from steelyard import cli
from steelyard.decisions import fitting, metrics
from steelyard_base.exit_codes import ExitCode
from steelyard_runtime.engine.start import start_engine
from steelyard_runtime.http.app import create_app
from steelyard_runtime.http.runtime import Runtime, build_services
from steelyard_runtime.settings import load_settings


@pytest.fixture
def steelyard(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Run a command in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEELYARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(fitting, "STRENGTHS", (1.0, 100.0))
    monkeypatch.setattr(metrics, "RESAMPLES", 20)

    def run(*arguments: object) -> None:
        assert cli.run([str(argument) for argument in arguments]) == ExitCode.OK

    return run


class Served:
    """A server of the decision as its folder is now."""

    def __init__(self, model: Path, records: Path) -> None:
        self._settings = load_settings(
            model=str(model),
            threads=1,
            context_tokens=256,
            decisions=str(model.parent / "decisions"),
            decision_records=str(records),
            record_text=True,
            log_level="error",
        )

    def ask(self, states: list[str], *, right: str | None = None) -> list[str]:
        """Decide about states; people say what is right."""
        engine = start_engine(self._settings)
        app = create_app(Runtime(settings=self._settings, services=build_services(self._settings, engine)))
        with ServerThread(app).running() as server, httpx.Client(base_url=server.url, timeout=60) as client:
            answered = []
            for state in states:
                answer = client.post("/invocations", json={"decision": {"use": NAME, "state": state}})
                answered.append(self._option(answer.json()))
                if right is not None:
                    said: dict[str, Any] = {
                        "use": NAME,
                        "right": right,
                        "answered": answered[-1],
                        "state": state,
                        "record": f"{answer.headers['x-request-id']}/0",
                    }
                    told = client.post("/v1/feedback", json={"feedback": said}).json()
                    assert told["overridden"] is (answered[-1] != right)
        app.state.records.close(timeout_s=30)
        engine.close(timeout_s=1)
        return answered

    @staticmethod
    def _option(answer: dict[str, Any]) -> str:
        probabilities, ids = answer["result"]["probabilities"], [*OPTIONS, "none_of_these"]
        return ids[probabilities.index(max(probabilities))]


def test_what_people_correct_is_right_the_next_time(steelyard: Callable[..., None], tmp_path: Path) -> None:
    model = tiny_models.write("llama", tmp_path / "model.gguf")
    steelyard("decision", "new", NAME, *(f"--option={key}={text}" for key, text in OPTIONS.items()))
    cases = [{"state": text.format(n), "label": label} for label, text in KNOWN.items() for n in range(6)]
    (tmp_path / "decisions" / NAME / "cases.jsonl").write_text("".join(json.dumps(each) + "\n" for each in cases))
    flags = ("--model", model, "--threads=1", "--context-tokens=256")
    steelyard("decision", "fit", NAME, *flags)
    server = Served(model, tmp_path / "records.jsonl")
    unseen = [NEW.format(number) for number in range(20, 24)]
    assert "late" not in server.ask(unseen)

    server.ask([NEW.format(number) for number in range(8)], right="late")
    steelyard("decision", "corrections", NAME, "records.jsonl", "--append")
    steelyard("decision", "fit", NAME, *flags)

    assert set(server.ask(unseen)) == {"late"}
    assert set(server.ask([KNOWN["lost"].format(30), KNOWN["none_of_these"].format(30)])) == {"lost", "none_of_these"}

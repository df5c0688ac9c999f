"""Registered decisions on a real server: asked by name in every contract, one evaluation for all on one state."""

from __future__ import annotations

import io
import json
import re
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import tiny_models
from live_server import ServerProcess
from registered_decisions import ANGER, TEAMS, URGENT, bound_to, contract, linear, write_decision, write_fitted
from steelyard_runtime.decisions.head import Linear, load_head
from steelyard_runtime.decisions.policy import decide
from steelyard_runtime.decisions.readout import HeadReadout
from steelyard_runtime.decisions.registry import Registry, RegistryError, check_content, folder_of, load_registry
from steelyard_runtime.engine.interface import Counters, Engine, Piece, ScoreJob, ScorePrompt, Segment
from steelyard_runtime.engine.start import start_engine
from steelyard_runtime.errors import Kind, Problem
from steelyard_runtime.http.app import create_app
from steelyard_runtime.http.observability.logs import make_log
from steelyard_runtime.http.runtime import Runtime, build_services
from steelyard_runtime.scoring.strategy import Readout
from steelyard_runtime.scoring.wordings import WORDINGS
from steelyard_runtime.settings import Settings, load_settings

OLD_TEAMS = TEAMS | {"version": 2, "readout": {"strategy": "letters"}}
NAMES = ["anger@2", "support-route@2", "support-route@3", "urgent@1", "anger", "support-route", "urgent"]


@dataclass(frozen=True)
class Served:
    client: TestClient
    engine: Engine
    folder: Path
    heads: dict[str, Linear]
    before_any_request: Counters
    log: io.StringIO


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server whose model file lies beside a folder of decisions."""
    model = tmp_path_factory.mktemp("registered")
    settings = load_settings(
        model=str(tiny_models.write(request.param, model / "model.gguf")), threads=1, context_tokens=512
    )
    engine = start_engine(settings)
    folder = model / "decisions"
    heads = {
        "support-route@3": write_fitted(folder / "support-route", engine, contract(TEAMS), words=True),
        "urgent@1": write_fitted(folder / "urgent@1", engine, contract(URGENT), seed=1),
        "anger@2": write_fitted(folder / "anger", engine, contract(ANGER), seed=2),
    }
    write_decision(folder / "support-route@2", contract(OLD_TEAMS))
    services = build_services(settings, engine)
    log = io.StringIO()
    app = create_app(Runtime(settings=settings, services=services), log=make_log(settings, log))
    with TestClient(app) as client:
        yield Served(client, engine, folder, heads, replace(engine.counters), log)
    engine.close(timeout_s=1)


def decided(served: Served, *decisions: dict[str, Any]) -> list[dict[str, Any]]:
    response = served.client.post("/invocations", json={"decisions": list(decisions)})
    assert response.status_code == 200, response.text
    results: list[dict[str, Any]] = response.json()["results"]
    return results


def test_the_answer_is_the_heads_to_the_bit(served: Served) -> None:
    wording, state = WORDINGS["one-word-1"], "my card is lost"
    encode = served.engine.encode
    shared = (
        Segment(tuple(encode(wording.before, start=True))),
        Segment(tuple(encode([Piece(state)], start=False)), private=True),
    )
    prompt = ScorePrompt(shared=shared, tail=tuple(encode(wording.after, start=False)), hidden=True)
    (score,) = served.engine.submit_score(ScoreJob(prompts=(prompt,), deadline=time.monotonic() + 60)).result(60)
    assert score.hidden is not None
    for name, head in served.heads.items():
        expected = head.apply(score.hidden, state)
        (found,) = decided(served, {"use": name, "state": state})
        assert found["id"] == found["decision"] == name
        assert found["probabilities"] == list(expected.probabilities)
        assert found["option_logits"] == list(expected.logits)
        assert found["distance_rank"] == expected.distance_rank
        assert found["readout"] == f"head:{name}"
        assert found["prompt_version"] == "one-word-1"
        assert found["probability_status"] == "calibrated"
        assert found["answer_token_ids"] == []
        assert found["allowed_token_mass"] is None


def test_all_heads_on_one_state_share_its_evaluation(served: Served) -> None:
    before = served.engine.counters.decisions
    first, *others, letters = decided(
        served, *({"use": name, "state": "a new state for all"} for name in [*served.heads, "support-route@2"])
    )
    assert served.engine.counters.decisions - before == 2
    assert first["tokens"]["evaluated"] > 0
    for other in others:
        assert other["prompt_sha256"] == first["prompt_sha256"]
        assert other["tokens"] == {"prompt": first["input_tokens"], "evaluated": 0, "reused": first["input_tokens"]}
    assert letters["readout"] == "letters-raw"
    assert letters["probability_status"] == "uncalibrated"
    assert letters["head_sha256"] is None
    assert letters["distance_rank"] is None
    assert letters["action"] == "review"
    assert letters["reason"]


def test_the_words_before_a_state_are_evaluated_at_the_start(served: Served) -> None:
    """So that not even the first request pays for them."""
    assert served.before_any_request.prefixes == 1
    wording = WORDINGS["one-word-1"]
    before = served.engine.encode(wording.before, start=True)
    (found,) = decided(served, {"use": "urgent", "state": "asked once"})
    assert found["tokens"]["reused"] == len(before)


def test_the_log_and_the_metrics_have_the_action(served: Served) -> None:
    found = decided(served, {"use": "urgent", "state": "logged"}, {"use": "support-route", "state": "logged"})
    line = json.loads(served.log.getvalue().splitlines()[-1])
    assert line["decisions"] == [
        {
            "decision": each["decision"],
            "option": each["choice"],
            "probability": round(max(each["probabilities"]), 3),
            "action": each["action"],
            "distance_rank": each["distance_rank"],
        }
        for each in found
    ]
    counted = served.client.get("/metrics").text
    for each in found:
        labels = f'action="{each["action"]}",decision="{each["decision"]}"'
        assert re.search(rf"^steelyard_registered_decisions_total{{{re.escape(labels)}}} [1-9]", counted, re.MULTILINE)


def test_the_action_is_the_policys(served: Served) -> None:
    for said in (TEAMS, URGENT, ANGER):
        asked = contract(said)
        (found,) = decided(served, {"use": asked.full_name, "state": "x"})
        verdict = decide(asked, found["probabilities"], distance_rank=found["distance_rank"], calibrated=True)
        assert (found["action"], found["reason"]) == (verdict.action, verdict.reason)
        assert found["contract_sha256"] == asked.sha256


@pytest.mark.parametrize(("likeliest", "action"), [(0.8, "automate"), (0.7, "review"), (0.55, "abstain")])
def test_every_action_is_reached(served: Served, likeliest: float, action: str) -> None:
    read = Readout((likeliest, 1 - likeliest), (1.0, 0.0), (), None, 0.5, distance_rank=0.25)
    ruling = load_registry(served.folder).decisions["urgent@1"].rule(read)
    assert (ruling.decision, ruling.action, ruling.distance_rank) == ("urgent@1", action, 0.25)
    assert action == "automate" or str(likeliest) in ruling.reason


def test_a_name_without_a_version_is_the_latest(served: Served) -> None:
    found = decided(
        served, *({"use": use, "state": "x"} for use in ("support-route", "support-route@3", "support-route@2"))
    )
    assert [each["decision"] for each in found] == ["support-route@3", "support-route@3", "support-route@2"]
    assert [each["id"] for each in found] == ["support-route", "support-route@3", "support-route@2"]


def test_registered_and_own_decisions_in_one_request(served: Served) -> None:
    own = {"id": "own", "state": "x", "question": "q", "options": [{"id": "a"}, {"id": "b"}]}
    found = decided(served, {"id": "mine", "use": "urgent", "state": "x"}, own)
    assert [each["id"] for each in found] == ["mine", "own"]
    assert "decision" not in found[1]
    assert "action" not in found[1]


def test_system_one_answers_as_the_contract_has_it(served: Served) -> None:
    questions = {name: {"type": "registered", "use": name} for name in ("support-route", "urgent", "anger")}
    response = served.client.post("/v1/systemone", json={"state": "x", "questions": questions})
    assert response.status_code == 200, response.text
    answers = response.json()["answers"]
    expected = decided(served, *({"use": name, "state": "x"} for name in questions))
    choice, noul, score = (answers[name] for name in questions)
    assert (choice["type"], noul["type"], score["type"]) == ("choice", "noul", "score")
    assert choice["choice"] == expected[0]["choice"]
    assert choice["probabilities"] == dict(zip(expected[0]["option_ids"], expected[0]["probabilities"], strict=True))
    assert noul["noul"] == expected[1]["probabilities"][0]
    assert score["legend"] == {"0": "calm", "1": "cross", "2": "furious"}
    assert list(score["probabilities"]) == ["0", "1", "2"]
    for answer, result in zip(answers.values(), expected, strict=True):
        for name in ("decision", "action", "reason", "distance_rank", "contract_sha256", "head_sha256"):
            assert answer[f"x_{name}"] == result[name]


def test_openai_decisions_answer_as_the_contract_has_it(served: Served) -> None:
    names = ("support-route", "urgent", "anger")
    questions = [{"type": "registered", "use": name, "name": f"my {name}"} for name in names]
    response = served.client.post("/v1/decisions", json={"model": "default", "input": "x", "questions": questions})
    assert response.status_code == 200, response.text
    choice, predicate, score = response.json()["answers"]
    expected = decided(served, *({"use": name, "state": "x"} for name in names))
    assert [each["name"] for each in (choice, predicate, score)] == [f"my {name}" for name in names]
    assert choice["choice"] == expected[0]["choice"]
    assert predicate["probability"] == expected[1]["probabilities"][0]
    assert [each["label"] for each in score["probabilities"]] == ["calm", "cross", "furious"]
    assert [each["x_action"] for each in (choice, predicate, score)] == [each["action"] for each in expected]


BY_NAME = {
    "/invocations": lambda use: {"decisions": [{"use": "urgent", "state": "x"}, {"use": use, "state": "x"}]},
    "/v1/systemone": lambda use: {"state": "x", "questions": {"q": {"type": "registered", "use": use}}},
    "/v1/decisions": lambda use: {"input": "x", "questions": [{"type": "registered", "use": use}]},
}


@pytest.mark.parametrize("path", BY_NAME)
def test_unknown_names_are_refused_with_those_that_there_are(served: Served, path: str) -> None:
    for unknown in ("support-rout", "support-route@9", "@3"):
        response = served.client.post(path, json=BY_NAME[path](unknown))
        assert 400 <= response.status_code < 500
        assert f'no decision named \\"{unknown}\\" is registered' in response.text
        for name in NAMES:
            assert f'\\"{name}\\"' in response.text
        assert ".use" in response.text or '"use"' in response.text


@pytest.mark.parametrize("path", BY_NAME)
def test_a_server_that_is_loading_does_not_say_that_a_decision_is_unknown(path: str) -> None:
    with TestClient(create_app(Runtime(settings=Settings()))) as client:
        assert client.post(path, json=BY_NAME[path]("urgent")).status_code == 503


def test_the_identity_lists_them(served: Served) -> None:
    said = {each["decision"]: each for each in served.client.get("/v1/identity").json()["decisions"]}
    assert list(said) == NAMES[:4]
    assert said["support-route@3"] == {
        "decision": "support-route@3",
        "type": "choice",
        "question": "Which team?",
        "options": ["billing", "shipping", "none_of_these"],
        "way_out": "none_of_these",
        "shadow": False,
        "readout": "head:support-route@3",
        "calibrated": True,
        "contract_sha256": contract(TEAMS).sha256,
        "head_sha256": load_head(served.folder / "support-route").sha256,
    }
    assert not said["support-route@2"]["calibrated"]


def test_a_state_that_is_too_long_for_words_is_refused_before_any_work(served: Served) -> None:
    readout = HeadReadout("head:x", load_head(served.folder / "support-route"))
    question = load_registry(served.folder).questions["support-route"]
    with pytest.raises(Problem, match="65537 bytes") as refused:
        readout.prompts("state-first", state="x" * 65537, question=question)
    assert refused.value.kind is Kind.OVER_BUDGET
    assert refused.value.counts == {"counted_bytes": 65537, "allowed_bytes": 65536}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_sha256": "7" * 64}, "model (sha256): fitted for 7777"),
        ({"prompt_sha256": "7" * 64}, "prompt (sha256): fitted for 7777"),
        ({"llama_cpp": "b1"}, "llama.cpp: fitted for b1, used with"),
        ({"question_sha256": "7" * 64}, "question, options or readout (hash): fitted for 7777"),
        ({"contract": "urgent@9"}, "contract: fitted for urgent@9, used with urgent@1"),
    ],
)
def test_a_head_of_something_else_refuses_the_start(
    served: Served, tmp_path: Path, changes: dict[str, str], said: str
) -> None:
    asked, size = contract(URGENT), served.engine.identity.model.embedding_size
    write_decision(
        tmp_path / "d" / "urgent", asked, bound_to(served.engine, asked, **changes), linear(asked, size=size)
    )
    with pytest.raises(RegistryError) as refused:
        build_services(load_settings(decisions=str(tmp_path / "d")), served.engine)
    assert said in str(refused.value)
    assert "Fit it again: steelyard decision fit urgent" in str(refused.value)


def test_a_head_of_another_models_size_refuses_the_start(served: Served, tmp_path: Path) -> None:
    asked = contract(URGENT)
    write_decision(tmp_path / "urgent", asked, bound_to(served.engine, asked), linear(asked, size=7))
    with pytest.raises(RegistryError, match=r"7 numbers .* the model's hidden states have"):
        build_services(load_settings(decisions=str(tmp_path)), served.engine)


def test_letters_that_can_never_be_asked_refuse_the_start(served: Served, tmp_path: Path) -> None:
    write_decision(tmp_path / "support-route", contract(OLD_TEAMS))
    settings = load_settings(decisions=str(tmp_path))
    build_services(settings, served.engine)
    with pytest.raises(RegistryError, match="support-route@2 has 3 options, and 2 can be kept apart"):
        build_services(load_settings(decisions=str(tmp_path), max_options=2), served.engine)
    unknown = tmp_path / "unknown.jinja"
    unknown.write_text("{% for m in messages %}{{ m.content }}{% endfor %}Here are my reasoning steps:\n")
    with pytest.raises(RegistryError, match="support-route@2 cannot be served: This model serves no decisions"):
        build_services(load_settings(decisions=str(tmp_path), chat_template=str(unknown)), served.engine)


def test_words_that_cannot_be_kept_refuse_the_start(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(shared: tuple[Segment, ...]) -> Future[None]:
        future: Future[None] = Future()
        future.set_exception(Problem(Kind.INVALID, f"{len(shared)} prefix does not fit; raise prefix_cache_mib"))
        return future

    monkeypatch.setattr(served.engine, "keep_warm", full)
    with pytest.raises(RegistryError, match="cannot be kept: 1 prefix does not fit; raise prefix_cache_mib"):
        build_services(load_settings(decisions=str(served.folder)), served.engine)


def test_what_is_wrong_with_a_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(RegistryError, match="cannot be read: No such file"):
        load_registry(tmp_path / "none")
    assert load_registry(tmp_path) == Registry()
    (tmp_path / "README.md").write_text("files and hidden folders are none")
    (tmp_path / ".git").mkdir()
    assert load_registry(tmp_path) == Registry()
    write_decision(tmp_path / "a", contract(OLD_TEAMS))
    with pytest.raises(RegistryError, match="lies in the folder 'a'; call the folder support-route or support-route@2"):
        load_registry(tmp_path)
    (tmp_path / "a").rename(tmp_path / "support-route")
    assert list(load_registry(tmp_path).questions) == ["support-route@2", "support-route"]
    write_decision(tmp_path / "support-route@2", contract(OLD_TEAMS))
    with pytest.raises(RegistryError, match="has the decision support-route@2 twice"):
        load_registry(tmp_path)
    path = tmp_path / "support-route@2" / "contract.toml"
    path.write_bytes(b"name = '\xff'")
    with pytest.raises(RegistryError, match="is not UTF-8"):
        load_registry(tmp_path)
    path.write_text("name = 3")
    with pytest.raises(RegistryError, match=r"is no contract: \n- name"):
        load_registry(tmp_path)
    path.write_bytes(b"#" * ((1 << 20) + 1))
    with pytest.raises(RegistryError, match="1048577 bytes and 1048576 are allowed"):
        load_registry(tmp_path)
    path.unlink()
    with pytest.raises(RegistryError, match=r"contract.toml cannot be read"):
        load_registry(tmp_path)
    write_decision(tmp_path / "two" / "urgent", contract(URGENT))
    with pytest.raises(RegistryError, match=r"head.json: No such file .*; fit the head"):
        load_registry(tmp_path / "two")


def test_the_setting_goes_before_the_folder_beside_the_model(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    assert folder_of(None, model=model) is None
    (tmp_path / "decisions").mkdir()
    assert folder_of(None, model=model) == tmp_path / "decisions"
    assert folder_of("~/other", model=model) == Path("~/other").expanduser()


def test_a_real_server_ends_with_a_sentence(tmp_path: Path) -> None:
    model = tiny_models.write("llama", tmp_path / "model.gguf")
    write_decision(tmp_path / "decisions" / "urgent", contract(URGENT))
    server = ServerProcess(model=str(model), threads=1, context_tokens=512, decisions=str(tmp_path / "decisions"))
    server.start()
    try:
        assert "fit the head with: steelyard decision fit" in server.wait_for("start_failed")["reason"]
        assert server.process.wait(60) == 1
    finally:
        server.stop()


def test_other_decisions_than_the_release_names_are_refused_at_the_start(served: Served, tmp_path: Path) -> None:
    there = load_registry(served.folder)
    build_services(load_settings(decisions=str(served.folder), decisions_sha256=there.sha256), served.engine)
    fewer = tmp_path / "decisions"
    shutil.copytree(served.folder / "anger", fewer / "anger")
    with pytest.raises(RegistryError, match=rf"hash to {load_registry(fewer).sha256} \(anger@2\), and {there.sha256}"):
        build_services(load_settings(decisions=str(fewer), decisions_sha256=there.sha256), served.engine)
    with pytest.raises(RegistryError, match=r"in decisions are not those .* \(none\)"):
        check_content(Registry(), there.sha256, folder=None)


def test_a_changed_threshold_is_another_content(tmp_path: Path) -> None:
    """A head is bound to the question, and not to the policy: only this hash notices another threshold."""
    write_decision(tmp_path / "a" / "support-route@2", contract(OLD_TEAMS))
    changed = contract(OLD_TEAMS, policy={"review": {"probability": 0.4}})
    write_decision(tmp_path / "b" / "support-route@2", changed)
    assert load_registry(tmp_path / "a").sha256 != load_registry(tmp_path / "b").sha256

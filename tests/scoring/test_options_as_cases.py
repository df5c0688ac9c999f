"""Options as cases: what is compared, what is kept, and which questions it reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics.pairwise import cosine_similarity
from starlette.testclient import TestClient

import tiny_models
from registered_decisions import TEAMS as ROUTE
from registered_decisions import URGENT, contract, write_decision
from steelyard_runtime import decision
from steelyard_runtime.decision import Option, Question
from steelyard_runtime.decisions.registry import RegistryError
from steelyard_runtime.engine.start import start_engine
from steelyard_runtime.errors import Kind, Problem
from steelyard_runtime.http.app import create_app
from steelyard_runtime.http.runtime import Runtime, Services, build_services
from steelyard_runtime.scoring.options_as_cases import (
    REFERENCES,
    TEMPERATURE,
    WORDS_SHARE,
    OptionsAsCases,
    case_text,
    cosines,
    shared_words,
    usual_words,
)
from steelyard_runtime.scoring.strategies import SMALL_MODEL_PARAMETERS, STRATEGIES, choose, in_order
from steelyard_runtime.scoring.strategy import Position
from steelyard_runtime.settings import load_settings

TEAMS = [{"id": "billing", "description": "money"}, {"id": "lost_parcel"}, {"id": "none_of_these"}]
numbers = st.floats(-100, 100, allow_subnormal=False)


def question(*names: str, ordered: bool = False) -> Question:
    return Question(instructions="Which?", options=tuple(Option(id=n, text=n, name=n) for n in names), ordered=ordered)


def position(*hidden: float) -> Position:
    return Position(np.empty(0), np.array(hidden, np.float32))


@given(arrays(np.float64, (5,), elements=numbers), arrays(np.float64, (3, 5), elements=numbers))
def test_cosines_are_those_of_scikit_learn(state: Any, anchors: Any) -> None:
    spread = np.array([1.0, 2.0, 0.5, 3.0, 0.0])
    seen = slice(4)  # the last number does not vary
    middle = anchors.mean(axis=0)
    away, sides = (state - middle)[seen] / spread[seen], (anchors - middle)[:, seen] / spread[seen]
    lengths = np.linalg.norm(sides, axis=1) * np.linalg.norm(away)
    found = cosines(state, anchors, spread=spread)
    told = lengths > 1e-6
    assert found[told] == pytest.approx(cosine_similarity([away], sides)[0][told], abs=1e-9)
    assert np.abs(found).max() <= 1 + 1e-9


def test_an_anchor_in_the_middle_is_like_nothing() -> None:
    same = np.ones((2, 3))
    assert cosines(np.array([1.0, 2.0, 3.0]), same, spread=np.ones(3)).tolist() == [0.0, 0.0]
    assert cosines(np.ones(3), np.eye(3), spread=np.zeros(3)).tolist() == [0.0, 0.0, 0.0]


def test_the_nearest_option_is_the_likeliest_and_a_way_out_lies_with_the_references() -> None:
    reader = OptionsAsCases()
    references = [position(-5 + sign, -5 - sign) for sign in (-1.0, 1.0) for _ in range(len(REFERENCES) // 2)]
    asked = question("apples", "none_of_these", "pears")
    options = [position(4.0, 0.0), position(0.0, 4.0)]
    for state, right in (((3.0, 0.0), 0), ((-5.0, -5.0), 1), ((0.0, 3.0), 2)):
        read = reader.read([position(*state), *options, *references], state="kiwi", question=asked)
        assert int(np.argmax(read.probabilities)) == right
        assert sum(read.probabilities) == pytest.approx(1)
        assert read.slot_mass is None
        assert read.slot_token_ids == ()
    anchors = np.array([[4.0, 0.0], [-5.0, -5.0], [0.0, 4.0]])
    words = np.array([0.0, usual_words(("apples", "pears")), 0.0])
    expected = cosines(np.array([0.0, 3.0]), anchors, spread=np.ones(2)) + WORDS_SHARE * words
    assert read.logits == pytest.approx(tuple(expected / TEMPERATURE))


def test_a_way_out_shares_as_many_words_as_a_reference_text_does() -> None:
    texts = ("download an invoice", "lost parcel")
    nearest = [shared_words(reference, texts).max() for reference in REFERENCES]
    assert usual_words(texts) == pytest.approx(np.mean(nearest), abs=1e-12)
    assert max(nearest) > 0.5
    same = [position(1.0, 1.0)] * (3 + len(REFERENCES))
    asked = question("download an invoice", "lost parcel", "other")
    for state, counted in (("late", usual_words(texts)), ("late " * 20_000, 0.0)):
        read = OptionsAsCases().read(same, state=state, question=asked)
        assert read.logits[2] == pytest.approx(WORDS_SHARE * counted / TEMPERATURE)


def test_shared_words_count_beside_the_model() -> None:
    likeness = shared_words("my parcel is lost", ("lost parcel", "wrong amount"))
    assert likeness[0] > 0.5
    assert likeness[1] == pytest.approx(0, abs=0.2)
    assert shared_words("日本", ("lost parcel", "wrong amount")).tolist() == [0, 0]
    assert shared_words("parcel " * 10_000, ("lost parcel", "x")).tolist() == [0, 0]
    same = [position(1.0, 1.0)] * (3 + len(REFERENCES))
    read = OptionsAsCases().read(same, state="lost parcel", question=question("lost_parcel", "wrong_amount"))
    assert read.logits[0] == pytest.approx(2 * WORDS_SHARE / TEMPERATURE)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (question("billing", "shipping"), ""),
        (question("退款", "发货"), ""),
        (question("billing", "none_of_these"), ""),
        (question("yes", "no"), "'yes'; describe what it stands for"),
        (question("A", "B"), "'A'; describe"),
        (question("1", "2"), "'1'; describe"),
        (question("other", "none"), "every option is a way out"),
        (question("calm", "furious", ordered=True), "levels"),
    ],
)
def test_which_questions_it_reads(asked: Question, why: str) -> None:
    assert why in OptionsAsCases().refusal(asked)
    assert bool(OptionsAsCases().refusal(asked)) is bool(why)
    fallback = "question-as-case" if asked == question("yes", "no") else "letters-raw"
    assert choose(None, asked, STRATEGIES).name == (fallback if why else "options-as-cases")
    assert choose(None, asked, STRATEGIES, "options-first").name == "letters-raw"
    if why:
        with pytest.raises(Problem, match="the readout options-as-cases cannot read the question") as refused:
            choose("options-as-cases", asked, STRATEGIES)
        assert refused.value.kind is Kind.INVALID


def test_requests_can_name_every_readout() -> None:
    assert set(get_args(decision.Readout)) == set(STRATEGIES)


@pytest.mark.parametrize(
    ("setting", "parameters", "first"),
    [
        ("auto", SMALL_MODEL_PARAMETERS - 1, "options-as-cases"),
        ("auto", SMALL_MODEL_PARAMETERS, "letters-raw"),
        ("letters-raw", 1, "letters-raw"),
    ],
)
def test_the_default_is_chosen_by_the_models_size(setting: str, parameters: int, first: str) -> None:
    ordered = in_order(STRATEGIES, setting=setting, parameters=parameters)
    assert choose(None, question("billing", "shipping"), ordered).name == next(iter(ordered)) == first
    assert set(ordered) == set(STRATEGIES)
    assert choose(None, question("1", "2"), ordered).name == "letters-raw"


def test_a_name_is_read_as_words() -> None:
    assert case_text(Option(id="a", text="lost_card: It_s gone", name="lost_card")) == "lost card: It_s gone"
    assert case_text(Option(id="a", text="None of these: no", name="None of these")) is None
    assert case_text(Option(id="0", text="calm")) == "calm"


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    path = tiny_models.write("llama", tmp_path_factory.mktemp("cases") / "model.gguf")
    settings = load_settings(model=str(path), threads=1, context_tokens=512)
    found = build_services(settings, start_engine(settings))
    yield found
    found.engine.close(timeout_s=1)


@pytest.fixture
def client(services: Services) -> Iterator[TestClient]:
    with TestClient(create_app(Runtime(settings=load_settings(), services=services))) as client:
        yield client


def decided(client: TestClient, state: str, *, options: list[dict[str, str]] = TEAMS, **more: Any) -> dict[str, Any]:
    body = {"decision": {"id": "a", "state": state, "question": "Which team?", "options": options}, **more}
    response = client.post("/invocations", json=body)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()["result"]
    return found


def test_options_are_evaluated_once_and_the_answers_stay_the_same_to_the_bit(client: TestClient) -> None:
    first = decided(client, "my parcel is late")
    assert (first["readout"], first["prompt_version"]) == ("options-as-cases", "options-as-cases-2")
    assert first["allowed_token_mass"] is None
    again = decided(client, "my parcel is late", layout="options-first", readout="options-as-cases")
    other = decided(client, "a state of other words")
    assert again["tokens"]["evaluated"] < other["tokens"]["evaluated"] < first["tokens"]["evaluated"] / 4
    for key in ("probabilities", "option_logits", "prompt_sha256", "input_tokens"):
        assert again[key] == first[key]
    assert other["probabilities"] != first["probabilities"]
    moved = decided(client, "my parcel is late", options=TEAMS[::-1])
    assert moved["probabilities"] == pytest.approx(first["probabilities"][::-1], abs=1e-12)
    assert moved["tokens"]["evaluated"] == again["tokens"]["evaluated"]


def test_what_is_told_of_a_request(client: TestClient) -> None:
    assert decided(client, "late", readout="letters-raw")["readout"] == "letters-raw"
    letters = decided(client, "late", options=[{"id": "x"}, {"id": "y"}])
    assert letters["readout"] == "letters-raw"
    assert letters["allowed_token_mass"] is not None
    body = {"id": "a", "state": "late", "question": "?", "options": [{"id": "x"}, {"id": "y"}]}
    refused = client.post("/invocations", json={"decision": body, "readout": "options-as-cases"})
    assert refused.status_code == 422
    assert "a state cannot be like the option 'x'; describe what it stands for" in refused.text


def test_several_questions_on_one_state_share_its_evaluation(client: TestClient) -> None:
    decided(client, "warm")
    questions = {
        "team": {"type": "choice", "criteria": {"billing": "money", "lost_parcel": None, "none_of_these": None}},
        "same": {"type": "choice", "criteria": {"lost_parcel": None, "billing": "money"}},
        "yesno": {"type": "noul", "instructions": "Is it late?"},
        "letters": {"type": "score", "criteria": ["calm", "cross"]},
    }
    answers = client.post("/v1/systemone", json={"state": "three questions", "questions": questions}).json()["answers"]
    readouts = ["options-as-cases", "options-as-cases", "question-as-case", "letters-raw"]
    assert [answers[name]["x_readout"] for name in questions] == readouts
    assert answers["team"]["x_tokens"]["evaluated"] > 0
    assert answers["same"]["x_tokens"]["evaluated"] == 0
    body = {"state": "s", "questions": questions, "x_readout": "letters-raw"}
    answers = client.post("/v1/systemone", json=body).json()["answers"]
    assert {answer["x_readout"] for answer in answers.values()} == {"letters-raw"}


def test_the_setting_asks_letters_everywhere(services: Services) -> None:
    settings = load_settings(readout="letters-raw")
    found = build_services(settings, services.engine)
    with TestClient(create_app(Runtime(settings=settings, services=found))) as client:
        assert decided(client, "late")["readout"] == "letters-raw"
        assert decided(client, "late", readout="options-as-cases")["readout"] == "options-as-cases"


def test_a_registered_decision_needs_no_head(services: Services, tmp_path: Path) -> None:
    without = {"readout": {"strategy": "options-as-cases"}}
    write_decision(tmp_path / "good" / "support-route", contract(ROUTE | without))
    settings = load_settings(decisions=str(tmp_path / "good"))
    found = build_services(settings, services.engine)
    with TestClient(create_app(Runtime(settings=settings, services=found))) as client:
        body = {"decision": {"use": "support-route", "state": "my money"}, "readout": "letters-raw"}
        result = client.post("/invocations", json=body).json()["result"]
        assert result["readout"] == "options-as-cases"
        assert (result["probability_status"], result["head_sha256"]) == ("uncalibrated", None)
    write_decision(tmp_path / "bad" / "urgent", contract(URGENT | without, policy={}))
    with pytest.raises(RegistryError, match="urgent@1 cannot be read by options-as-cases: a state cannot be like"):
        build_services(load_settings(decisions=str(tmp_path / "bad")), services.engine)

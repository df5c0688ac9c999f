"""The question as a case: likeness in standard deviations of the reference texts, and which questions it reads."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from starlette.testclient import TestClient

import tiny_models
from steelyard_runtime.decision import Option, Question
from steelyard_runtime.engine.start import start_engine
from steelyard_runtime.http.app import create_app
from steelyard_runtime.http.runtime import Runtime, build_services
from steelyard_runtime.scoring.options_as_cases import REFERENCES
from steelyard_runtime.scoring.question_as_case import EVEN, QUESTIONS, QuestionAsCase, likeness
from steelyard_runtime.scoring.strategy import Position
from steelyard_runtime.settings import load_settings

YES, NO = (Option(id=name, text=name, name=name) for name in ("yes", "no"))


def question(*options: Option, text: str = "Is it late?") -> Question:
    return Question(instructions=text, options=options)


def test_likeness_counts_standard_deviations() -> None:
    rng = np.random.default_rng(0)
    references, asked = rng.standard_normal((6, 5)), rng.standard_normal(5)
    spread = references.std(axis=0)

    def cosine(one: np.ndarray, others: np.ndarray) -> float:
        away, side = (one - others.mean(axis=0)) / spread, asked / spread
        return float(away @ side / np.linalg.norm(away) / np.linalg.norm(side))

    usual = [cosine(references[i], np.delete(references, i, axis=0)) for i in range(6)]
    expected = (cosine(asked, references) - np.mean(usual)) / np.std(usual)
    assert likeness(asked, asked, references) == pytest.approx(expected, abs=1e-9)
    assert likeness(asked, asked, np.ones((6, 5))) == 0.0


def test_what_all_questions_have_in_common_does_not_count() -> None:
    rng = np.random.default_rng(2)
    hidden = rng.standard_normal((2 + len(QUESTIONS) + len(REFERENCES), 4)).astype(np.float32)
    asking = hidden.copy()
    asking[1 : 2 + len(QUESTIONS)] += np.array([3.0, -2.0, 1.0, 5.0], np.float32)
    first, second = (
        QuestionAsCase().read([Position(np.empty(0), row) for row in rows], state="s", question=question(YES, NO))
        for rows in (hidden, asking)
    )
    assert first.probabilities == pytest.approx(second.probabilities, abs=1e-5)


def test_the_options_order_does_not_count() -> None:
    rng = np.random.default_rng(1)
    count = 2 + len(QUESTIONS) + len(REFERENCES)
    positions = [Position(np.empty(0), rng.standard_normal(4).astype(np.float32)) for _ in range(count)]
    first = QuestionAsCase().read(positions, state="s", question=question(YES, NO))
    second = QuestionAsCase().read(positions, state="s", question=question(NO, YES))
    assert first.probabilities == pytest.approx(second.probabilities[::-1])
    vectors = np.array([position.hidden for position in positions], np.float64)
    middle, references = vectors[2 : 2 + len(QUESTIONS)].mean(axis=0), vectors[2 + len(QUESTIONS) :]
    away = likeness(vectors[0], vectors[1] - middle, references) - EVEN
    assert first.probabilities[0] == pytest.approx(1 / (1 + np.exp(-away)))


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (question(YES, NO), ""),
        (question(Option(id="No", text="No", name="No"), Option(id="Yes", text="Yes", name="Yes")), ""),
        (question(YES, NO, text=" ?"), "its text has no words"),
        (question(YES, Option(id="maybe", text="maybe", name="maybe")), "not yes and no"),
        (question(YES, NO, Option(id="x", text="x", name="x")), "not yes and no"),
    ],
)
def test_which_questions_it_reads(asked: Question, why: str) -> None:
    assert why in QuestionAsCase().refusal(asked)
    assert bool(QuestionAsCase().refusal(asked)) is bool(why)


def test_what_yes_is_described_as_is_the_case() -> None:
    described = Option(id="yes", text="yes: due before today", name="yes")
    _, case, *_ = QuestionAsCase().prompts("state-first", state="s", question=question(described, NO))
    assert case.rest[0].text == "due before today"
    _, case, *others = QuestionAsCase().prompts("state-first", state="s", question=question(NO, YES))
    assert case.rest[0].text == "Is it late?"
    assert [prompt.rest[0].text for prompt in others] == [*QUESTIONS, *REFERENCES]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    path = tiny_models.write("gemma3", tmp_path_factory.mktemp("question") / "model.gguf")
    settings = load_settings(model=str(path), threads=1, context_tokens=512)
    services = build_services(settings, start_engine(settings))
    with TestClient(create_app(Runtime(settings=settings, services=services))) as opened:
        yield opened
    services.engine.close(timeout_s=1)


def test_every_contract_asks_it(client: TestClient) -> None:
    noul = {"state": "late", "questions": {"q": {"type": "noul", "instructions": "Is it late?"}}}
    first = client.post("/v1/systemone", json=noul).json()["answers"]["q"]
    again = client.post("/v1/systemone", json=noul | {"x_readout": "question-as-case"}).json()["answers"]["q"]
    assert first["x_readout"] == "question-as-case"
    assert first["x_slot_mass"] is None
    assert again["noul"] == first["noul"]
    assert again["x_tokens"]["evaluated"] < first["x_tokens"]["evaluated"] / 4
    body = {"model": "any", "input": "late", "questions": [{"type": "predicate", "instructions": "Is it late?"}]}
    told = client.post("/v1/decisions", json=body | {"model": "model"}).json()
    assert "question-as-case" in str(told)
    asked = {"id": "a", "state": "late", "question": "Is it late?", "options": [{"id": "no"}, {"id": "yes"}]}
    result = client.post("/invocations", json={"decision": asked}).json()["result"]
    assert result["readout"] == "question-as-case"
    assert result["probabilities"][1] == pytest.approx(first["noul"], abs=1e-12)

"""Writes folders of registered decisions whose heads have random numbers, bound to the model of a running engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from steelyard_runtime.decisions.contract import Contract, write_contract
from steelyard_runtime.decisions.head import Bound, Description, Figures, Interval, Linear, Measured, head_files
from steelyard_runtime.engine.interface import Engine
from steelyard_runtime.scoring.wordings import WORDINGS
from steelyard_runtime.scoring.words import learn
from steelyard_runtime.services.prompts import prompt_sha256

_INTERVAL = Interval(value=0.5, low=0.25, high=0.75)
_FIGURES = Figures(accuracy=_INTERVAL, log_loss=_INTERVAL, ece=_INTERVAL)
_MEASURED = Measured(
    cases=9, folds=3, head=_FIGURES, bag_of_words=_FIGURES, majority=_FIGURES, better_than_words=_INTERVAL
)
TEAMS: dict[str, Any] = {
    "name": "support-route",
    "version": 3,
    "type": "choice",
    "question": "Which team?",
    "options": [{"id": "billing", "description": "money"}, {"id": "shipping"}, {"id": "none_of_these"}],
    "way_out": "none_of_these",
}
URGENT: dict[str, Any] = {
    "name": "urgent",
    "version": 1,
    "type": "yesno",
    "question": "Is it urgent?",
    "options": [{"id": "yes"}, {"id": "no"}],
    "policy": {"automate": {"probability": 0.75}, "review": {"probability": 0.6}},
}
ANGER: dict[str, Any] = {
    "name": "anger",
    "version": 2,
    "type": "score",
    "question": "How angry?",
    "options": [{"id": "calm", "value": 0.0}, {"id": "cross", "value": 1.0}, {"id": "furious", "value": 2.0}],
}


def contract(said: dict[str, Any], **changes: Any) -> Contract:
    return Contract.model_validate(said | changes)


def linear(asked: Contract, *, size: int, words: bool = False, seed: int = 0) -> Linear:
    """Random numbers of a head's shapes."""
    rng = np.random.default_rng(seed)
    options = len(asked.options)
    vocabulary = learn(["card lost", "wrong amount"]) if words else None
    centres = rng.standard_normal((options, size))
    return Linear(
        mean=rng.standard_normal(size),
        scale=rng.uniform(0.5, 2, size),
        weights=rng.standard_normal((options, size)) / size**0.5,
        bias=rng.standard_normal(options),
        centres=centres / np.linalg.norm(centres, axis=1, keepdims=True),
        distances=np.sort(rng.uniform(0, 2, 20)),
        words=vocabulary,
        word_weights=rng.standard_normal((options, len(vocabulary) if vocabulary else 0)),
        temperature=1.5,
    )


def bound_to(engine: Engine, asked: Contract, **changes: str) -> Bound:
    wording = WORDINGS[asked.readout.wording]
    words = engine.encode(wording.before, start=True), engine.encode(wording.after, start=False)
    bound = {
        "contract": asked.full_name,
        "question_sha256": asked.question_sha256,
        "model_sha256": engine.identity.model.sha256,
        "wording": wording.name,
        "prompt_sha256": prompt_sha256(*words),
        "llama_cpp": engine.identity.llama_cpp,
    }
    return Bound.model_validate(bound | changes)


def write_decision(folder: Path, asked: Contract, bound: Bound | None = None, numbers: Linear | None = None) -> Path:
    """One decision's folder, with a head where one is given."""
    folder.mkdir(parents=True)
    (folder / "contract.toml").write_text(write_contract(asked))
    if bound is not None and numbers is not None:
        description = Description(
            format=1,
            bound=bound,
            options=asked.option_ids,
            cases_sha256="3" * 64,
            tensors_sha256="0" * 64,
            embedding_size=1,
            word_terms=0,
            run_terms=0,
            temperature=1.0,
            measured=_MEASURED,
        )
        for name, body in head_files(description, numbers).items():
            (folder / name).write_bytes(body)
    return folder


def write_fitted(folder: Path, engine: Engine, asked: Contract, *, words: bool = False, seed: int = 0) -> Linear:
    """One decision's folder, with a head that belongs to the engine; its numbers."""
    numbers = linear(asked, size=engine.identity.model.embedding_size, words=words, seed=seed)
    write_decision(folder, asked, bound_to(engine, asked), numbers)
    return numbers

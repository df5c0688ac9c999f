"""A head gives the same bits whoever asks, reads as it was written, and is refused where it does not belong."""

from __future__ import annotations

import dataclasses
import json
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard_runtime.decisions.contract import Contract
from steelyard_runtime.decisions.head import (
    Bound,
    Description,
    Figures,
    HeadError,
    Interval,
    Linear,
    Measured,
    Steps,
    head_files,
    load_head,
    softmax,
)
from steelyard_runtime.scoring.words import TextTooLongError, learn

CONTRACT = Contract.model_validate(
    {"name": "n", "version": 2, "type": "choice", "question": "q", "no_way_out": "r"}
    | {"options": [{"id": "a"}, {"id": "b"}, {"id": "c"}]}
)
INTERVAL = Interval(value=0.5, low=0.25, high=0.75)
FIGURES = Figures(accuracy=INTERVAL, log_loss=INTERVAL, ece=INTERVAL)
BOUND = {"model_sha256": "1" * 64, "prompt_sha256": "2" * 64, "llama_cpp": "b1"}
DESCRIPTION = Description(
    format=1,
    bound=Bound(contract="n@2", question_sha256=CONTRACT.question_sha256, wording=CONTRACT.readout.wording, **BOUND),
    options=("a", "b", "c"),
    cases_sha256="3" * 64,
    tensors_sha256="0" * 64,
    embedding_size=1,
    word_terms=0,
    run_terms=0,
    temperature=1.0,
    measured=Measured(
        cases=9, folds=3, head=FIGURES, bag_of_words=FIGURES, majority=FIGURES, better_than_words=INTERVAL
    ),
)


def linear(*, seed=0, size=64, options=3, words=True):
    rng = np.random.default_rng(seed)
    vocabulary = learn(["card lost", "wrong amount", "ünï"]) if words else None
    centres = rng.standard_normal((options, size))
    return Linear(
        mean=rng.standard_normal(size),
        scale=rng.uniform(0.5, 2, size),
        weights=rng.standard_normal((options, size)),
        bias=rng.standard_normal(options),
        centres=centres / np.linalg.norm(centres, axis=1, keepdims=True),
        distances=np.sort(rng.uniform(0, 2, 20)),
        words=vocabulary,
        word_weights=rng.standard_normal((options, len(vocabulary) if vocabulary else 0)),
        temperature=1.5,
    )


@pytest.fixture
def folder(tmp_path):
    for name, body in head_files(DESCRIPTION, linear()).items():
        (tmp_path / name).write_bytes(body)
    return tmp_path


@given(st.integers(0, 2**32 - 1), st.sampled_from(["", "lost card", "ünï ünï wrong"]))
def test_probabilities_are_the_softmax_of_the_linear_map(seed, text):
    head = linear(seed=seed)
    hidden = np.random.default_rng(seed).standard_normal(64).astype(np.float32)
    counted = np.zeros(head.word_weights.shape[1])
    for column, weight in head.words.weights(text):
        counted[column] = weight
    standard = (hidden - head.mean) / head.scale
    expected = softmax((head.weights @ standard + head.bias + head.word_weights @ counted) / 1.5)
    answer = head.apply(hidden, text)
    np.testing.assert_allclose(answer.probabilities, expected, atol=1e-12)
    assert answer.distance == pytest.approx(1 - max(head.centres @ standard) / np.linalg.norm(standard), abs=1e-12)
    assert answer.distance_rank == np.mean(head.distances < answer.distance)


def test_the_same_state_gives_the_same_bits_in_every_thread_and_place_of_memory():
    head = linear(size=997)
    hidden = np.random.default_rng(1).standard_normal(997).astype(np.float32)
    first, answers = head.apply(hidden, "card"), []

    def ask(offset):
        moved = np.zeros(997 + 16, np.float32)[offset : offset + 997]
        moved[:] = hidden
        answers.extend(head.apply(moved, "card") for _ in range(20))

    threads = [threading.Thread(target=ask, args=(offset,)) for offset in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 80
    assert set(answers) == {first}


@pytest.mark.parametrize("words", [True, False])
def test_a_head_reads_as_it_was_written(tmp_path, words):
    ours = linear(words=words)
    files = head_files(DESCRIPTION, ours)
    assert files == head_files(DESCRIPTION, ours)
    for name, body in files.items():
        (tmp_path / name).write_bytes(body)
    read = load_head(tmp_path)
    hidden = np.ones(64, np.float32)
    assert read.apply(hidden, "card lost ünï") == ours.apply(hidden, "card lost ünï")
    assert read.description.embedding_size == 64
    read.check(contract=CONTRACT, **BOUND)


STEPS = Steps(at=np.array([0.1, 0.5, 0.9]), to=np.array([0.0, 0.4, 1.0]), cases=9)


def test_steps_follow_the_probabilities_and_read_as_they_were_written(tmp_path):
    plain, described = linear(), DESCRIPTION.model_copy(update={"calibration": "isotonic"})
    ours = dataclasses.replace(plain, steps=STEPS)
    for name, body in head_files(described, ours).items():
        (tmp_path / name).write_bytes(body)
    hidden = np.ones(64, np.float32)
    before = np.array(plain.apply(hidden, "card").probabilities)
    answer = load_head(tmp_path).apply(hidden, "card")
    mixed = (9 * np.interp(before, STEPS.at, STEPS.to) + before) / 10
    np.testing.assert_allclose(answer.probabilities, mixed / mixed.sum(), atol=1e-12)
    assert answer == ours.apply(hidden, "card")
    assert answer.logits == plain.apply(hidden, "card").logits


@pytest.mark.parametrize(
    "steps",
    [
        dataclasses.replace(STEPS, at=np.array([0.1, 0.9, 0.5])),
        dataclasses.replace(STEPS, to=np.array([0.0, 1.0, 0.4])),
        dataclasses.replace(STEPS, to=np.array([0.0, 0.4, 1.1])),
        dataclasses.replace(STEPS, at=np.array([0.1, 0.5])),
        dataclasses.replace(STEPS, cases=-1),
    ],
)
def test_steps_that_do_not_increase_from_0_to_1_are_refused(tmp_path, steps):
    described = DESCRIPTION.model_copy(update={"calibration": "isotonic"})
    for name, body in head_files(described, dataclasses.replace(linear(), steps=steps)).items():
        (tmp_path / name).write_bytes(body)
    with pytest.raises(HeadError, match="do not increase from 0 to 1"):
        load_head(tmp_path)


def test_the_largest_numbers_of_a_head_overflow_nothing(folder):
    extreme = {"weights": np.full((3, 64), 1e30), "mean": np.full(64, -1e30), "scale": np.full(64, 1e-30)}
    for sign in (1, -1):
        found = dataclasses.replace(linear(), **extreme, bias=np.array([1e30, -1e30, sign * 1e30]), temperature=1e-30)
        for name, body in head_files(DESCRIPTION, found).items():
            (folder / name).write_bytes(body)
        with np.errstate(all="raise", under="ignore"):
            answer = load_head(folder).apply(np.full(64, 3e38, np.float32), "a state")
        assert np.isfinite([*answer.probabilities, *answer.logits, answer.distance]).all()


@pytest.mark.parametrize(
    ("name", "value"), [("model_sha256", "9" * 64), ("prompt_sha256", "9" * 64), ("llama_cpp", "b2")]
)
def test_a_head_is_refused_with_anything_else_than_it_was_fitted_for(folder, name, value):
    with pytest.raises(HeadError, match=f"fitted for {BOUND[name]}, used with {value}"):
        load_head(folder).check(contract=CONTRACT, **(BOUND | {name: value}))


def test_a_head_is_refused_with_another_question(folder):
    other = CONTRACT.model_copy(update={"question": "another"})
    with pytest.raises(HeadError, match=r"question, options or readout .* steelyard decision fit n"):
        load_head(folder).check(contract=other, **BOUND)


def test_a_damaged_file_is_refused(folder):
    body = folder / "head.safetensors"
    good = body.read_bytes()
    body.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(HeadError, match="has the sha256"):
        load_head(folder)
    body.unlink()
    with pytest.raises(HeadError, match="cannot read"):
        load_head(folder)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"scale": np.zeros(64)}, "a scale is 0; the least is 1e-30"),
        ({"weights": np.full((3, 64), 1e200)}, "weights has the number 1e[+]200; 1e[+]30 is allowed"),
        ({"weights": np.full((3, 64), np.nan)}, "not finite"),
        ({"bias": np.zeros(2)}, r"bias is float64 of the shape \(2,\)"),
        ({"mean": np.zeros(64, np.float32)}, "mean is float32"),
        ({"distances": np.array([1.0, 0.5])}, "do not increase"),
        ({"distances": np.zeros(0)}, "distances is"),
    ],
)
def test_numbers_that_are_no_head_are_refused(folder, change, told):
    for name, body in head_files(DESCRIPTION, dataclasses.replace(linear(), **change)).items():
        (folder / name).write_bytes(body)
    with pytest.raises(HeadError, match=told):
        load_head(folder)


@pytest.mark.parametrize(
    ("field", "value", "told"), [("temperature", 0, "temperature"), ("format", 2, "format"), ("more", 1, "more")]
)
def test_a_description_that_is_wrong_is_refused_with_its_field(folder, field, value, told):
    path = folder / "head.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))
    with pytest.raises(HeadError, match=told):
        load_head(folder)


def test_states_that_no_head_can_take_are_refused():
    head = linear()
    with pytest.raises(ValueError, match=r"shape \(63,\) and the head takes \(64,\)"):
        head.apply(np.zeros(63, np.float32), "")
    with pytest.raises(ValueError, match="not finite"):
        head.apply(np.full(64, np.inf, np.float32), "")
    with pytest.raises(TextTooLongError):
        head.apply(np.zeros(64, np.float32), "a" * (1 << 17))


def test_a_hidden_state_without_direction_is_as_far_as_anything():
    head = linear()
    assert head.apply(head.mean.astype(np.float64), "").distance == 1.0

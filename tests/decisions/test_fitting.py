"""Heads agree with scikit-learn, are measured on what they have not seen, and survive cases that teach nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from steelyard.decisions import fitting
from steelyard.decisions.fitting import Examples, FitError, Standard, fit, folds_of, regress, regress_in_order
from steelyard_runtime.decisions.head import Linear
from steelyard_runtime.scoring.words import learn

NOTHING = Examples(hidden=np.zeros((0, 6), np.float32), texts=(), labels=np.zeros(0, np.int64))


@pytest.fixture(autouse=True)
def _few_strengths(monkeypatch):
    monkeypatch.setattr(fitting, "STRENGTHS", (1.0, 100.0))
    monkeypatch.setattr(fitting.metrics, "RESAMPLES", 100)
    with threadpool_limits(1):
        yield


def examples(*, seed=0, each=8, options=3, apart=4.0, words=True, size=6):
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(options), each)
    hidden = rng.standard_normal((len(labels), size)) + apart * rng.standard_normal((options, size))[labels]
    topics = ("card lost", "wrong amount", "how long", "closed shop")
    texts = tuple(f"{topics[label] if words else 'same'} {number}" for number, label in enumerate(labels))
    return Examples(hidden=hidden.astype(np.float32), texts=texts, labels=labels.astype(np.int64))


@settings(max_examples=12)
@given(seed=st.integers(0, 2**32 - 1), options=st.integers(2, 4), strength=st.sampled_from([0.1, 1.0, 50.0]))
def test_the_head_gives_the_probabilities_of_scikit_learn(seed, options, strength):
    cases = examples(seed=seed, options=options)
    scaled = StandardScaler().fit_transform(cases.hidden.astype(np.float64)) / np.sqrt(6)
    theirs = LogisticRegression(C=strength, max_iter=1000, tol=fitting._TOLERANCE).fit(scaled, cases.labels)
    expected = theirs.predict_proba(scaled)
    standard = Standard.of(cases.hidden)
    ours = regress(standard.apply(cases.hidden), cases.labels, options=options, strength=strength)
    head = Linear(
        mean=standard.mean,
        scale=standard.scale,
        weights=ours.weights,
        bias=ours.bias,
        centres=np.eye(6),
        distances=np.zeros(1),
        words=None,
        word_weights=np.zeros((options, 0)),
        temperature=1.0,
    )
    for row, hidden in zip(expected, cases.hidden, strict=True):
        np.testing.assert_allclose(head.apply(hidden, "").probabilities, row, atol=1e-9)


@settings(max_examples=10)
@given(seed=st.integers(0, 2**32 - 1))
def test_more_features_than_cases_have_the_same_solution(seed):
    features = np.random.default_rng(seed).standard_normal((12, 40)) / 6
    labels = np.arange(12) % 3
    exact = LogisticRegression(C=1.0, max_iter=5000, tol=1e-9).fit(features, labels)
    ours = regress(features, labels, options=3, strength=1.0)
    np.testing.assert_allclose(np.exp(ours.logits(features)), exact.predict_proba(features), atol=1e-3)


def test_a_case_that_teaches_is_learnt_and_figures_are_of_held_out_cases():
    fitted = fit(examples(), anchors=NOTHING, options=3, words=True)
    assert fitted.measured.head.accuracy.value == 1.0
    noise = fit(examples(apart=0.0, each=20, words=False), anchors=NOTHING, options=3, words=False)
    assert noise.measured.head.accuracy.low < 1 / 3 + 0.1
    assert noise.measured.head.accuracy.value < 0.6


def test_the_served_numbers_decide_as_the_cross_validated_ones():
    cases = examples(each=12)
    fitted = fit(cases, anchors=NOTHING, options=3, words=True)
    for hidden, text, label in zip(cases.hidden, cases.texts, cases.labels, strict=True):
        answer = fitted.linear.apply(hidden, text)
        assert int(np.argmax(answer.probabilities)) == label
    assert list(fitted.linear.distances) == sorted(fitted.linear.distances)
    far = fitted.linear.apply(np.full(6, -50.0, np.float32) * cases.hidden[0], "zzz")
    assert far.distance_rank > fitted.linear.apply(cases.hidden[0], "").distance_rank


def test_words_are_used_only_where_they_help():
    told_by_words = fit(examples(apart=0.0, each=12), anchors=NOTHING, options=3, words=True)
    assert told_by_words.uses_words
    assert told_by_words.measured.head.accuracy.value > 0.9
    assert told_by_words.measured.state.accuracy.value < 0.7
    refused = fit(examples(apart=0.0, each=12), anchors=NOTHING, options=3, words=False)
    assert not refused.uses_words
    assert refused.linear.words is None


def test_the_head_says_when_the_model_adds_nothing_to_the_words():
    gain = fit(examples(apart=0.0, each=12), anchors=NOTHING, options=3, words=True).measured.better_than_words
    assert gain.low <= 0 <= gain.high
    gain = fit(examples(words=False, each=12), anchors=NOTHING, options=3, words=True).measured.better_than_words
    assert gain.low > 0


def test_an_option_is_known_by_its_own_text_where_a_fold_has_no_case_of_it():
    cases = examples(each=2, options=3, apart=6.0)
    own = examples(each=1, options=3, apart=6.0)
    fitted = fit(cases, anchors=own, options=3, words=True)
    assert fitted.measured.cases == 6
    assert np.isfinite(fitted.linear.bias).all()


@pytest.mark.parametrize("folds", [2, 5])
def test_equal_texts_share_a_fold_and_options_are_spread(monkeypatch, folds):
    monkeypatch.setattr(fitting, "FOLDS", folds)
    cases = examples(each=10, options=2)
    twice = Examples(
        hidden=np.concatenate([cases.hidden, cases.hidden]),
        texts=cases.texts * 2,
        labels=np.concatenate([cases.labels, 1 - cases.labels]),
    )
    found = folds_of(twice)
    assert list(found[:20]) == list(found[20:])
    for label in (0, 1):
        assert set(np.bincount(found[:20][cases.labels == label], minlength=folds)) == {10 // folds}


def test_two_equal_cases_with_different_labels_are_noise_and_no_fault():
    cases = examples(each=6, options=2)
    labels = cases.labels.copy()
    texts = [*cases.texts]
    texts[6], hidden = texts[0], cases.hidden.copy()
    hidden[6] = hidden[0]
    fitted = fit(Examples(hidden=hidden, texts=tuple(texts), labels=labels), anchors=NOTHING, options=2, words=True)
    assert 0.5 <= fitted.measured.head.accuracy.value < 1.0


def test_a_constant_feature_counts_nothing():
    cases = examples()
    hidden = cases.hidden.copy()
    hidden[:, 2] = 0.1
    constant = Examples(hidden=hidden, texts=cases.texts, labels=cases.labels)
    fitted = fit(constant, anchors=NOTHING, options=3, words=False)
    assert np.isfinite(fitted.linear.weights).all()
    assert np.abs(fitted.linear.weights[:, 2]).max() < 1e-6


@pytest.mark.parametrize(
    ("labels", "told"),
    [([0] * 6, "number 2 with 0"), ([0, 0, 0, 0, 0, 1], "number 2 with 1")],
)
def test_an_option_without_two_cases_is_refused(labels, told):
    cases = examples(each=3, options=2)
    with pytest.raises(FitError, match=told):
        fit(
            Examples(hidden=cases.hidden, texts=cases.texts, labels=np.array(labels)),
            anchors=NOTHING,
            options=2,
            words=True,
        )


def test_the_same_case_twice_is_one_case():
    cases = examples(each=2, options=2)
    texts = (cases.texts[0], cases.texts[0], *cases.texts[2:])
    with pytest.raises(FitError, match="number 1 with 1"):
        fit(Examples(hidden=cases.hidden, texts=texts, labels=cases.labels), anchors=NOTHING, options=2, words=True)


def test_states_of_which_no_word_is_known_are_decided_by_the_hidden_state_alone():
    assert fitting.dense(learn(["a"]), ["zzz", "a"])[0].sum() == 0


def test_a_fit_is_a_function_of_its_cases():
    first = fit(examples(), anchors=NOTHING, options=3, words=True)
    second = fit(examples(), anchors=NOTHING, options=3, words=True)
    assert first.measured == second.measured
    assert (first.linear.weights == second.linear.weights).all()


@pytest.mark.parametrize("kind", ["temperature", "vector", "isotonic"])
def test_a_calibration_is_folded_into_the_served_numbers(monkeypatch, kind):
    monkeypatch.setattr(fitting, "KINDS", (kind,))
    cases = examples(each=10, apart=0.5, words=False)
    validated = fitting.validate(cases, anchors=NOTHING, options=3)
    calibration = validated.choose(("state", "words")).calibration
    linear = validated.linear(calibration)
    assert (linear.steps is None) == (kind != "isotonic")
    everything = np.arange(len(cases))
    expected = calibration.apply(validated.predict(everything, everything, ("state", "words")))
    for hidden, text, row in zip(cases.hidden, cases.texts, expected, strict=True):
        np.testing.assert_allclose(linear.apply(hidden, text).probabilities, row, atol=1e-9)


def steps(*, seed, size=60, levels=4):
    """Cases whose score is the sum of small things, as a policy has it."""
    rng = np.random.default_rng(seed)
    things = rng.integers(0, 2, (size, levels - 1))
    hidden = np.concatenate([things, rng.standard_normal((size, 3))], axis=1).astype(np.float32)
    texts = tuple(
        " ".join(f"thing{at}" if each else "none" for at, each in enumerate(row)) + f" {n}"
        for n, row in enumerate(things)
    )
    return Examples(hidden=hidden, texts=texts, labels=things.sum(axis=1).astype(np.int64))


@settings(max_examples=8)
@given(seed=st.integers(0, 2**32 - 1), strength=st.sampled_from([1.0, 100.0]), size=st.integers(8, 40))
def test_a_regression_in_order_has_no_better_numbers_nearby(seed, strength, size):
    rng = np.random.default_rng(seed)
    features, labels = rng.standard_normal((size, 12)), rng.integers(0, 3, size)
    labels[:2] = 0, 2  # number 1 may be missing

    def cost(slope, bias):
        logits = np.outer(features @ slope, [-1, 0, 1]) + bias
        with np.errstate(invalid="ignore"):
            lost = np.logaddexp.reduce(logits, axis=1) - logits[np.arange(size), labels]
        return lost.sum() + 0.5 * slope @ slope / strength

    found = regress_in_order(features, labels, options=3, strength=strength)
    slope, least = found.weights[2], cost(found.weights[2], found.bias)
    np.testing.assert_allclose(found.weights, np.outer([-1, 0, 1], slope))
    for _ in range(10):
        assert least <= cost(slope + 0.05 * rng.standard_normal(12), found.bias + 0.05 * rng.standard_normal(3)) + 1e-3


def test_a_regression_in_order_of_two_options_is_the_other_one():
    cases = examples(options=2, apart=1.0)
    features = Standard.of(cases.hidden).apply(cases.hidden)
    one = regress_in_order(features, cases.labels, options=2, strength=1.0).logits(features)
    other = regress(features, cases.labels, options=2, strength=1.0).logits(features)
    np.testing.assert_allclose(np.exp(one), np.exp(other), atol=1e-3)


def test_a_score_that_is_a_sum_is_decided_in_order():
    cases = steps(seed=0)
    free = fit(cases, anchors=NOTHING, options=4, words=True)
    ordered = fit(cases, anchors=NOTHING, options=4, words=True, in_order=True)
    assert any("in order" in part for part in ordered.chosen.way.parts)
    assert ordered.measured.head.log_loss.value < free.measured.head.log_loss.value
    assert ordered.measured.bag_of_words.accuracy.value > 0.9
    for hidden, text, label in zip(cases.hidden, cases.texts, cases.labels, strict=True):
        assert int(np.argmax(ordered.linear.apply(hidden, text).probabilities)) == label


def test_options_of_a_choice_have_no_order():
    fitted = fit(examples(), anchors=NOTHING, options=3, words=True)
    assert set(fitted.validated.logits) == {"state", "words"}

"""Words of a text are counted as scikit-learn counts them, and texts without bounds are refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.feature_extraction.text import TfidfVectorizer

from steelyard_runtime.scoring import words
from steelyard_runtime.scoring.words import MAX_TEXT_BYTES, TextTooLongError, learn, runs_of, words_of

texts = st.lists(st.text("abé ÜŠ1 -.!?\n日本 ß", min_size=0, max_size=25), min_size=1, max_size=5)


def dense(counted, terms):
    row = np.zeros(terms)
    for at, weight in counted:
        row[at] = weight
    return row


@settings(max_examples=40)
@given(texts, texts)
def test_weights_are_those_of_scikit_learn(known, new):
    learned = learn(known)
    for vocabulary, terms_of in ((learned.words, words_of), (learned.runs, runs_of)):
        if not len(vocabulary):
            continue
        theirs = TfidfVectorizer(analyzer=lambda text, terms_of=terms_of: list(terms_of(text)), sublinear_tf=True)
        theirs.fit(known)
        assert list(vocabulary.index) == list(theirs.get_feature_names_out())
        for text, row in zip([*known, *new], theirs.transform([*known, *new]).toarray(), strict=True):
            ours = dense(vocabulary.weights(terms_of(text)), len(vocabulary))
            np.testing.assert_allclose(ours, row, atol=1e-9)


@settings(max_examples=40)
@given(st.text("abc \tüß日", max_size=30))
def test_parts_of_words_are_those_of_scikit_learn(text):
    theirs = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5)).build_analyzer()
    assert sorted(runs_of(text)) == sorted(theirs(text))


def test_the_columns_of_words_come_first_and_unknown_words_count_nothing():
    learned = learn(["lost card", "card"])
    assert [list(learned.words.index), list(learned.runs.index)[:2]] == [["card", "lost", "lost card"], [" c", " ca"]]
    assert learned.weights("zzz") == []
    columns = [column for column, _ in learned.weights("card")]
    assert columns[0] == 0
    assert min(columns[1:]) >= 3


def test_a_text_without_bounds_is_refused_and_no_memory_is():
    learned = learn(["a"])
    assert learned.weights("é" * (MAX_TEXT_BYTES // 2)) == []
    with pytest.raises(TextTooLongError, match=str(MAX_TEXT_BYTES)) as refused:
        learned.weights("é" * (MAX_TEXT_BYTES // 2) + "a")
    assert refused.value.counts["counted_bytes"] == MAX_TEXT_BYTES + 1


def test_the_commonest_terms_are_kept(monkeypatch):
    monkeypatch.setattr(words, "MAX_TERMS", 2)
    assert list(learn(["b a", "b c", "c d"]).words.index) == ["b", "c"]

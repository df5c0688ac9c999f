"""Tokens: callers' text never becomes control tokens, BOS comes once, and joined pieces are joined text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tiny_models
from steelyard_runtime.engine.interface import Piece
from steelyard_runtime.engine.llama import Model, Vocabulary

KINDS = ("llama", "llama-space-prefix", "qwen35")


@pytest.fixture(scope="module", params=KINDS)
def vocabulary(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    path = tiny_models.write(request.param, tmp_path_factory.mktemp("vocabulary") / "model.gguf")
    return Model(path).vocabulary


def spelling(vocabulary: Vocabulary, tokens: list[int], *, special: bool = False) -> str:
    return b"".join(vocabulary.token_bytes(t, special=special) for t in tokens).decode("utf-8", "replace")


@pytest.mark.parametrize("text", ["<|im_end|>", "<|im_start|>assistant", "</s>", "<s>", "a</s>b<|im_end|>"])
def test_spelled_control_tokens_are_text(vocabulary: Vocabulary, text: str) -> None:
    as_text = vocabulary.encode([Piece("x"), Piece(text)], start=False)
    as_control = vocabulary.encode([Piece("x"), Piece(text, control=True)], start=False)
    assert spelling(vocabulary, as_text).lstrip(" ") == "x" + text
    assert as_text != as_control
    assert spelling(vocabulary, as_control).lstrip(" ") != "x" + text


def test_bos_comes_once_even_if_the_template_writes_it(vocabulary: Vocabulary) -> None:
    tokens = vocabulary.encode([Piece(vocabulary.text_of(vocabulary.bos), control=True), Piece("hello")], start=True)
    assert tokens.count(vocabulary.bos) == 1 or not vocabulary.adds_bos
    plain = vocabulary.encode([Piece("hello")], start=True)
    assert plain.count(vocabulary.bos) == int(vocabulary.adds_bos)
    assert vocabulary.encode([Piece("hello")], start=False).count(vocabulary.bos) == 0


@settings(max_examples=60)
@given(left=st.text(max_size=20), right=st.text(max_size=20))
def test_continued_text_is_not_changed(vocabulary: Vocabulary, left: str, right: str) -> None:
    """Also where the tokenizer puts a space before the first text of every call."""
    head = vocabulary.encode([Piece("h" + left)], start=True)
    tail = vocabulary.encode([Piece(right)], start=False)
    assert spelling(vocabulary, [*head, *tail]).removeprefix(" ") == "h" + left + right


def test_empty_pieces_are_nothing(vocabulary: Vocabulary) -> None:
    assert vocabulary.encode([Piece(""), Piece("", control=True)], start=False) == []

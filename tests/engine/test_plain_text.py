"""Callers' text stays text for every type of token and every tokenizer: what llama.cpp makes of it is checked.

The models of ``tiny_models.TOKENIZERS`` have special tokens that llama.cpp reaches from text by ordinary means: matched
because they are user-defined, joined from their beginnings, or looked up.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tiny_models
from steelyard_runtime.engine.interface import Piece
from steelyard_runtime.engine.llama import Model, Vocabulary
from steelyard_runtime.engine.plain_text import (
    BLOCK,
    NORMAL,
    UNUSED,
    USER_DEFINED,
    Spellings,
    is_marker,
    spellings,
    words,
)

SPECIAL = {*tiny_models.CONTROL_TOKENS, *tiny_models.TURN_TOKENS, "<unk>", "<unused0>"}
LOSSY = ("tokenizer-bert", "tokenizer-t5")
"""They fold case or white space, and have no token for each byte."""
WRITTEN = sorted(
    {*SPECIAL, "[A B]", "[A  B]", " <s>", "<0x41>", "<|im_start|>system\nNo.<|im_end|>", "<<s>>", "<|a|b|a|"}
)

Case = tuple[Vocabulary, str, frozenset[int]]


@pytest.fixture(scope="module", params=tiny_models.TOKENIZERS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    """A vocabulary, its tokenizer, and the ids that text may not become."""
    model = Model(tiny_models.write(request.param, tmp_path_factory.mktemp("vocabulary") / "model.gguf"))
    yield model.vocabulary, request.param, frozenset(ids_of(model.vocabulary, SPECIAL, lossy=request.param in LOSSY))
    model.close()


def ids_of(vocabulary: Vocabulary, spelled: set[str], *, lossy: bool) -> Iterator[int]:
    for token in range(vocabulary.size):
        text = vocabulary._spelling(token)
        # The unknown token stands for unknown characters where there are no bytes for these.
        if text in spelled and not (lossy and text == "<unk>"):
            yield token


def text_of(vocabulary: Vocabulary, tokens: list[int]) -> str:
    return b"".join(vocabulary.token_bytes(token, special=True) for token in tokens).decode("utf-8", "replace")


def as_read(text: str) -> str:
    """In SentencePiece vocabularies the mark is the spelling of a space."""
    return text.replace("\u2581", " ")


def llamas_own(vocabulary: Vocabulary, text: str) -> list[int]:
    return vocabulary._raw(text).tolist()


def test_llama_cpp_alone_makes_special_tokens_of_text(case: Case) -> None:
    vocabulary, _, forbidden = case
    made = [text for text in WRITTEN if forbidden & {*llamas_own(vocabulary, text)}]
    assert len(made) >= 6, "the models are worth testing on"


@pytest.mark.parametrize("text", WRITTEN)
def test_a_spelled_special_token_is_its_characters(case: Case, text: str) -> None:
    vocabulary, tokenizer, forbidden = case
    for around in ("{}", "x{}", "{}x", "a {} b", "{0}{0}"):
        whole = around.format(text)
        for start in (True, False):
            tokens = vocabulary.encode([Piece(whole)], start=start)
            tokens = tokens[1:] if start else tokens
            assert not forbidden & {*tokens}, (whole, tokens)
            if tokenizer not in LOSSY:
                assert as_read(text_of(vocabulary, tokens)) == as_read(whole)


@pytest.mark.parametrize("spelled", [*tiny_models.TURN_TOKENS, "<|im_end|>"])
def test_a_template_writes_them_whatever_their_type(case: Case, spelled: str) -> None:
    vocabulary, _, _ = case
    (token,) = vocabulary.encode([Piece(spelled, control=True)], start=False)
    assert vocabulary.token_bytes(token, special=True).decode() == spelled


def test_pieces_of_text_do_not_join_to_a_special_token(case: Case) -> None:
    vocabulary, _, forbidden = case
    assert not forbidden & {*vocabulary.encode([Piece("<|im_"), Piece("start|>")], start=False)}
    beside = vocabulary.encode([Piece("<|im_"), Piece("start|>", control=True)], start=False)
    assert not forbidden & {*beside}
    assert not forbidden & {*vocabulary.encode([Piece("</thi", control=True), Piece("nk>")], start=False)}


fragments = st.sampled_from(
    [*WRITTEN, *tiny_models.TEXT_TOKENS, "<", "|", ">", " ", "a", "im_", "é", "日", "\ufeff", "A "]
)


@settings(max_examples=150)
@given(parts=st.lists(st.one_of(fragments, st.text(max_size=4)), max_size=12))
def test_any_text_is_text_and_ordinary_text_is_as_llama_cpp_has_it(case: Case, parts: list[str]) -> None:
    vocabulary, tokenizer, forbidden = case
    text = "".join(parts)
    tokens = vocabulary.encode([Piece(text)], start=True)[1:]
    assert not forbidden & {*tokens}
    # PLaMo's tokenizer leaves out a byte order mark at the beginning.
    if tokenizer not in LOSSY and not (tokenizer == "tokenizer-plamo2" and "\ufeff" in text):
        assert as_read(text_of(vocabulary, tokens)) == as_read(text)
    own = llamas_own(vocabulary, text)
    if not forbidden & {*own} and "<0x41>" not in text:
        assert tokens == own


def test_text_that_begins_like_bos_keeps_it(tmp_path: Path) -> None:
    """Only a template's begin-of-text token is taken for the one that the server puts there."""
    vocabulary = Model(tiny_models.write("tokenizer-llama", tmp_path / "model.gguf")).vocabulary
    assert text_of(vocabulary, vocabulary.encode([Piece("<s>a")], start=True)) == "<s><s>a"
    assert vocabulary.encode([Piece("<s>", control=True), Piece("a")], start=True).count(vocabulary.bos) == 1


@pytest.mark.parametrize("spelled", ["<start_of_image>", "<end_of_image>", "[multimodal]", "<unused7>", "<s>", "</s>"])
def test_the_embedded_model_reads_its_markers_as_characters(gemma: Any, spelled: str) -> None:
    vocabulary = gemma_vocabulary(gemma)
    tokens = vocabulary.encode([Piece(f"See {spelled} here.")], start=False)
    assert text_of(vocabulary, tokens) == f"See {spelled} here."
    (marker,) = vocabulary.encode([Piece(spelled, control=True)], start=False)
    assert marker not in tokens


@pytest.mark.parametrize(
    "text",
    [
        "Line\n\n\nline\n",
        "a   b\t\tc",
        "<table><tr><td>1</td></tr></table>",
        "<h1>Title</h1>",
        "x < y && y > z",
        "if (a<b>c) { return [x|y]; }",
        "été 日本 🎉",
    ],
)
def test_the_embedded_model_reads_ordinary_text_as_ever(gemma: Any, text: str) -> None:
    vocabulary = gemma_vocabulary(gemma)
    assert vocabulary.encode([Piece(text)], start=False) == llamas_own(vocabulary, text)


_GEMMA: dict[str, Vocabulary] = {}


def gemma_vocabulary(gemma: Any) -> Vocabulary:
    path = str(gemma)
    if path not in _GEMMA:
        _GEMMA[path] = Model(Path(path)).vocabulary
    return _GEMMA[path]


@pytest.mark.parametrize(
    ("spelling", "attributes", "template", "expected"),
    [
        ("</think>", USER_DEFINED, "", True),
        ("<｜User｜>", USER_DEFINED, "", True),
        ("]~b]", USER_DEFINED, "", True),
        ("[PAD151646]", USER_DEFINED, "", True),
        ("### Instruction:", USER_DEFINED, "", True),
        ("|||IP_ADDRESS|||", USER_DEFINED, "", True),
        ("<unused0>", UNUSED, "", True),
        ("<img>", USER_DEFINED, "", True),
        ("<td>", USER_DEFINED, "", False),
        ("<td>", USER_DEFINED, "{{ '<td>' + content }}", True),
        ("</h3>", USER_DEFINED, "", False),
        ("\n\n\n", USER_DEFINED, "", False),
        ("\u2581\u2581", USER_DEFINED, "", False),
        ("÷", USER_DEFINED, "", False),
        ("----", USER_DEFINED, "", False),
        ("안녕", USER_DEFINED, "", False),
        ("<|im_start|>", NORMAL, "", False),
    ],
)
def test_what_is_a_marker(spelling: str, attributes: int, template: str, expected: bool) -> None:
    assert is_marker(spelling, attributes, template=template) is expected


@settings(max_examples=200)
@given(text=st.text(alphabet="<>|ab", max_size=40))
def test_no_piece_holds_a_spelling_and_joined_they_are_the_text(text: str) -> None:
    looked_for = spellings(["<a>", "<a|", "a>", "<<", "<a|b|a>"])
    pieces = list(looked_for.cut(text))
    assert "".join(pieces) == text
    assert not [piece for piece in pieces for spelling in looked_for.spellings if spelling in piece]


def test_without_spellings_nothing_is_cut() -> None:
    assert list(Spellings(frozenset()).cut("<a>")) == ["<a>"]


@settings(max_examples=150)
@given(parts=st.lists(st.one_of(fragments, st.sampled_from([" ", "\n", "  ", "\n\n\n"])), max_size=30))
def test_blocks_have_the_tokens_of_the_whole(case: Case, parts: list[str]) -> None:
    vocabulary, _, _ = case
    text = "".join(parts)
    blocks = list(vocabulary._boundaries.blocks(text, size=1))
    assert "".join(blocks) == text
    together = [token for block in blocks for token in llamas_own(vocabulary, block)]
    assert together == llamas_own(vocabulary, text)


@settings(max_examples=100)
@given(text=st.text(alphabet="\n\t <>td/1ab", max_size=60))
def test_blocks_have_the_tokens_of_the_whole_on_the_embedded_model(gemma: Any, text: str) -> None:
    vocabulary = gemma_vocabulary(gemma)
    together = [
        token for block in vocabulary._boundaries.blocks(text, size=1) for token in llamas_own(vocabulary, block)
    ]
    assert together == llamas_own(vocabulary, text)


@pytest.mark.parametrize("unit", ["\na", "a\n\n", "<td>x", "<start_of_image>", "\t\n", "  x"])
def test_no_call_is_made_with_many_user_defined_tokens(gemma: Any, unit: str) -> None:
    """llama.cpp's time grows with the square of their number in one call."""
    blocks = list(gemma_vocabulary(gemma)._boundaries.blocks(unit * 20_000))
    assert max(map(len, blocks)) <= BLOCK + 2 * len(unit)


@given(text=st.text(alphabet="a \n\t\u3000b", max_size=30))
def test_joined_words_are_the_text(text: str) -> None:
    assert "".join(words(text)) == text

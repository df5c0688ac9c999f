"""Long texts are tokenized in chunks: the same tokens, each chunk once per request, within bounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tiny_models
from steelyard_runtime.engine import tokenizer as module
from steelyard_runtime.engine.interface import Piece, Tokenizing, Tokens
from steelyard_runtime.engine.llama import Model, Vocabulary
from steelyard_runtime.engine.tokenizer import CHUNK_BYTES, STRETCH_BYTES, UNCUT_BYTES, Tokenizer, facts_of
from steelyard_runtime.errors import Kind, Problem

KINDS = ("llama", "llama-space-prefix", "qwen35", *tiny_models.TOKENIZERS)
STUFF = ["\n", " ", "  ", "\t", "a", "state", "The ", "yes", "1", "23", "。", "，", "中", "文", "é", "\u0301", "😀"]
STUFF += ["<", "b>", "'s", '"', ",", ". ", "--", "\u3000", "\xa0", "\u2581", "don't", "ß", "\r\n", "\0"]
TEXTS = st.lists(st.sampled_from(STUFF), max_size=120).map("".join)


@pytest.fixture(scope="module", params=KINDS)
def vocabulary(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vocabulary]:
    model = Model(tiny_models.write(request.param, tmp_path_factory.mktemp("vocabulary") / "model.gguf"))
    yield model.vocabulary
    model.close()


@pytest.fixture(scope="module")
def gemmas(gemma: Path) -> Iterator[Vocabulary]:
    model = Model(gemma)
    yield model.vocabulary
    model.close()


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_BYTES", 16)


def work(allowed_bytes: int = 1 << 30) -> Tokenizing:
    return Tokenizing(allowed_bytes=allowed_bytes)


def tokenizer(vocabulary: Vocabulary, *, context_tokens: int = 1 << 20) -> Tokenizer:
    return Tokenizer(vocabulary, context_tokens=context_tokens)


class Counting:
    """A vocabulary that notes what is tokenized."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.facts = vocabulary.facts
        self._vocabulary = vocabulary
        self.calls: list[str] = []

    def encode(self, pieces: Sequence[Piece], *, start: bool) -> list[int]:
        self.calls += [piece.text for piece in pieces]
        return self._vocabulary.encode(pieces, start=start)


@pytest.mark.usefixtures("small_chunks")
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=TEXTS, start=st.booleans())
def test_chunks_give_the_tokens_of_the_whole_text(vocabulary: Vocabulary, text: str, start: bool) -> None:
    pieces = [Piece("<|im_start|>", control=True), Piece(text), Piece("tail")]
    for wanted in (pieces, pieces[1:], [*pieces[1:], pieces[0]], []):
        found = tokenizer(vocabulary).encode(wanted, start=start, work=work())
        assert list(found) == vocabulary.encode(wanted, start=start)


@pytest.mark.usefixtures("small_chunks")
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=TEXTS)
def test_chunks_give_the_tokens_of_the_whole_text_on_a_real_vocabulary(gemmas: Vocabulary, text: str) -> None:
    found = tokenizer(gemmas).encode([Piece(text)], start=True, work=work())
    assert list(found) == gemmas.encode([Piece(text)], start=True)


def test_texts_of_a_real_vocabulary_are_cut(gemmas: Vocabulary) -> None:
    """A guard of the two tests above: what is never cut is always right."""
    for text in ("The parcel is late. " * 500, "\n " * 5000, "\t\n" * 5000, "中文文本，" * 1000):
        counting = Counting(gemmas)
        found = Tokenizer(counting, context_tokens=1 << 20).encode([Piece(text)], start=False, work=work())
        assert len(found.parts) >= len(text.encode()) // (2 * CHUNK_BYTES)
        assert max(len(call.encode()) for call in counting.calls) < 2 * CHUNK_BYTES


def test_a_beginning_is_tokenized_once_per_request(gemmas: Vocabulary) -> None:
    state = " ".join(f"word{n}" for n in range(20_000))
    counting = Counting(gemmas)
    subject, shared = Tokenizer(counting, context_tokens=1 << 20), work()
    for number in range(64):
        subject.encode([Piece(f"{state}\n\nA option {number}")], start=False, work=shared)
    assert sum(map(len, counting.calls)) < len(state) + 65 * 2 * CHUNK_BYTES
    assert shared.taken_bytes == sum(len(call.encode()) for call in counting.calls)


def test_what_is_tokenized_for_one_request_is_bounded(gemmas: Vocabulary) -> None:
    counting = Counting(gemmas)
    subject = Tokenizer(counting, context_tokens=1 << 20)
    text = " ".join(map(str, range(10_000)))
    assert subject.encode([Piece(text)], start=False, work=work(len(text)))
    counting.calls.clear()
    with pytest.raises(Problem) as caught:
        subject.encode([Piece(text)], start=False, work=work(len(text) - 1))
    assert caught.value.kind is Kind.OVER_BUDGET
    assert "max_text_bytes" in caught.value.message
    assert sum(map(len, counting.calls)) < len(text)


def test_work_that_is_not_wanted_any_more_ends_at_the_next_chunk(gemmas: Vocabulary) -> None:
    counting = Counting(gemmas)
    left = iter(range(5))

    def wanted() -> None:
        if next(left, None) is None:
            raise Problem(Kind.DEADLINE, "nobody waits")

    text = " ".join(map(str, range(100_000)))
    asked = Tokenizing(allowed_bytes=1 << 30, wanted=wanted)
    with pytest.raises(Problem, match="nobody waits"):
        Tokenizer(counting, context_tokens=1 << 20).encode([Piece(text)], start=False, work=asked)
    assert len(counting.calls) == 5


def test_a_stretch_that_cannot_be_cut_has_a_longest_length(vocabulary: Vocabulary) -> None:
    counting = Counting(vocabulary)
    subject = Tokenizer(counting, context_tokens=1 << 20)
    longest = STRETCH_BYTES.get(vocabulary.facts.kind, UNCUT_BYTES) + CHUNK_BYTES
    text = "\0" * (longest + 1)
    with pytest.raises(Problem) as caught:
        subject.encode([Piece(text)], start=False, work=work())
    assert caught.value.kind is Kind.OVER_BUDGET
    assert str(longest - CHUNK_BYTES) in caught.value.message
    assert counting.calls == []


def test_ids_that_no_prompt_can_take_are_counted_and_not_held(gemmas: Vocabulary) -> None:
    text = " ".join(map(str, range(10_000)))
    found = tokenizer(gemmas, context_tokens=100).encode([Piece(text)], start=False, work=work())
    assert len(found) == len(gemmas.encode([Piece(text)], start=False))
    assert sum(map(len, found.parts)) <= 100


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=TEXTS)
def test_the_bound_by_length_is_never_wrong(vocabulary: Vocabulary, text: str) -> None:
    facts = vocabulary.facts
    if facts.whole:
        assert len(vocabulary.encode([Piece(text)], start=False)) * facts.longest_bytes >= len(text.encode())


def test_a_vocabulary_that_lacks_a_byte_gives_no_bound_by_length() -> None:
    every = [bytes([byte]) for byte in range(256)]
    assert facts_of("bpe", every, adds_space=False).whole
    assert not facts_of("bpe", every[:-100], adds_space=False).whole
    assert not facts_of("wpm", every, adds_space=False).whole


@given(st.lists(st.lists(st.integers(0, 9)).map(tuple)), st.data())
def test_tokens_are_a_sequence(parts: list[tuple[int, ...]], data: st.DataObject) -> None:
    tokens = Tokens(parts)
    flat = [token for part in parts for token in part]
    assert list(tokens) == flat
    assert len(tokens) == len(flat)
    bounds = st.none() | st.integers(-12, 12)
    chosen = slice(data.draw(bounds), data.draw(bounds), data.draw(st.sampled_from([None, 1, 2, -1])))
    assert list(tokens[chosen]) == flat[chosen]
    if flat:
        assert tokens[-1] == flat[-1]
    assert hash(tokens) == hash(Tokens(parts))
    assert tokens == Tokens(parts)

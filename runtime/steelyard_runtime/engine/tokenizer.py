"""Tokenize long texts in chunks, each of them once per request, without changing a token.

llama.cpp tokenizes a text in one call that cannot be interrupted. Its time grows with the square of the text where
user-defined tokens occur often (Gemma's line breaks), and its memory is many times the text. So a text is cut into
chunks, at places where the tokenizer cannot join what comes before with what comes after:

- SentencePiece only joins to what is a token, and RWKV only takes tokens: between two bytes that stand side by side in
  no token there is always a boundary.
- BPE first splits at the boundaries of words: between a letter or a digit and a space or a line break there is one, in
  every pre-tokenizer that llama.cpp has; and no token spans it.

Where a text is cut depends on nothing behind that place. So texts that begin alike have the same first chunks, and a
request's state is tokenized once whatever follows it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from steelyard_runtime.engine.interface import Piece, Tokenizing, Tokens
from steelyard_runtime.errors import Kind, Problem

TokenizerKind = Literal["spm", "bpe", "wpm", "ugm", "rwkv", "other"]

CHUNK_BYTES = 2048
"""A text is cut at the first possible place from here on."""
STRETCH_BYTES: dict[TokenizerKind, int] = {"spm": 32 << 10, "rwkv": 256 << 10, "bpe": 256 << 10}
"""Longest stretch in which a text cannot be cut. SentencePiece may take a second for one."""
UNCUT_BYTES = 256 << 10
"""Longest text for tokenizers of other kinds, whose texts are not cut."""

_NEWLINE = 0x0A
_SPACE_MARK = "\u2581".encode()
_SPACE_BEHIND_WORD = re.compile(rb"(?<=[0-9A-Za-z\x80-\xff])[ \n]")


@dataclass(frozen=True, slots=True, eq=False)
class VocabularyFacts:
    """Facts of a vocabulary that bound and cut texts.

    Attributes:
        kind: The algorithm.
        longest_bytes: Of the longest token.
        whole: Every byte of a text is part of a token: nothing is dropped or folded.
        side_by_side: Which two bytes stand side by side in a token, shape ``(65536,)``, first byte times 256 + second.
        adds_space: Text is tokenized behind a line break where it continues another; see ``llama.Vocabulary``.
    """

    kind: TokenizerKind
    longest_bytes: int
    whole: bool
    side_by_side: npt.NDArray[np.bool_]
    adds_space: bool


def facts_of(kind: TokenizerKind, pieces: Sequence[bytes], *, adds_space: bool) -> VocabularyFacts:
    """Return the facts of a vocabulary with these tokens."""
    # Where the mark stands for a space, callers may write either.
    spaced = [piece.replace(_SPACE_MARK, b" ") for piece in pieces if _SPACE_MARK in piece]
    marked = [piece.replace(b" ", _SPACE_MARK) for piece in pieces if b" " in piece] if kind == "spm" else []
    joined = np.frombuffer(b"\0\0".join([*pieces, *spaced, *marked]), np.uint8)
    side_by_side = np.zeros(1 << 16, np.bool_)
    # The zeros between tokens add pairs that are in none: fewer places to cut, no wrong one.
    side_by_side[joined[:-1].astype(np.uint16) << 8 | joined[1:]] = True
    single = {piece[0] for piece in pieces if len(piece) == 1}
    never = {0xC0, 0xC1, *range(0xF5, 0x100)}  # in no UTF-8 text
    whole = kind in ("spm", "bpe", "rwkv") and set(range(256)) - never <= single
    return VocabularyFacts(kind, max(map(len, pieces), default=1), whole, side_by_side, adds_space)


class Encoder(Protocol):
    """The part of ``llama.Vocabulary`` that is needed here."""

    @property
    def facts(self) -> VocabularyFacts:
        """Facts of the vocabulary."""
        ...

    def encode(self, pieces: Sequence[Piece], *, start: bool) -> list[int]:
        """Token ids; see ``Engine.encode``."""
        ...


class Tokenizer:
    """Tokenizes for requests.

    Args:
        vocabulary: The model's.
        context_tokens: Most tokens of a prompt.
    """

    def __init__(self, vocabulary: Encoder, *, context_tokens: int) -> None:
        self._vocabulary = vocabulary
        self._allowed = context_tokens
        known = vocabulary.facts
        self.max_text_bytes = known.longest_bytes * context_tokens if known.whole else UNCUT_BYTES

    def encode(self, pieces: Sequence[Piece], *, start: bool, work: Tokenizing) -> Tokens:
        """Return the token ids of ``pieces``; see ``Engine.tokenize``."""
        parts: list[tuple[int, ...]] = []
        count = 0
        texts = list(_merged(pieces)) or [Piece("")]
        for text in texts:
            for chunk in [text] if text.control else self._chunks(text.text):
                ids = self._encode(chunk, start=start, work=work)
                count += len(ids)
                if count <= self._allowed:
                    parts.append(ids)
                start = False
        return Tokens(parts, count=count)

    def _encode(self, chunk: Piece, *, start: bool, work: Tokenizing) -> tuple[int, ...]:
        known = work.known.get((chunk, start))
        if known is None:
            work.take(len(chunk.text.encode()))
            known = work.known[chunk, start] = tuple(self._vocabulary.encode([chunk], start=start))
        return known

    def _chunks(self, text: str) -> Iterator[Piece]:
        if len(text) <= CHUNK_BYTES // 4:
            yield Piece(text)
            return
        data = text.encode()
        begin = 0
        while begin < len(data):
            end = self._cut(data, begin)
            yield Piece(data[begin:end].decode())
            begin = end

    def _cut(self, data: bytes, begin: int) -> int:
        """Return where the chunk from ``begin`` on ends.

        Raises:
            Problem: OVER_BUDGET, if it would be too long.
        """
        kind = self._vocabulary.facts.kind
        most = STRETCH_BYTES.get(kind, UNCUT_BYTES)
        limit = min(len(data), begin + CHUNK_BYTES + most)
        end = None
        if begin + CHUNK_BYTES < len(data) and kind in STRETCH_BYTES:
            find = self._behind_word if kind == "bpe" else self._between_tokens
            end = find(data, begin + CHUNK_BYTES, limit)
        if end is None and limit < len(data):
            raise Problem(
                Kind.OVER_BUDGET,
                f"A text has more than {most} bytes in a row without a place where it can be cut for tokenizing, and "
                f"{most} are allowed; break it with spaces, or shorten runs of one character.",
                counts={"allowed_bytes": most},
            )
        return len(data) if end is None else end

    def _between_tokens(self, data: bytes, begin: int, limit: int) -> int | None:
        """Return the first place where two bytes meet that stand side by side in no token."""
        window = np.frombuffer(data, np.uint8, count=limit - begin + 1, offset=begin - 1)
        before, behind = window[:-1], window[1:]
        known = self._vocabulary.facts
        apart = ~known.side_by_side[before.astype(np.uint16) << 8 | behind]
        if known.adds_space:
            apart &= ~known.side_by_side[(_NEWLINE << 8) + behind.astype(np.uint16)]
        places = np.flatnonzero(apart & (behind & 0xC0 != 0x80))
        return begin + int(places[0]) if len(places) else None

    def _behind_word(self, data: bytes, begin: int, limit: int) -> int | None:
        """Return the first end of a word before a space that no token spans."""
        for found in _SPACE_BEHIND_WORD.finditer(data, begin, limit):
            at = found.start()
            if not self._vocabulary.facts.side_by_side[data[at - 1] << 8 | data[at]] and _is_word(data, at):
                return at
        return None


def _is_word(data: bytes, end: int) -> bool:
    """Tell whether the character that ends at ``end`` is a letter or a digit."""
    start = end - 1
    while data[start] & 0xC0 == 0x80:
        start -= 1
    # Letters and numbers of any script: what vocabularies join to one token.
    return unicodedata.category(data[start:end].decode())[0] in "LN"


def _merged(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """Neighbours of one kind as one piece, as the vocabulary would tokenize them."""
    waiting: list[str] = []
    control = False
    for piece in pieces:
        if piece.text and piece.control != control and waiting:
            yield Piece("".join(waiting), control)
            waiting = []
        if piece.text:
            control = piece.control
            waiting.append(piece.text)
    if waiting:
        yield Piece("".join(waiting), control)

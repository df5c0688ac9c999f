r"""Words and parts of words of a text, weighted by how rare they are (TF-IDF): the part of a head that needs no model.

Two vocabularies: words with pairs of neighbours, and runs of 2 to 5 characters inside a word with a space at both ends.
A term's weight is ``(1 + log(count)) * idf``, and each vocabulary's weights have length 1 together, as scikit-learn's
``TfidfVectorizer(sublinear_tf=True)`` has them.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from steelyard_runtime.errors import Counts

MAX_TEXT_BYTES = 1 << 16
"""Bytes of a text whose words are counted: it has about five terms for each character."""
MAX_TERMS = 1 << 16
"""Terms of one vocabulary."""

_CHARACTERS = range(2, 6)
# ASCII punctuation, Latin-1 punctuation, general punctuation, CJK punctuation, and their fullwidth forms.
_WORD = re.compile(r"[^\s!-/:-@\[-`{-~\u00a1-\u00bf\u2000-\u206f\u3000-\u303f\uff00-\uff0f\uff1a-\uff20]+")

Weights = list[tuple[int, float]]
"""Index and weight of each term of a text, by index."""


class TextTooLongError(ValueError):
    """The text has more bytes than words are counted in."""

    def __init__(self, size: int) -> None:
        super().__init__(
            f"The state has {size} bytes, and a head that counts words takes {MAX_TEXT_BYTES}; shorten it, or fit the "
            "head with words = false in the contract's [readout]."
        )
        self.counts: Counts = {"counted_bytes": size, "allowed_bytes": MAX_TEXT_BYTES}


def check_text(text: str) -> None:
    """Refuse a text before its words are counted.

    Raises:
        TextTooLongError: It has more than ``MAX_TEXT_BYTES``.
    """
    if len(text) > MAX_TEXT_BYTES or (len(text) * 4 > MAX_TEXT_BYTES and len(text.encode()) > MAX_TEXT_BYTES):
        raise TextTooLongError(len(text.encode()))


def words_of(text: str) -> Iterator[str]:
    """Yield lower-case words, then each pair of neighbours.

    Examples:
        >>> list(words_of("Card lost, help!"))
        ['card', 'lost', 'help', 'card lost', 'lost help']
    """
    words = _WORD.findall(text.lower())
    yield from words
    yield from (f"{first} {second}" for first, second in itertools.pairwise(words))


def runs_of(text: str) -> Iterator[str]:
    """Yield runs of 2 to 5 characters of each lower-case word with a space at both ends; of a shorter one, all of it.

    Examples:
        >>> list(runs_of("Up"))
        [' u', 'up', 'p ', ' up', 'up ', ' up ']
    """
    for word in text.lower().split():
        padded = f" {word} "
        for size in _CHARACTERS:
            yield from (padded[start : start + size] for start in range(len(padded) - size + 1))
            if size >= len(padded):
                break


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Terms with their weights.

    Attributes:
        index: Place of each term, from 0.
        idf: ``1 + log((1 + cases) / (1 + cases with the term))`` of each, in that order.
    """

    index: Mapping[str, int]
    idf: tuple[float, ...]

    def __len__(self) -> int:
        """Terms."""
        return len(self.idf)

    @classmethod
    def of(cls, terms: Iterable[str], idf: Iterable[float]) -> Vocabulary:
        """Make one from terms in order.

        Raises:
            ValueError: A term appears twice, or there are not as many weights.
        """
        listed = tuple(terms)
        made = cls(MappingProxyType({term: index for index, term in enumerate(listed)}), tuple(idf))
        if len(made.index) != len(listed) or len(made.idf) != len(listed):
            raise ValueError(f"{len(listed)} terms, {len(made.index)} different, {len(made.idf)} weights")
        return made

    def weights(self, terms: Iterable[str]) -> Weights:
        """Return the terms of a text that are known, with weights whose squares sum to 1; empty where none is."""
        counted = Counter(at for term in terms if (at := self.index.get(term)) is not None)
        raw = [(at, (1 + math.log(count)) * self.idf[at]) for at, count in sorted(counted.items())]
        length = math.sqrt(math.fsum(weight * weight for _, weight in raw))
        return [(at, weight / length) for at, weight in raw]


@dataclass(frozen=True, slots=True)
class Words:
    """Both vocabularies; the columns of the words come first."""

    words: Vocabulary
    runs: Vocabulary

    def __len__(self) -> int:
        """Columns."""
        return len(self.words) + len(self.runs)

    def weights(self, text: str) -> Weights:
        """Return the columns of a text and their weights.

        Raises:
            TextTooLongError: It has more than ``MAX_TEXT_BYTES``.
        """
        check_text(text)
        found = self.words.weights(words_of(text))
        found += [(len(self.words) + at, weight) for at, weight in self.runs.weights(runs_of(text))]
        return found


def learn(texts: Iterable[str]) -> Words:
    """Return the vocabularies of texts, terms in alphabetical order, at most ``MAX_TERMS`` of each (the commonest)."""
    listed = list(texts)
    return Words(_learn(map(words_of, listed), len(listed)), _learn(map(runs_of, listed), len(listed)))


def _learn(documents: Iterable[Iterator[str]], count: int) -> Vocabulary:
    seen = Counter(term for document in documents for term in set(document))
    kept = sorted(sorted(seen, key=lambda term: (-seen[term], term))[:MAX_TERMS])
    return Vocabulary.of(kept, (1 + math.log((1 + count) / (1 + seen[term])) for term in kept))

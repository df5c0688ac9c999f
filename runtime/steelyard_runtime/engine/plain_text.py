"""Tokens that callers' text may never become, and places to cut a text that spells one of them.

llama.cpp tokenizes text without its control tokens, but it matches user-defined tokens in any text, some tokenizers
join characters to tokens of every type, and others look all tokens up. So what it gave is checked, token by token.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

UNKNOWN, UNUSED, NORMAL, CONTROL, USER_DEFINED, BYTE = 1, 2, 4, 8, 16, 32
"""Bits of ``enum llama_token_attr``."""
STRIPS = 128 | 256
"""Of a token that takes the white space beside it along."""
SPACE_MARK = "\u2581"
"""The spelling of a space in SentencePiece vocabularies."""
ELEMENTS = frozenset(
    {"a", "b", "blockquote", "body", "br", "caption", "code", "div", "em", "footer", "h1", "h2", "h3", "h4", "h5", "h6"}
    | {"head", "header", "hr", "html", "i", "iframe", "li", "ol", "p", "pre", "span", "strong", "sub", "sup", "table"}
    | {"tbody", "td", "tfoot", "th", "thead", "tr", "u", "ul"}
)
"""HTML elements whose tags are text. Gemma has tags as user-defined tokens, to read documents with. Those that are also
names of images (``<img>``) or of the begin of a text (``<s>``) are not among them."""

_TAG = re.compile(r"</?([a-z]+[1-6]?)>")


class UnwritableTextError(ValueError):
    """A character of a text that the vocabulary has as a control token only."""


def is_marker(spelling: str, attributes: int, *, template: str = "") -> bool:
    r"""Tell whether a token structures prompts, so that text may not become it.

    Control tokens do. User-defined and unused tokens do unless they are plainly text: one character, white space, one
    character repeated, a word, or a tag of an HTML element in ``ELEMENTS`` that the chat template does not write.
    When in doubt a token is a marker: its spelling is then read as its characters, which costs a few tokens.

    Args:
        spelling: The token's text as the file has it.
        attributes: Bits of ``enum llama_token_attr``.
        template: The source of the model's chat template.

    Examples:
        >>> [is_marker(text, USER_DEFINED) for text in ("<think>", "[PAD7]", "\n\n", "<td>", "naïve", "====")]
        [True, True, False, False, False, False]
    """
    if attributes & (CONTROL | UNKNOWN):
        return True
    if attributes & (NORMAL | BYTE):
        return False
    text = spelling.replace(SPACE_MARK, " ").strip()
    if len(set(text)) <= 1:
        return False
    if all(_in_word(character) or character.isspace() for character in text):
        return False
    tag = _TAG.fullmatch(text)
    return not (tag and tag[1] in ELEMENTS and text not in template)


def looks_special(spelling: str) -> bool:
    """Tell whether a token that the file names as the begin or the end of a text is more than a piece of text.

    llama.cpp names some token where the file names none; that one may be a comma.
    """
    text = spelling.strip(SPACE_MARK + " ")
    return len(text) > 2 and not _in_word(text[0]) and not _in_word(text[-1]) and any(map(_in_word, text))


def _in_word(character: str) -> bool:
    """Letters, their accents and digits, of every script, and what joins them."""
    return character in "'\u2019-" or unicodedata.category(character)[0] in "LMN"


@dataclass(frozen=True)
class Spellings:
    """Strings to look for in texts, each of at least two characters. Linear in the text.

    Examples:
        >>> list(Spellings(frozenset({"<a>", "a><"})).cut("x<a><b"))
        ['x<', 'a', '><b']
    """

    spellings: frozenset[str]

    def cut(self, text: str) -> Iterator[str]:
        """Pieces of ``text``, cut behind the first character of each spelling, so that no piece holds a whole one."""
        start = 0
        for end in self._inside(text):
            yield text[start:end]
            start = end
        yield text[start:]

    def _inside(self, text: str) -> Iterator[int]:
        if self.spellings:
            for found in self._beginnings.finditer(text):
                at = found.start()
                if any(text[at : at + size] in self.spellings for size in self._sizes[found[1]]):
                    yield at + 1

    @cached_property
    def _sizes(self) -> dict[str, tuple[int, ...]]:
        return _lengths(self.spellings)

    @cached_property
    def _beginnings(self) -> re.Pattern[str]:
        return re.compile(_any_of(self._sizes), re.DOTALL)


def spellings(texts: Iterable[str]) -> Spellings:
    """Token texts as callers would write them: as they are, and with spaces for the marks that stand for them."""
    written = {variant for text in texts for variant in (text, text.replace(SPACE_MARK, " "))}
    return Spellings(frozenset(text for text in written if len(text) > 1))


def words(text: str) -> Sequence[str]:
    """The words of a text, each with the white space before it; joined they are the text."""
    return re.findall(r"\s*\S+|\s+\Z", text)


BLOCK = 512
"""Characters after which a text may be cut into blocks. llama.cpp's time grows with the square of the user-defined
tokens that it matches in one call: 80 kB of line breaks and letters took 6.7 s on Gemma's vocabulary."""


@dataclass(frozen=True)
class Boundaries:
    """Places to cut a text without a change of its tokens: at an end of a user-defined token that is sure to match.

    llama.cpp matches user-defined tokens first, longer ones before shorter ones, and tokenizes what is between them
    alone. So a token matches whole if no other can reach over its ends: no user-defined token has the two characters
    there next to each other. And a token of one character ends whatever match it is part of, if none has it next to the
    character that follows.

    Examples:
        >>> list(Boundaries(frozenset({"--", "---"})).blocks("a--b---c----d", size=1))
        ['a--', 'b---', 'c----d']
    """

    tokens: frozenset[str]

    def blocks(self, text: str, *, size: int = BLOCK) -> Iterator[str]:
        """Pieces of ``text`` of at least ``size`` characters, cut at the first place after these; then the rest."""
        start = 0
        while start + size < len(text) and self.tokens:
            end = self._next(text, start + size)
            if end >= len(text):
                break
            yield text[start:end]
            start = end
        yield text[start:]

    def _next(self, text: str, at: int) -> int:
        """The first place where a token ends that begins at ``at`` or later; the length if there is none."""
        for found in self._beginnings.finditer(text, at):
            begin = found.start()
            if text[begin] in self.tokens and text[begin : begin + 2] not in self._neighbours:
                return begin + 1
            if text[begin - 1 : begin + 1] in self._neighbours:
                continue
            for length in self._lengths.get(text[begin : begin + 2], ()):
                end = begin + length
                if text[begin:end] in self.tokens and text[end - 1 : end + 1] not in self._neighbours:
                    return end
        return len(text)

    @cached_property
    def _neighbours(self) -> frozenset[str]:
        return frozenset(token[at : at + 2] for token in self.tokens for at in range(len(token) - 1))

    @cached_property
    def _lengths(self) -> dict[str, tuple[int, ...]]:
        return _lengths(self.tokens)

    @cached_property
    def _beginnings(self) -> re.Pattern[str]:
        return re.compile(_any_of({token[:2] for token in self.tokens}), re.DOTALL)


def _lengths(texts: Iterable[str]) -> dict[str, tuple[int, ...]]:
    lengths: dict[str, set[int]] = {}
    for text in texts:
        lengths.setdefault(text[:2], set()).add(len(text))
    return {beginning: tuple(sorted(found)) for beginning, found in lengths.items()}


def _any_of(beginnings: Iterable[str]) -> str:
    # A look-ahead, because what begins so may overlap.
    return f"(?=({'|'.join(map(re.escape, sorted(beginnings)))}))"

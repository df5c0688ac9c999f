"""Text that knows, character by character, whether the template or a message wrote it.

A chat template reads messages, cuts them, trims them and joins them to its own words. ``Text`` is a ``str`` for which
each of these operations gives exactly what ``str`` gives, and with it the origin of each character. Any operation that
is not listed here gives a plain ``str``, and a plain ``str`` counts as written by a caller: an operation that was
forgotten can make template text ordinary, and never a caller's text control text.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, SupportsIndex

TEMPLATE = -1
"""Origin of what the template wrote itself."""
SOMEONE = -2
"""Origin of what came from messages, of more than one or in a way that was not followed."""

Run = tuple[int, int]
"""Length of a stretch, and its origin: ``TEMPLATE``, ``SOMEONE``, or the number of a message."""


class Text(str):
    """A string and the origin of its characters. Made by ``text``, ``concatenate`` and its own methods."""

    __slots__ = ("_runs",)
    _runs: tuple[Run, ...]

    def __str__(self) -> Text:
        """Return itself, so that ``str(text)`` keeps the origins."""
        return self

    def __iter__(self) -> Iterator[Text]:
        """Yield the characters."""
        position = 0
        for length, origin in self._runs:
            for at in range(position, position + length):
                yield text(str.__getitem__(self, at), origin)
            position += length

    def __getitem__(self, key: SupportsIndex | slice) -> Text:
        """Cut out a character or a slice."""
        value = str.__getitem__(self, key)
        if len(self._runs) < 2:
            return text(value, self._runs[0][1] if self._runs else TEMPLATE)
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            if step == 1:
                return _made(value, _cut(self._runs, start, max(start, stop)))
            return _made(value, _grouped(_origins(self._runs)[key]))
        at = key.__index__() % len(self)
        return _made(value, _cut(self._runs, at, at + 1))

    def __add__(self, other: str) -> Text:
        """Join."""
        return concatenate((self, other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> Text:
        """Join; Python asks the right operand first when it is of a subclass."""
        return concatenate((other, self)) if isinstance(other, str) else NotImplemented

    def __mul__(self, times: SupportsIndex) -> Text:
        """Repeat."""
        value = str.__mul__(self, times)
        if len(self._runs) < 2:
            return text(value, self._runs[0][1] if self._runs else TEMPLATE)
        return _made(value, _merged(self._runs * max(0, times.__index__())))

    __rmul__ = __mul__

    def capitalize(self) -> Text:
        """As ``str.capitalize``."""
        return self.mapped(str.capitalize)

    def lower(self) -> Text:
        """As ``str.lower``."""
        return self.mapped(str.lower)

    def title(self) -> Text:
        """As ``str.title``."""
        return self.mapped(str.title)

    def upper(self) -> Text:
        """As ``str.upper``."""
        return self.mapped(str.upper)

    def strip(self, characters: str | None = None, /) -> Text:
        """As ``str.strip``."""
        return self.lstrip(characters).rstrip(characters)

    def lstrip(self, characters: str | None = None, /) -> Text:
        """As ``str.lstrip``."""
        return self[len(self) - len(str.lstrip(self, characters)) :]

    def rstrip(self, characters: str | None = None, /) -> Text:
        """As ``str.rstrip``."""
        return self[: len(str.rstrip(self, characters))]

    def removeprefix(self, prefix: str, /) -> Text:
        """As ``str.removeprefix``."""
        return self[len(self) - len(str.removeprefix(self, prefix)) :]

    def removesuffix(self, suffix: str, /) -> Text:
        """As ``str.removesuffix``."""
        return self[: len(str.removesuffix(self, suffix))]

    def partition(self, separator: str, /) -> tuple[Text, Text, Text]:
        """As ``str.partition``."""
        head, middle, _ = str.partition(self, separator)
        return self[: len(head)], self[len(head) : len(head) + len(middle)], self[len(head) + len(middle) :]

    def rpartition(self, separator: str, /) -> tuple[Text, Text, Text]:
        """As ``str.rpartition``."""
        head, middle, _ = str.rpartition(self, separator)
        return self[: len(head)], self[len(head) : len(head) + len(middle)], self[len(head) + len(middle) :]

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[Text]:  # type: ignore[override]
        """As ``str.split``."""
        return self._located(str.split(self, sep, maxsplit), gap=None if sep is None else len(sep))

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[Text]:  # type: ignore[override]
        """As ``str.rsplit``."""
        return self._located(str.rsplit(self, sep, maxsplit), gap=None if sep is None else len(sep))

    def splitlines(self, keepends: bool = False) -> list[Text]:  # type: ignore[override]
        """As ``str.splitlines``."""
        whole = self._located(str.splitlines(self, True), gap=0)
        if keepends:
            return whole
        return [line[: len(short)] for line, short in zip(whole, str.splitlines(self), strict=True)]

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> Text:
        """As ``str.replace``."""
        left = count.__index__()
        left = len(self) + 1 if left < 0 else left
        parts: list[str] = []
        position = 0
        if not old:
            for at in range(min(left, len(self) + 1)):
                parts += (new, self[at : at + 1])
                position = at + 1
        else:
            while left and (at := str.find(self, old, position)) >= 0:
                parts += (self[position:at], new)
                position, left = at + len(old), left - 1
        return concatenate((*parts, self[position:])) if parts else self

    def join(self, items: Iterable[str], /) -> Text:
        """As ``str.join``."""
        parts: list[str] = []
        for item in items:
            if not isinstance(item, str):
                raise TypeError(f"sequence item {len(parts) // 2}: expected str instance, {type(item).__name__} found")
            parts += (self, item)
        return concatenate(parts[1:])

    def mapped(self, function: Callable[[str], str]) -> Text:
        """Apply a function that changes characters one by one, or nearly so.

        The stretches are mapped one by one; where the whole comes out differently (a Greek sigma at the end of a word
        depends on its neighbours), all of it takes the least trusted origin.
        """
        value = function(str.__str__(self))
        if len(self._runs) < 2:
            return text(value, self._runs[0][1] if self._runs else TEMPLATE)
        runs, position, parts = [], 0, []
        for length, origin in self._runs:
            parts.append(function(str.__getitem__(self, slice(position, position + length))))
            runs.append((len(parts[-1]), origin))
            position += length
        return _made(value, _merged(runs)) if "".join(parts) == value else text(value, _least_trusted(self._runs))

    def stretches(self) -> Iterator[tuple[int, str]]:
        """Yield origin and characters of each stretch."""
        position = 0
        for length, origin in self._runs:
            yield origin, str.__getitem__(self, slice(position, position + length))
            position += length

    def _located(self, pieces: Sequence[str], *, gap: int | None) -> list[Text]:
        """Pieces in their order; ``gap`` characters lie between two of them, or None for any white space."""
        if len(self._runs) < 2:
            origin = self._runs[0][1] if self._runs else TEMPLATE
            return [text(piece, origin) for piece in pieces]
        located, position = [], 0
        for piece in pieces:
            # No piece begins with white space where the gap is white space, but a first or last one that starts here.
            at = position if gap is not None else str.find(self, piece, position)
            located.append(self[at : at + len(piece)])
            position = at + len(piece) + (gap or 0)
        return located


def text(value: str, origin: int) -> Text:
    """Mark all of ``value`` with one origin."""
    return _made(value, ((len(value), origin),) if value else ())


def concatenate(parts: Iterable[str]) -> Text:
    """Join strings, each with its own origins; a plain ``str`` is someone's."""
    known = list(parts)
    runs: list[Run] = []
    last = 0
    for part in known:
        if not part:
            continue
        for run in part._runs if type(part) is Text else ((len(part), SOMEONE),):
            if runs and run[1] == last:
                runs[-1] = (runs[-1][0] + run[0], last)
            else:
                runs.append(run)
                last = run[1]
    return _made("".join(known), tuple(runs))


def to_json(value: Any, *, ensure_ascii: bool, indent: int | str | None, separators: Any, sort_keys: bool) -> Text:
    """Write JSON as ``json.dumps`` does."""
    comma, colon = separators or ((", ", ": ") if indent is None else (",", ": "))
    step = indent if isinstance(indent, str | None) else " " * indent

    def own(syntax: str) -> Text:
        return text(syntax, TEMPLATE)

    def quoted(string: str) -> Text:
        plain = string if isinstance(string, Text) else text(string, SOMEONE)
        inner = plain.mapped(lambda part: json.dumps(part, ensure_ascii=ensure_ascii)[1:-1])
        return concatenate((own('"'), inner, own('"')))

    def key(name: Any) -> str:
        if isinstance(name, str):
            return quoted(name)
        if not isinstance(name, int | float | None):
            raise TypeError(f"keys must be str, int, float, bool or None, not {type(name).__name__}")
        return own(f'"{json.dumps(name)}"')

    def between(level: int) -> Text:
        return own("") if step is None else own("\n" + step * level)

    def written(item: Any, level: int) -> Iterator[str]:
        if isinstance(item, str):
            yield quoted(item)
        elif isinstance(item, dict | list | tuple) and item:
            opening, closing = "{}" if isinstance(item, dict) else "[]"
            yield own(opening)
            entries: Iterable[Any] = item
            if isinstance(item, dict):
                entries = sorted(item.items()) if sort_keys else item.items()
            for number, entry in enumerate(entries):
                if number:
                    yield own(comma)
                yield between(level + 1)
                if isinstance(item, dict):
                    yield key(entry[0])
                    yield own(colon)
                yield from written(entry[1] if isinstance(item, dict) else entry, level + 1)
            yield between(level)
            yield own(closing)
        else:
            yield own(json.dumps(item))

    return concatenate(written(value, 0))


def _made(value: str, runs: tuple[Run, ...]) -> Text:
    made = str.__new__(Text, value)
    made._runs = runs
    return made


def _cut(runs: Sequence[Run], start: int, stop: int) -> tuple[Run, ...]:
    kept, position = [], 0
    for length, origin in runs:
        if position >= stop:
            break
        size = min(stop, position + length) - max(start, position)
        if size > 0:
            kept.append((size, origin))
        position += length
    return tuple(kept)


def _origins(runs: Iterable[Run]) -> list[int]:
    return [origin for length, origin in runs for _ in range(length)]


def _grouped(origins: Iterable[int]) -> tuple[Run, ...]:
    return tuple((sum(1 for _ in group), origin) for origin, group in itertools.groupby(origins))


def _merged(runs: Iterable[Run]) -> tuple[Run, ...]:
    groups = itertools.groupby((run for run in runs if run[0]), key=lambda run: run[1])
    return tuple((sum(length for length, _ in group), origin) for origin, group in groups)


def _least_trusted(runs: Iterable[Run]) -> int:
    callers = {origin for _, origin in runs if origin != TEMPLATE}
    return SOMEONE if len(callers) > 1 else callers.pop() if callers else TEMPLATE

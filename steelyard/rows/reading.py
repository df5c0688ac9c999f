"""Rows of states from JSON Lines, CSV, a JSON list or lines of text, read one at a time and within limits."""

from __future__ import annotations

import csv
import hashlib
import json
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, get_args

from steelyard.client.decision_file import MOST_BYTES, parse_json, usage
from steelyard_base.exit_codes import CommandError

Format = Literal["jsonl", "csv", "tsv", "json", "txt"]

LONGEST_ROW = 4 << 20
"""Bytes of one row: the server's own default for a request body."""

LARGEST_LIST = MOST_BYTES
"""Bytes of a file that holds one JSON list, which is read as a whole; JSON Lines has no such limit."""

_FORMAT_FLAG = f"--states-format {'|'.join(get_args(Format))}"
_SAID = {
    "new-line character seen in unquoted field - do you need to open the file in universal-newline mode?": (
        "its lines end with a carriage return alone; save it with other line ends"
    )
}
"""Messages of Python's reader that are meant for programs, in words for whoever has the file."""
_SUFFIXES: dict[str, Format] = {f".{name}": name for name in get_args(Format)} | {".ndjson": "jsonl"}


@dataclass(frozen=True, slots=True)
class Row:
    """One state.

    Attributes:
        line: Where it begins in the file, from 1; in a JSON list its place, from 1.
        id: Names it in the output.
        state: Text, or a JSON value.
        size: Bytes that it had in the file.
    """

    line: int
    id: Any
    state: Any
    size: int


@dataclass(frozen=True, kw_only=True)
class Fields:
    """The parts of a row that are its state and its id.

    Attributes:
        state: One field, whose value is the state; several make an object; none chooses by the first row: the field
            ``state`` where it has one, else all fields but the id.
        id: A field; None chooses ``id`` where the first row has it, else rows are numbered.
    """

    state: tuple[str, ...] = ()
    id: str | None = None


def format_of(path: Path, chosen: Format | None, *, flag: str = _FORMAT_FLAG) -> Format:
    """Return the format of a file: the chosen one, or the one of its suffix; standard input is JSON Lines.

    Args:
        path: The file.
        chosen: What the command line says.
        flag: Its flag and values, for the message.

    Raises:
        CommandError: The suffix is none that is known.
    """
    if chosen is not None:
        return chosen
    if str(path) == "-":
        return "jsonl"
    found = _SUFFIXES.get(path.suffix.lower())
    if found is None:
        raise usage(f"the format of {path} is not known by its suffix", f"Say it: {flag} {'|'.join(get_args(Format))}")
    return found


def read_rows(stream: BinaryIO, *, kind: Format, fields: Fields, origin: str) -> Iterator[Row]:
    """Read rows.

    Args:
        stream: The file, from its beginning.
        kind: Its format.
        fields: What of a row is the state, and what the id.
        origin: Names the file in messages.

    Raises:
        CommandError: A row is wrong; the message has its line.
    """
    shape: _Shape | None = None
    seen = _Seen()
    for line, value, size in read_values(stream, kind=kind, origin=origin):
        shape = shape or _Shape.of(value, fields, origin=origin)
        identifier = shape.id(value, line, seen.count + 1)
        if (earlier := seen.add(identifier, line)) is not None:
            raise fault(origin, line, f"the id {short(identifier)} is that of line {earlier} too")
        yield Row(line, identifier, shape.state(value, line), size)


def read_values(stream: BinaryIO, *, kind: Format, origin: str) -> Iterator[tuple[int, Any, int]]:
    """Read the values of a file, whatever they are for.

    Yields:
        The line in which it begins, the value, and its bytes in the file. The rows of a table are objects by the names
        of the columns.

    Raises:
        CommandError: A row is wrong; the message has its line.
    """
    reader = {"jsonl": _json_lines, "json": _json_list, "txt": _text_lines}.get(kind)
    return _table(stream, "\t" if kind == "tsv" else ",", origin) if reader is None else reader(stream, origin)


def check_rows(stream: BinaryIO, *, kind: Format, fields: Fields, origin: str) -> int:
    """Read a whole file before anything is sent.

    Returns:
        The number of its rows.

    Raises:
        CommandError: A row is wrong, or there is none.
    """
    count = 0
    for _ in read_rows(stream, kind=kind, fields=fields, origin=origin):
        count += 1
    if not count:
        raise usage(f"{origin} holds no row")
    return count


class _Shape:
    """Places of state and id in the rows of one file; the first row decides."""

    def __init__(self, origin: str, state: tuple[str, ...] | None, identifier: str | None) -> None:
        self._origin, self._state, self._id = origin, state, identifier

    @classmethod
    def of(cls, first: Any, fields: Fields, *, origin: str) -> _Shape:
        if not isinstance(first, dict):
            if fields.state or fields.id:
                raise usage(
                    f"the rows of {origin} have no fields: the first is {short(first)}",
                    "Leave --state-field and --id-field out; each row is a state.",
                )
            return cls(origin, None, None)
        identifier = fields.id or ("id" if "id" in first else None)
        state = fields.state or (("state",) if "state" in first else ())
        return cls(origin, state, identifier)

    def id(self, value: Any, line: int, number: int) -> Any:
        if self._id is None:
            return number
        found = self._field(value, self._id, line)
        if isinstance(found, bool) or not isinstance(found, str | int) or found == "":
            raise fault(self._origin, line, f"the id is {short(found)}; it must be a text or a whole number")
        return found

    def state(self, value: Any, line: int) -> Any:
        if self._state is None:
            if isinstance(value, dict):
                raise fault(self._origin, line, "it is an object, and the first row is a state by itself")
            found = value
        elif len(self._state) == 1:
            found = self._field(value, self._state[0], line)
        elif self._state:
            found = {name: self._field(value, name, line) for name in self._state}
        else:
            self._field(value, self._id, line)
            found = {name: each for name, each in value.items() if name != self._id}
        if found is None or found in ("", [], {}):
            raise fault(self._origin, line, "the state is empty")
        return found

    def _field(self, value: Any, name: str | None, line: int) -> Any:
        if not isinstance(value, dict):
            raise fault(self._origin, line, f"it is {short(value)}, and must be an object like the first row")
        if name is not None and name not in value:
            known = ", ".join(map(short, list(value)[:8])) or "none"
            raise fault(self._origin, line, f"the field {short(name)} is missing; the fields are: {known}")
        return None if name is None else value[name]


def _lines(stream: BinaryIO, origin: str) -> Iterator[tuple[int, str, int]]:
    """Each line with its number and its size in bytes; a byte order mark and the ends of lines are left out."""
    number = 0
    while raw := stream.readline(LONGEST_ROW + 1):
        number += 1
        if len(raw) > LONGEST_ROW:
            raise fault(origin, number, f"it has more than {LONGEST_ROW} bytes, which is the limit of a row")
        if number == 1:
            raw = raw.removeprefix(b"\xef\xbb\xbf")
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            place = f"byte {error.start + 1} is 0x{raw[error.start]:02x}"
            raise fault(origin, number, f"it is not UTF-8 text: {place}; save the file as UTF-8") from error
        if "\0" in text:
            raise fault(origin, number, f"it holds the character NUL at {text.index(chr(0)) + 1}, which is no text")
        yield number, text, len(raw)


def _json_lines(stream: BinaryIO, origin: str) -> Iterator[tuple[int, Any, int]]:
    for number, text, size in _lines(stream, origin):
        if text := text.strip():
            value = parse_json(text, f"line {number} of {origin}")
            _require_text(value, text, origin, number)
            yield number, value, size


def _text_lines(stream: BinaryIO, origin: str) -> Iterator[tuple[int, Any, int]]:
    for number, text, size in _lines(stream, origin):
        if text.strip():
            yield number, text.rstrip("\r\n"), size


def _json_list(stream: BinaryIO, origin: str) -> Iterator[tuple[int, Any, int]]:
    raw = stream.read(LARGEST_LIST + 1)
    if len(raw) > LARGEST_LIST:
        raise usage(
            f"{origin} has more than {LARGEST_LIST} bytes, which is the limit of one JSON list",
            "Write a state per line (JSON Lines), which is read one at a time.",
        )
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise usage(f"{origin} is not UTF-8 text: byte {error.start + 1} is 0x{raw[error.start]:02x}") from error
    values = parse_json(text, origin)
    if not isinstance(values, list):
        raise usage(f"{origin} must hold a list of states; it holds {short(values)}")
    for number, value in enumerate(values, 1):
        _require_text(value, text, origin, number)
        yield number, value, len(text) // len(values)


def _table(stream: BinaryIO, delimiter: str, origin: str) -> Iterator[tuple[int, Any, int]]:
    """Rows as objects by the names in the first one."""
    sizes = _Sizes()
    csv.field_size_limit(LONGEST_ROW)
    reader = csv.reader(sizes.noting(_lines(stream, origin), origin), delimiter=delimiter, strict=True)
    header: list[str] = []
    while True:
        begins = reader.line_num + 1
        sizes.start()
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise fault(origin, begins, f"it is not CSV: {_SAID.get(str(error), error)}") from error
        if cells is None:
            return
        if not cells or (len(cells) == 1 and not cells[0].strip()):
            continue
        if not header:
            header = cells
            _check_header(header, origin, begins)
        elif len(cells) != len(header):
            raise fault(origin, begins, f"it has {len(cells)} fields, and the first row has {len(header)}")
        else:
            yield begins, dict(zip(header, cells, strict=True)), sizes.bytes


class _Sizes:
    """Counts the bytes of the lines that make one row of a table: a quoted field may hold line breaks."""

    def __init__(self) -> None:
        self.bytes = 0

    def start(self) -> None:
        self.bytes = 0

    def noting(self, lines: Iterator[tuple[int, str, int]], origin: str) -> Iterator[str]:
        for number, text, size in lines:
            self.bytes += size
            if self.bytes > LONGEST_ROW:
                raise fault(
                    origin, number, f"the row has more than {LONGEST_ROW} bytes here; is a quotation mark not closed?"
                )
            yield text


def _check_header(header: Sequence[str], origin: str, line: int) -> None:
    if "" in header:
        raise fault(origin, line, f"column {list(header).index('') + 1} has no name")
    if twice := sorted(name for name, count in Counter(header).items() if count > 1):
        raise fault(origin, line, f"the column {short(twice[0])} is there twice")
    if len(header) == 1 and (other := next((each for each in ";\t" if each in header[0]), None)):
        raise usage(
            f"line {line} of {origin}: it has one column, {short(header[0])}, divided by {short(other)}",
            "Columns are divided by commas, those of TSV by tabs: save it so.",
        )


def _require_text(value: Any, text: str, origin: str, line: int) -> None:
    """Refuse halves of surrogate pairs, which JSON can spell and UTF-8 cannot."""
    if "\\u" not in text:
        return
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        what = f"\\u{ord(error.object[error.start]):04x}"
        raise fault(origin, line, f"it holds {what}, half of a character") from error


def fault(origin: str, line: int, what: str) -> CommandError:
    """Return the error for a line of an input file."""
    return usage(f"line {line} of {origin}: {what}")


def short(value: Any) -> str:
    """Return a value as messages quote it: JSON, 60 characters of it at most."""
    text = json.dumps(value, ensure_ascii=True) if not isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


class _Seen:
    """The ids so far, as hashes with their lines: 64 bytes each at most, whatever their length."""

    def __init__(self) -> None:
        self.count = 0
        self._slots = 1 << 10
        self._hashes, self._lines = array("Q", bytes(8 * self._slots)), array("Q", bytes(8 * self._slots))

    def add(self, identifier: Any, line: int) -> int | None:
        """Note an id; returns the line that has it already."""
        if 2 * self.count >= self._slots:
            self._grow()
        spelled = json.dumps(identifier).encode()
        digest = int.from_bytes(hashlib.blake2b(spelled, digest_size=8).digest(), "big") or 1
        place = self._place(digest)
        if self._hashes[place]:
            return self._lines[place]
        self._hashes[place], self._lines[place] = digest, line
        self.count += 1
        return None

    def _place(self, digest: int) -> int:
        place = digest % self._slots
        while self._hashes[place] not in (0, digest):
            place = (place + 1) % self._slots
        return place

    def _grow(self) -> None:
        hashes, lines = self._hashes, self._lines
        self._slots *= 2
        self._hashes, self._lines = array("Q", bytes(8 * self._slots)), array("Q", bytes(8 * self._slots))
        for digest, line in zip(hashes, lines, strict=True):
            if digest:
                place = self._place(digest)
                self._hashes[place], self._lines[place] = digest, line

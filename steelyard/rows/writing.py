"""Rows of output: JSON Lines or CSV, a line for each decision of each row, appended so that a run can be continued."""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol, get_args

from steelyard.client.decision_file import usage
from steelyard.rows.asking import Ask, Outcome
from steelyard.rows.reading import LONGEST_ROW
from steelyard_base.exit_codes import CommandError

OutFormat = Literal["jsonl", "csv"]
_FIRST = ("id", "decision", "choice")
_LONGEST_LINE = 8 * LONGEST_ROW
_SHOWN = 80


class Style(Protocol):
    """One format of the output."""

    head: bytes

    def line(self, outcome: Outcome) -> bytes:
        """Return the line of one decision."""

    def beginning(self, row: Ask, decision: dict[str, Any]) -> bytes:
        """Return how the line of a decision begins, whatever was answered."""


class JsonLines:
    """A JSON object in each line.

    Args:
        whole: Whether a row carries the server's whole result.
    """

    head = b""

    def __init__(self, *, whole: bool = False) -> None:
        self._whole = whole

    def line(self, outcome: Outcome) -> bytes:
        """Return the line of one decision."""
        row: dict[str, Any] = {"id": outcome.row.id, "decision": outcome.decision["id"]}
        if outcome.result is None:
            row |= {"choice": None, "probabilities": None, "error": outcome.error.message if outcome.error else ""}
        else:
            row |= {"choice": _choice(outcome.result), "probabilities": _probabilities(outcome.result), "error": None}
            # A registered decision's policy says what to do with the answer.
            row |= {key: outcome.result[key] for key in ("action", "reason") if key in outcome.result}
        if self._whole:
            row["result"] = outcome.result
        return json.dumps(row, ensure_ascii=False).encode() + b"\n"

    def beginning(self, row: Ask, decision: dict[str, Any]) -> bytes:
        """Return how the line of a decision begins, whatever was answered."""
        key = json.dumps({"id": row.id, "decision": decision["id"]}, ensure_ascii=False)
        return f"{key.removesuffix('}')}, ".encode()


class Csv:
    """A header, and a line for each row with the probability of each option in a column of its own.

    Args:
        decisions: All that are asked: their options are the columns.

    Raises:
        CommandError: A decision declares no options, so its columns are not known.
    """

    def __init__(self, decisions: Iterable[dict[str, Any]]) -> None:
        self._options: dict[str, None] = {}
        for decision in decisions:
            if not isinstance(options := decision.get("options"), list):
                raise usage(
                    f"the decision {decision['id']!r} declares no options, which are the columns of CSV",
                    "Write JSON Lines: --format jsonl",
                )
            self._options |= {str(each.get("id")): None for each in options if isinstance(each, dict)}
        self.head = self._encoded([*_FIRST, *(f"p.{option}" for option in self._options), "error"])

    def line(self, outcome: Outcome) -> bytes:
        """Return the line of one decision."""
        found = _probabilities(outcome.result) if outcome.result else {}
        choice = _choice(outcome.result) if outcome.result else ""
        error = outcome.error.message if outcome.error else ""
        key = (outcome.row.id, outcome.decision["id"])
        return self._encoded([*key, choice, *(found.get(option, "") for option in self._options), error])

    def beginning(self, row: Ask, decision: dict[str, Any]) -> bytes:
        """Return how the line of a decision begins, whatever was answered."""
        return self._encoded([row.id, decision["id"], ""]).removesuffix(b"\n")

    @staticmethod
    def _encoded(cells: Sequence[Any]) -> bytes:
        text = io.StringIO()
        # A cell with a line break would make two lines of a row, which a continued run could not tell from two rows.
        csv.writer(text, lineterminator="\n").writerow(map(_one_line, cells))
        return text.getvalue().encode()


def _one_line(cell: Any) -> Any:
    return " ".join(cell.replace("\r", "\n").split("\n")) if isinstance(cell, str) else cell


def _choice(result: dict[str, Any]) -> Any:
    return result.get("choice")


def _probabilities(result: dict[str, Any]) -> dict[str, float]:
    return dict(zip(result["option_ids"], result["probabilities"], strict=True))


def out_format(path: Path | None, chosen: OutFormat | None) -> OutFormat:
    """Return the format of the output: the chosen one, or the one of the file's suffix; else JSON Lines.

    Raises:
        CommandError: The suffix is none that is known.
    """
    if chosen is not None:
        return chosen
    if path is None or path.suffix.lower() in (".jsonl", ".ndjson"):
        return "jsonl"
    if path.suffix.lower() == ".csv":
        return "csv"
    raise usage(f"the format of {path} is not known by its suffix", f"Say it: --format {'|'.join(get_args(OutFormat))}")


class Output:
    """Destination of rows. Each line is handed to the system when it is complete."""

    def __init__(self, file: BinaryIO, style: Style, *, name: str) -> None:
        self._file, self._style, self._name = file, style, name

    def begin(self) -> None:
        """Write what comes before the first row."""
        self._put(self._style.head)

    def write(self, outcomes: Sequence[Outcome]) -> None:
        """Append a row: a line for each of its decisions.

        Raises:
            CommandError: The file cannot be written, such as on a full disk.
        """
        self._put(b"".join(self._style.line(outcome) for outcome in outcomes))

    def _put(self, data: bytes) -> None:
        try:
            self._file.write(data)
            self._file.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise CommandError(
                f"cannot write {self._name}: {error.strerror or error}", hint="What is written stays; see --resume."
            ) from error


@contextmanager
def held(path: Path, *, writer: str) -> Iterator[BinaryIO]:
    """Open a file for this process alone, from its beginning. What is in it stays.

    Args:
        path: The file; it is made where it is missing.
        writer: The kind of process that may have it already, for the refusal.

    Raises:
        CommandError: Another process has it, or it cannot be opened.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise usage(f"cannot write {path}: {error.strerror}") from error
    with os.fdopen(descriptor, "r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise usage(f"another {writer} is writing {path}", "Wait for it, or name another file.") from None
        yield file


@contextmanager
def appending(path: Path, style: Style, *, resume: bool) -> Iterator[tuple[Output, BinaryIO]]:
    """Hold an output file.

    Yields:
        Where rows go, and the file, read from its beginning, for :func:`skip_written`.

    Raises:
        CommandError: It is there already and not to be continued, another run has it, or it cannot be opened.
    """
    with held(path, writer="run") as file:
        if not resume and os.fstat(file.fileno()).st_size:
            raise usage(f"{path} is there already", "Continue it with --resume, or name another file.")
        yield Output(file, style, name=str(path)), file
        file.flush()
        os.fsync(file.fileno())


def skip_written(file: BinaryIO, style: Style, rows: Iterable[Ask], *, origin: str) -> Iterator[Ask]:
    """Pass over the rows whose lines are in the output, cut off an unfinished one, and yield the others.

    Args:
        file: The output, at its beginning; afterwards at its end.
        style: Its format.
        rows: All of the input.
        origin: The output's name, for messages.

    Raises:
        CommandError: The output is that of other rows, decisions or another format.
    """
    source = iter(rows)
    good = _skip_head(file, style, origin)
    number = 1 if style.head else 0
    while True:
        row = next(source, None)
        if row is None:
            if file.readline(1):
                raise usage(f"{origin} has more rows than the input; it is the output of another one")
            return
        for decision in row.decisions:
            line = file.readline(_LONGEST_LINE)
            number += 1
            wanted = style.beginning(row, decision)
            if line[: len(wanted)] != wanted[: len(line)]:
                raise usage(
                    f"line {number} of {origin} begins with {_text(line)}, and the row of the input that belongs there "
                    f"would begin with {_text(wanted)}",
                    "It is the output of another input. Name another file with --out.",
                )
            if not line.endswith(b"\n"):
                if len(line) == _LONGEST_LINE:
                    raise usage(f"line {number} of {origin} is longer than any row")
                file.seek(good)
                file.truncate()
                yield row
                yield from source
                return
        good = file.tell()


def _text(line: bytes) -> str:
    return repr(line[:_SHOWN].decode("utf-8", "replace"))


def _skip_head(file: BinaryIO, style: Style, origin: str) -> int:
    if not style.head:
        return 0
    found = file.readline(len(style.head) + 1)
    if not found.endswith(b"\n"):
        if not style.head.startswith(found):
            raise usage(f"{origin} has other columns than these decisions have")
        file.seek(0)
        file.truncate()
        file.write(style.head)
    elif found != style.head:
        raise usage(f"{origin} has other columns than these decisions have", "Name another file with --out.")
    return len(style.head)


def standard_output(style: Style) -> Output:
    """Return the output that goes to standard output."""
    return Output(sys.stdout.buffer, style, name="standard output")

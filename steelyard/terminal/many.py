"""Many states in one command, for ``decide`` and ``invoke`` alike: the flags, and what becomes of the rows."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from steelyard.client.decision_file import Asked, common, usage
from steelyard.rows.asking import Ask, Decides, Outcome, ask_all
from steelyard.rows.reading import Fields, Format, Row, check_rows, format_of, read_rows
from steelyard.rows.writing import Csv, JsonLines, OutFormat, Output, Style, appending, out_format, skip_written
from steelyard.rows.writing import standard_output as to_standard_output
from steelyard.terminal import console
from steelyard_base.exit_codes import CommandError, ExitCode

FEW_ROWS = 20
"""Without a terminal, progress is a line for each tenth of the rows, and for no fewer than these."""


@dataclass(frozen=True, kw_only=True)
class Many:
    """The flags."""

    states: Path | None = None
    states_format: Format | None = None
    state_field: Sequence[str] = ()
    id_field: str | None = None
    out: Path | None = None
    resume: bool = False
    format: OutFormat | None = None
    concurrency: int = 1

    def check(self) -> None:
        """Refuse flags that would do nothing.

        Raises:
            CommandError: One is without the other that it belongs to.
        """
        if self.states is None:
            alone = {
                "--states-format": self.states_format,
                "--state-field": self.state_field,
                "--id-field": self.id_field,
            }
            if given := [name for name, value in alone.items() if value]:
                raise usage(f"{', '.join(given)}: for --states, which is not given")
        if self.resume and self.out is None:
            raise usage("--resume continues a file: name it with --out")
        files = [path for path in (self.states, self.out) if path is not None and path.exists()]
        if len(files) == 2 and files[0].samefile(files[1]):
            raise usage(f"--states and --out are the same file, {self.out}")

    @property
    def as_rows(self) -> bool:
        """Tell whether the output is rows, not tables."""
        return self.states is not None or self.out is not None or self.format is not None


Connect = Callable[[], AbstractContextManager[Decides]]
Sink = Callable[[Sequence[Outcome]], None]


@dataclass
class _Tally:
    rows: int = 0
    failed: int = 0
    began: float = field(default_factory=time.monotonic)


def ask_rows(connect: Connect, asked: Asked, many: Many, *, whole: bool) -> None:
    """Ask the decisions about every state and append a row for each answer.

    Args:
        connect: Gives a client.
        asked: The decisions; their states are those of ``many.states`` where that is given.
        many: The flags.
        whole: Whether a row carries the server's whole result.

    Raises:
        CommandError: A file is wrong, nothing more can be asked, or some rows have no answer.
    """
    style = _style(asked, many, whole=whole)
    with _input(asked, many) as (rows, total):
        if many.out is None:
            output = to_standard_output(style)
            output.begin()
            _run(connect, rows, output.write, many=many, total=total)
            return
        with appending(many.out, style, resume=many.resume) as (output, file):
            left = _left(rows, output, file, style, many)
            _run(connect, left, output.write, many=many, total=None if many.resume else total)


def _left(rows: Iterator[Ask], output: Output, file: BinaryIO, style: Style, many: Many) -> Iterator[Ask]:
    if not file.read(1):
        output.begin()
        return rows
    file.seek(0)
    return skip_written(file, style, rows, origin=str(many.out))


def print_all(connect: Connect, asked: Asked, many: Many, show: Callable[[Outcome], None]) -> None:
    """Ask decisions about different states and print each answer.

    Args:
        connect: Gives a client.
        asked: The decisions, with their states.
        many: The flags.
        show: Prints one answer.

    Raises:
        CommandError: Nothing more can be asked, or some decisions have no answer.
    """

    def sink(outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            if outcome.error is None:
                show(outcome)
            else:
                console.fail(CommandError(f"the decision {outcome.row.id!r}: {outcome.error.message}"))

    _run(connect, iter(_asks(asked)), sink, many=many, total=len(asked.decisions), quiet=True)


def _style(asked: Asked, many: Many, *, whole: bool) -> Style:
    if out_format(many.out, many.format) == "jsonl":
        return JsonLines(whole=whole)
    if whole:
        raise usage("--json adds the whole result to each row, for which CSV has no place", "Use --format jsonl.")
    return Csv(asked.decisions)


@contextmanager
def _input(asked: Asked, many: Many) -> Iterator[tuple[Iterator[Ask], int | None]]:
    """The rows of the input, and how many there are where a file can be read twice."""
    if many.states is None:
        yield iter(_asks(asked)), len(asked.decisions)
        return
    kind = format_of(many.states, many.states_format)
    fields = Fields(state=tuple(many.state_field), id=many.id_field)
    decisions = _template(asked)
    beside = asked.beside[0]

    def asks(rows: Iterator[Row]) -> Iterator[Ask]:
        return (Ask(row.id, row.state, decisions, beside, row.size) for row in rows)

    if str(many.states) == "-":
        yield asks(read_rows(sys.stdin.buffer, kind=kind, fields=fields, origin="standard input")), None
        return
    try:
        file = many.states.open("rb")
    except OSError as error:
        raise usage(f"cannot read {many.states}: {error.strerror}") from error
    with file:
        total = None
        if many.states.is_file():
            with console.err.status(f"checking {many.states}"):
                total = check_rows(file, kind=kind, fields=fields, origin=str(many.states))
            file.seek(0)
        yield asks(read_rows(file, kind=kind, fields=fields, origin=str(many.states))), total


def _asks(asked: Asked) -> list[Ask]:
    """A row for each decision, which has a state of its own."""
    return [
        Ask(decision["id"], decision.get("state"), [_without_state(decision)], beside)
        for decision, beside in zip(asked.decisions, asked.beside, strict=True)
    ]


def _template(asked: Asked) -> list[dict[str, Any]]:
    """The decisions that every state is asked."""
    counts = Counter(decision["id"] for decision in asked.decisions)
    if twice := [each for each, count in counts.items() if count > 1]:
        raise usage(f"two decisions have the id {twice[0]!r}; the rows of the output could not be distinguished")
    common(asked.beside, of="one state")
    return [_without_state(decision) for decision in asked.decisions]


def _without_state(decision: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in decision.items() if name != "state"}


def _run(
    connect: Connect, rows: Iterator[Ask], sink: Sink, *, many: Many, total: int | None, quiet: bool = False
) -> None:
    tally = _Tally()
    try:
        with connect() as client, _progress(total) as advance:
            for outcomes in ask_all(client, rows, concurrency=many.concurrency):
                sink(outcomes)
                tally.rows += 1
                tally.failed += any(outcome.error is not None for outcome in outcomes)
                advance(tally)
    except (KeyboardInterrupt, CommandError):
        if many.out is not None and not quiet:
            console.note(f"{tally.rows} rows were written to {many.out}; continue with --resume")
        raise
    if tally.failed:
        raise CommandError(
            f"{tally.failed} of {tally.rows} rows were not answered",
            code=ExitCode.PARTIAL,
            hint=None if quiet else "Each says why in its field error.",
        )
    if not quiet:
        console.note(f"{tally.rows} rows in {time.monotonic() - tally.began:.1f} s")


@contextmanager
def _progress(total: int | None) -> Iterator[Callable[[_Tally], None]]:
    """A bar on a terminal; elsewhere a line for each tenth."""
    columns = (
        TextColumn("asking"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[failed]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console.err, disable=not console.err.is_terminal, transient=True) as progress:
        task = progress.add_task("", total=total, failed="")

        def advance(tally: _Tally) -> None:
            failed = f"{tally.failed} failed" if tally.failed else ""
            progress.update(task, completed=tally.rows, failed=failed)
            if (
                not console.err.is_terminal
                and total
                and tally.rows < total
                and tally.rows % max(FEW_ROWS, total // 10) == 0
            ):
                console.note(f"{tally.rows} of {total} rows{', ' if failed else ''}{failed}")

        yield advance


def print_json(outcome: Outcome) -> None:
    """Print the server's result."""
    sys.stdout.write(json.dumps(outcome.result, ensure_ascii=False) + "\n")

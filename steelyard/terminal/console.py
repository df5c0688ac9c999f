"""Output of commands: results on standard output, everything else on standard error."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from steelyard.models.pull import Tenths
from steelyard_base.exit_codes import CommandError

# What a terminal obeys: controls, and marks that turn the direction of what follows.
_OBEYED = (*(code for code in range(32) if chr(code) not in "\n\t"), *range(127, 160), *range(0x202A, 0x202F),
           *range(0x2066, 0x206A))  # fmt: skip
_SPELLED = {code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" for code in _OBEYED}


def spelled(text: str) -> str:
    r"""Return text in which nothing is obeyed by a terminal: controls are spelled.

    >>> spelled("a\x1b[31m\n")
    'a\\x1b[31m\n'
    """
    return text.translate(_SPELLED)


class SpellingConsole(Console):
    """A console that obeys rich's own controls alone: texts come from files, servers and models."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """As rich's; the text of each segment is spelled."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=spelled(segment.text))


out = SpellingConsole()
err = SpellingConsole(stderr=True)

BAR_CELLS = 24
GAP = 2
WIDEST_RULE = 100


def fail(error: CommandError) -> int:
    """Print an error for the person who reads it; returns the exit code."""
    err.print(Text.assemble(("error: ", "bold red"), error.message), soft_wrap=True)
    if error.hint:
        err.print(Text(error.hint), soft_wrap=True)
    return int(error.code)


def note(text: str) -> None:
    """One line on standard error."""
    err.print(Text(text, style="dim"), soft_wrap=True)


def heading(text: str, *, to: Console | None = None) -> None:
    """Print a line that heads what follows, whole in every width.

    Args:
        text: What it says.
        to: Standard output unless given.
    """
    target = to or out
    rule = "─" * max(2, min(target.width, WIDEST_RULE) - cell_len(text) - 4)
    target.print(Text.assemble(("── ", "green"), text, (f" {rule}", "green")), soft_wrap=True)


def step(text: str) -> None:
    """Head what follows on standard error."""
    heading(text, to=err)


def rows(cells: Sequence[Sequence[str | Text]], *, heads: Sequence[str] = ()) -> None:
    """Print rows of cells, of which only the terminal breaks a line: paths and names can be copied as they are.

    Args:
        cells: As many in each row. The lines of a last cell go below each other.
        heads: What the columns are; nothing is printed without a row.
    """
    texts = [[Text(cell) if isinstance(cell, str) else cell for cell in row] for row in cells]
    if texts and heads:
        texts.insert(0, [Text(head, style="dim") for head in heads])
    widths = [max(cell_len(cell.plain) for cell in column) for column in list(zip(*texts, strict=True))[:-1]]
    for *row, last in texts:
        first, *further = last.split("\n") if last.plain else [Text()]
        head = Text()
        for cell, width in zip(row, widths, strict=True):
            head.append_text(cell).append(" " * (width - cell_len(cell.plain) + GAP))
        line = head + first
        line.rstrip()
        out.print(line, soft_wrap=True, highlight=False)
        for each in further:
            out.print(Text(" " * sum(width + GAP for width in widths)) + each, soft_wrap=True, highlight=False)


class PullBar:
    """A progress bar for ``steelyard.models.pull``; a plain line now and then where there is no terminal."""

    def __init__(self, progress: Progress, name: str) -> None:
        self._progress = progress
        self._name = name
        self._tasks: dict[str, TaskID] = {}
        self._lines = Tenths(name, note)

    def step(self, what: str, done: int, total: int | None) -> None:
        """Move the bar of ``what``."""
        if what not in self._tasks:
            self._tasks[what] = self._progress.add_task(f"{what} {escape(self._name)}", total=total)
        self._progress.update(self._tasks[what], completed=done, total=total)
        if not err.is_terminal:
            self._lines.step(what, done, total)

    def waiting(self) -> None:
        """Say that another process is at it."""
        self._lines.waiting()


@contextmanager
def pull_bar(name: str) -> Iterator[PullBar]:
    """A progress bar with size, speed and time left."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, disable=not err.is_terminal) as progress:
        yield PullBar(progress, name)


def decision_table(
    result: dict[str, Any], *, descriptions: dict[str, str] | None = None, question: str | None = None
) -> Table:
    """One decision as a table: a row and a bar per option, the likeliest marked."""
    table = Table(title=Text(question) if question else None, title_justify="left", title_style="bold", show_edge=False)
    table.add_column("option", overflow="fold")
    table.add_column("probability", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    if descriptions:
        table.add_column("description", overflow="fold", style="dim")
    probabilities = result["probabilities"]
    best = max(range(len(probabilities)), key=probabilities.__getitem__)
    for index, (option, probability) in enumerate(zip(result["option_ids"], probabilities, strict=True)):
        style = "bold green" if index == best else ""
        row = [
            Text(option, style=style),
            Text(f"{100 * probability:.1f} %", style=style),
            Text(bar(probability), style=style),
        ]
        if descriptions:
            row.append(Text(descriptions.get(option, "")))
        table.add_row(*row)
    return table


def bar(share: float, cells: int = BAR_CELLS) -> str:
    """A bar of ``cells`` characters for a share of 0 to 1, in eighths of a character."""
    eighths = round(share * cells * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")).ljust(cells)


def decision_facts(result: dict[str, Any]) -> str:
    """Action, tokens, milliseconds and standing of one result, in one line."""
    facts = []
    if result.get("action"):
        facts.append(f"{result['action']}, because {result.get('reason')}")
    tokens = result.get("tokens")
    if isinstance(tokens, dict):
        facts.append(f"{tokens['evaluated']} tokens evaluated, {tokens['reused']} reused")
    timing = result.get("timing")
    milliseconds = timing.get("total_ms") if isinstance(timing, dict) else None
    if isinstance(milliseconds, int | float):
        facts.append(f"{milliseconds:.0f} ms")
    if isinstance(result.get("allowed_token_mass"), int | float):
        facts.append(f"{100 * result['allowed_token_mass']:.0f} % of the model's probability was on the options")
    if result.get("probability_status"):
        facts.append(str(result["probability_status"]))
    return "; ".join(facts)

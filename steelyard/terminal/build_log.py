"""Display of running builds: every line of their logs behind their names, and how far each is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from steelyard.terminal import console


class BuildLog:
    """A line per build that says where it is, below the lines of their logs; lines only where there is no terminal."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def line(self, label: str, text: str) -> None:
        """A line of a build's log."""
        self._progress.console.print(Text.assemble((f"{label} | ", "cyan"), text), soft_wrap=True)

    def state(self, label: str, text: str) -> None:
        """Show what a build does now."""
        if label not in self._tasks:
            self._tasks[label] = self._progress.add_task(label, total=None, state="")
        self._progress.update(self._tasks[label], state=text)
        if text == "done":
            self._progress.update(self._tasks[label], total=1, completed=1)
        if not console.err.is_terminal:
            self.note(label, text)

    def note(self, label: str, text: str) -> None:
        """Something that a person wants to know once."""
        self._progress.console.print(Text.assemble((f"{label}: ", "bold"), text), soft_wrap=True)


@contextmanager
def build_log() -> Iterator[BuildLog]:
    """A log of builds on standard error."""
    columns = (
        SpinnerColumn(finished_text="✓"),
        TextColumn("{task.description}"),
        TextColumn("{task.fields[state]}", style="dim"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console.err, disable=not console.err.is_terminal) as progress:
        yield BuildLog(progress)

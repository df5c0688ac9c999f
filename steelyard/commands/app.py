"""The base of every group of commands: one layout of help, in which nothing that a person types is cut."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import typer
from typer.core import TyperCommand

_LARGEST_SHARE = 3
"""The column of names takes at most a third of the width; the help of a longer name starts on the next line."""


class Command(TyperCommand):
    """A command whose help keeps names whole in a narrow terminal."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the parameters; the column of names leaves room for the longest variable's name."""
        formatter.write_dl = partial(formatter.write_dl, col_max=min(30, formatter.width // _LARGEST_SHARE))
        super().format_options(ctx, formatter)


class App(typer.Typer):
    """A group of commands.

    Help is plain text: the boxes that typer draws cut names at the width of the terminal.

    Args:
        settings: As of ``typer.Typer``.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(
            no_args_is_help=True,
            rich_markup_mode=None,
            pretty_exceptions_enable=False,
            context_settings={"help_option_names": ["-h", "--help"]},
            **settings,
        )

    def command(self, *given: Any, **settings: Any) -> Callable[[Any], Any]:
        """Register a command."""
        return super().command(*given, cls=Command, **settings)

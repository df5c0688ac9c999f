"""Prints findings: how a machine or an account stands."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable

import typer
from rich.text import Text

from steelyard.terminal import console
from steelyard_base.checks import Check, Level
from steelyard_base.exit_codes import ExitCode

_STYLE = {Level.OK: "green", Level.WARNING: "yellow", Level.FAILED: "bold red"}


def show(checks: Iterable[Check], *, as_json: bool = False) -> None:
    """Print findings.

    Raises:
        typer.Exit: One of them is in the way.
    """
    checks = list(checks)
    if as_json:
        for check in checks:
            sys.stdout.write(json.dumps(dataclasses.asdict(check)) + "\n")
    else:
        console.rows(
            [
                (
                    Text(check.level.value, style=_STYLE[check.level]),
                    Text(check.name, style="bold"),
                    check.finding + (f"\n{check.advice}" if check.advice else ""),
                )
                for check in checks
            ]
        )
    if any(check.level is Level.FAILED for check in checks):
        raise typer.Exit(ExitCode.FAILED)

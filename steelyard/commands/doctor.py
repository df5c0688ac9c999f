"""``steelyard doctor``: what this machine can run, and why not."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Annotated

import typer
from rich.text import Text

from steelyard.commands import completion
from steelyard.serving.machine import Level, check_machine
from steelyard.terminal import console
from steelyard_base.exit_codes import ExitCode
from steelyard_runtime.settings import Settings

_STYLE = {Level.OK: "green", Level.WARNING: "yellow", Level.FAILED: "bold red"}


def command(
    *,
    model: Annotated[
        str,
        typer.Option(
            "--model",
            envvar="STEELYARD_MODEL",
            help="The model you want to serve, by name or path.",
            autocompletion=completion.models,
        ),
    ] = Settings.model_fields["model"].default,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per check and line.")] = False,
) -> None:
    """Check Python, llama.cpp, CPU, memory, GPU, disk and model. Exit code 1 when something is in the way."""
    checks = list(check_machine(model))
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

"""The ``steelyard`` command: one module per subcommand in ``steelyard/commands``."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Annotated, NoReturn

import typer

from steelyard import console
from steelyard.commands import bench, chat, cloud, decide, demo, doctor, down, invoke, model, release, serve, sweep, up
from steelyard.exit_codes import CommandError, ExitCode

app = typer.Typer(
    name="steelyard",
    help="Decisions and chat from a GGUF model, on your machine and on Amazon SageMaker AI.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("serve")(serve.command)
app.command("decide")(decide.command)
app.command("chat")(chat.command)
app.add_typer(model.app, name="model")
app.command("doctor")(doctor.command)
app.add_typer(bench.app, name="bench")
app.command("demo")(demo.command)
app.command("up")(up.command)
app.command("invoke")(invoke.command)
app.command("down")(down.command)
app.command("sweep")(sweep.command)
app.add_typer(release.app, name="release")
app.add_typer(cloud.app, name="cloud")


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        console.out.print(version("steelyard"))
        raise typer.Exit


@app.callback()
def _steelyard(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Decisions and chat from a GGUF model, on your machine and on Amazon SageMaker AI."""


def run(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit code and lets no traceback out for what a person did.

    Typer itself exits with 2 for a wrong command line and with 130 after Ctrl-C.
    """
    try:
        app(arguments)
    except CommandError as error:
        return console.fail(error)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else ExitCode.OK
        if code == ExitCode.INTERRUPTED:
            console.note("interrupted")
        return code
    return ExitCode.OK


def _interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def main() -> NoReturn:
    """The entry point. SIGTERM ends a command like Ctrl-C does, so that it cleans up."""
    signal.signal(signal.SIGTERM, _interrupt)
    sys.exit(run())

"""The entry point of the ``steelyard`` command; the commands themselves are in ``steelyard/commands``.

Nothing but the standard library is imported with this module: importing the commands takes half a second, in which
Ctrl-C must not print a traceback.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

from steelyard_base.exit_codes import CommandError, ExitCode


def run(arguments: list[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: The words after ``steelyard``; those of the process unless given.

    Returns:
        The exit code. A wrong command line is 2, Ctrl-C is 130.
    """
    from steelyard.commands.root import app
    from steelyard.terminal import console

    try:
        app(arguments)
    except CommandError as error:
        return console.fail(error)
    except OSError as error:
        # A place that a command does not look after itself: a full disk behind standard output, a home folder that
        # cannot be written.
        what = error.strerror or str(error)
        return console.fail(CommandError(f"{error.filename}: {what}" if error.filename else what))
    except KeyboardInterrupt:
        # Between the moment when Ctrl-C raises again and the one from which typer catches it.
        return _interrupted()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else ExitCode.OK
        return _interrupted() if code == ExitCode.INTERRUPTED else code
    return ExitCode.OK


def _interrupted() -> int:
    from steelyard.terminal import console

    console.note("interrupted")
    return ExitCode.INTERRUPTED


def _open_streams() -> None:
    """Give closed standard streams a place, and let every stream spell what its encoding does not have.

    A file that is opened while one is closed would take its number, and get what is printed.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdin = sys.stdin or os.fdopen(0, encoding="utf-8")
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8")
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def _end(_signal: int, _frame: FrameType | None) -> NoReturn:
    os._exit(ExitCode.INTERRUPTED)


def _interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def main() -> NoReturn:
    """Run the command line of this process. SIGTERM ends a command like Ctrl-C does, so that it cleans up."""
    # A parent that ignores Ctrl-C, such as nohup, means its children too.
    numbers = [signal.SIGTERM, *([] if signal.getsignal(signal.SIGINT) is signal.SIG_IGN else [signal.SIGINT])]
    # While modules are imported, and when the command is over, nothing is there to be cleaned up. An exception that
    # comes in the middle of an import may be turned into another one, or printed by the interpreter.
    for number in numbers:
        signal.signal(number, _end)
    _open_streams()
    import steelyard.commands.root  # noqa: F401

    try:
        for number in numbers:
            signal.signal(number, _interrupt)
        code = run()
    except KeyboardInterrupt:
        code = int(ExitCode.INTERRUPTED)
    for number in numbers:
        signal.signal(number, _end)
    sys.exit(code)

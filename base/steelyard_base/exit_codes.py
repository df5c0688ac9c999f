"""Every exit code of the ``steelyard`` command. ``docs/reference/exit-codes.md`` is generated from this table."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes that a script may test for."""

    OK = 0
    FAILED = 1
    USAGE = 2
    REFUSED = 3
    UNREACHABLE = 4
    MODEL = 5
    DOWNLOAD = 6
    PARTIAL = 7
    GATE = 8
    INTERRUPTED = 130


MEANING: dict[ExitCode, str] = {
    ExitCode.OK: "It worked.",
    ExitCode.FAILED: "It did not work; the message says why.",
    ExitCode.USAGE: "The command line, a settings file or an input file is wrong. Nothing was sent or changed.",
    ExitCode.REFUSED: "The server answered, and refused the request.",
    ExitCode.UNREACHABLE: "No server answered at that address.",
    ExitCode.MODEL: "The model is unknown, missing, incomplete or not the pinned file.",
    ExitCode.DOWNLOAD: "A download did not finish. Run the command again: it continues where it stopped.",
    ExitCode.PARTIAL: "Some of many rows were not answered; each row says why. The others were.",
    ExitCode.GATE: "A figure misses a limit of `--gate` or of an environment, or was not measured; it says which. Or "
    "answers drifted, and `decision drift --fail` asked.",
    ExitCode.INTERRUPTED: "Ctrl-C, or SIGTERM. `steelyard serve` itself ends with 0 then: it has finished its work.",
}


class CommandError(Exception):
    """A failure with an exit code, reported in one or two sentences and without a traceback.

    Args:
        message: What was wrong, with the value and the limit.
        code: What the process exits with.
        hint: What to do about it.
    """

    def __init__(self, message: str, *, code: ExitCode = ExitCode.FAILED, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.hint = hint

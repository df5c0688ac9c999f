"""Common parts of the builds' programs: reports, exit codes, exported variables."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from steelyard.models.storage import write_atomically
from steelyard_base.exit_codes import CommandError, ExitCode


def say(text: str) -> None:
    """Print one line of progress."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def export(path: Path, variables: Mapping[str, str]) -> None:
    """Write the variables that a build exports, for its shell to read."""
    write_atomically(path, "".join(f"{name}={shlex.quote(value)}\n" for name, value in variables.items()))


def exit_code_of(program: Callable[[], None]) -> int:
    """Run ``program`` and return the exit code of its end; a refusal is written to standard error."""
    try:
        program()
    except CommandError as error:
        sys.stderr.write("".join(f"{line}\n" for line in (error.message, error.hint) if line))
        return int(error.code)
    except KeyboardInterrupt:
        return int(ExitCode.INTERRUPTED)
    return int(ExitCode.OK)


def build_region(variables: Mapping[str, str]) -> str | None:
    """Return the region that CodeBuild names in a build's variables; None where there is none."""
    return variables.get("AWS_REGION") or variables.get("AWS_DEFAULT_REGION")

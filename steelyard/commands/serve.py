"""``steelyard serve``: the server, in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from steelyard.commands.setting_flags import settings_from, with_setting_flags
from steelyard.models import storage
from steelyard.terminal import console
from steelyard_base.exit_codes import CommandError, ExitCode
from steelyard_runtime.engine import model_files
from steelyard_runtime.settings import Settings


@with_setting_flags
def command(
    *,
    config: Annotated[
        Path | None, typer.Option("--config", envvar="STEELYARD_CONFIG", help="A TOML file with settings.")
    ] = None,
    settings_flags: dict[str, Any],
) -> None:
    """Serve decisions and chat over HTTP until Ctrl-C.

    Flags win over STEELYARD_* variables, these over the file, and the file over the defaults.
    """
    settings = resolved(settings_from(settings_flags, config))
    try:
        from steelyard_runtime.http.serve import serve
    except ModuleNotFoundError as error:
        raise CommandError(
            f"the server cannot start: the Python package {error.name} is not installed",
            hint="Run make setup, or install the extra: pip install 'steelyard[runtime]'",
        ) from error
    raise typer.Exit(serve(settings))


def resolved(settings: Settings) -> Settings:
    """The same settings with the model as a path; a catalogue name becomes the reported id unless one is set."""
    with console.pull_bar(settings.model) as bar:
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            bar.step("verifying", done, None)

        path, name = storage.resolve(settings.model, advance)
    try:
        model_files.resolve(path)
    except model_files.ModelFileError as error:
        raise CommandError(str(error), code=ExitCode.MODEL) from error
    return settings.model_copy(update={"model": str(path), "model_id": settings.model_id or name})

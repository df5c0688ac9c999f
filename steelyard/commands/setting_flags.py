"""Command-line flags made from the settings model, so that there is no second list of settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from steelyard.commands import completion
from steelyard_base.exit_codes import CommandError, ExitCode
from steelyard_runtime.settings import Settings, SettingsError, load_settings


def flag_names(name: str, field: FieldInfo) -> tuple[str, ...]:
    """``--queue-limit``; for yes-or-no settings ``--probe/--no-probe``."""
    flag = "--" + name.replace("_", "-")
    return (f"{flag}/--no-{flag[2:]}",) if field.annotation is bool else (flag,)


def environment_name(name: str) -> str:
    """The environment variable of a setting."""
    return f"STEELYARD_{name.upper()}"


def with_setting_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give ``command(settings_flags: dict, **own)`` one flag per setting, beside its own parameters.

    A flag that is not given arrives as None, so that the environment and the file keep their say.
    """
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "settings_flags"]
    generated = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                _flag_type(field) | None,
                typer.Option(
                    *flag_names(name, field),
                    help=_help(name, field),
                    show_default=False,
                    autocompletion=completion.models if name == "model" else None,
                    rich_help_panel="Settings",
                ),
            ],
        )
        for name, field in Settings.model_fields.items()
    ]
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own] + generated

    def run(**given: Any) -> None:
        flags = {name: given.pop(name) for name in Settings.model_fields}
        command(settings_flags=flags, **given)

    return with_parameters(run, command, parameters)


def with_parameters(
    run: Callable[..., None], command: Callable[..., None], parameters: Sequence[inspect.Parameter]
) -> Callable[..., None]:
    """Make ``run`` look like ``command`` with other parameters."""
    run.__name__ = command.__name__
    run.__doc__ = command.__doc__
    # Typer reads a command's flags from these two.
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def _flag_type(field: FieldInfo) -> Any:
    """The plain type behind ``X | None`` and ``Annotated``."""
    annotation: Any = field.annotation
    if get_origin(annotation) in (Union, UnionType):
        annotation = next(part for part in get_args(annotation) if part is not type(None))
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return annotation if annotation in (bool, int, float) or get_origin(annotation) is Literal else str


def _help(name: str, field: FieldInfo) -> str:
    return f"{field.description} [env: {environment_name(name)}] [default: {shown_default(field)}]"


def shown_default(field: FieldInfo) -> str:
    """A default as people write it: ``unset``, ``true``, ``8080``."""
    if field.default is None:
        return "unset"
    return str(field.default).lower() if isinstance(field.default, bool) else str(field.default)


def settings_from(flags: dict[str, Any], config: Path | None) -> Settings:
    """The settings of one server.

    Raises:
        CommandError: A value is wrong, a name unknown, or the file cannot be read.
    """
    try:
        return load_settings(config=config, **flags)
    except SettingsError as error:
        raise CommandError(str(error), code=ExitCode.USAGE) from error

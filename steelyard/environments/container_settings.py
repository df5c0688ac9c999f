"""The settings of our server as environment variables of an endpoint's container, checked before it is deployed.

The server reads them when its container starts, on the other side of a deployment; one that it does not take stops it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from steelyard_runtime.settings import PREFIX, Settings, instead_of, shown


class _GivenOnly(Settings):
    """The server's settings without what the environment of this process says about them."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - pydantic-settings' signature
        init_settings: PydanticBaseSettingsSource,
        *_: Any,
        **__: Any,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)


def setting_faults(variables: Mapping[str, str]) -> Iterator[str]:
    """A sentence for each ``STEELYARD_*`` variable that is no setting, and for each value that a setting cannot have.

    Variables without the prefix are not the server's, and are not looked at.
    """
    given: dict[str, Any] = {
        name.removeprefix(PREFIX).lower(): value for name, value in variables.items() if name.startswith(PREFIX)
    }
    unknown = given.keys() - Settings.model_fields.keys()
    known = [_variable(name) for name in Settings.model_fields]
    for name in sorted(unknown):
        yield (
            f"environment has {_variable(name)}, which is no setting of the server; "
            f"{instead_of(_variable(name), known, 'remove it')}"
        )
    try:
        _GivenOnly(**{name: value for name, value in given.items() if name not in unknown})
    except ValidationError as error:
        for fault in error.errors(include_url=False):
            yield _said(fault)


def _variable(setting: str) -> str:
    return PREFIX + setting.upper()


def _said(fault: ErrorDetails) -> str:
    said = fault["msg"].removeprefix("Value error, ")
    if not fault["loc"]:
        return f"environment: {said}"
    return f"environment has {_variable(str(fault['loc'][0]))} = {shown(fault['input'])}: {said}"

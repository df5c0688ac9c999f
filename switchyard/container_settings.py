"""The settings of our server as environment variables of an endpoint's container, checked before it is deployed.

The server reads them when its container starts, on the other side of a deployment; one that it does not take stops it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from switchyard_runtime.settings import PREFIX, Settings

_LONGEST_SHOWN = 80


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
    """A sentence for each ``SWITCHYARD_*`` variable that is no setting, and for each value that a setting cannot have.

    Variables without the prefix are not the server's, and are not looked at.
    """
    given: dict[str, Any] = {
        name.removeprefix(PREFIX).lower(): value for name, value in variables.items() if name.startswith(PREFIX)
    }
    unknown = given.keys() - Settings.model_fields.keys()
    for name in sorted(unknown):
        yield f"environment has {_variable(name)}, which is no setting of the server; {_instead(name)}"
    try:
        _GivenOnly(**{name: value for name, value in given.items() if name not in unknown})
    except ValidationError as error:
        for fault in error.errors(include_url=False):
            yield _said(fault)


def _variable(setting: str) -> str:
    return PREFIX + setting.upper()


def _instead(unknown: str) -> str:
    # Without the prefix, which would make any two names alike.
    close = difflib.get_close_matches(unknown, Settings.model_fields, n=1)
    return f"did you mean {_variable(close[0])}?" if close else "remove it; docs/reference/settings.md has all settings"


def _said(fault: ErrorDetails) -> str:
    said = fault["msg"].removeprefix("Value error, ")
    if not fault["loc"]:
        return f"environment: {said}"
    shown = repr(fault["input"])
    shown = shown if len(shown) <= _LONGEST_SHOWN else shown[: _LONGEST_SHOWN - 3] + "..."
    return f"environment has {_variable(str(fault['loc'][0]))} = {shown}: {said}"

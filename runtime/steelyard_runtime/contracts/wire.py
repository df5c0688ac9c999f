"""The parts that answers are made of. Their types are also their JSON schemas in the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict

Count = Annotated[int, Field(ge=0)]
Milliseconds = Annotated[float, Field(ge=0)]
Probability = Annotated[float, Field(ge=0, le=1)]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Open = dict[str, Any]
"""An object whose fields no contract fixes."""


@with_config(ConfigDict(extra="forbid"))
class Wire(TypedDict):
    """Base of every object in an answer: it has the declared fields and no others."""

"""Strict TOML and JSON files: a value is of its field's type, or it is refused."""

from __future__ import annotations

import dataclasses
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, cast, get_type_hints

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler
from pydantic import Strict as Strictly
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema

from steelyard_base.exit_codes import CommandError, ExitCode
from steelyard_runtime.strict_toml import parse as parse_toml
from steelyard_runtime.whole_files import read_whole

MOST_BYTES = 1 << 20
"""Bytes of a TOML file."""

_Item = TypeVar("_Item")
_Enum = TypeVar("_Enum", bound=StrEnum)


class Strict(BaseModel):
    """A part of a file that is read strictly: no unknown field, no change afterwards, no value of another type.

    Without ``strict``, pydantic takes ``true`` and ``"1"`` for 1, and ``"yes"`` for true.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Table:
    """The base of dataclasses that a file holds and code makes as well; read as strictly as a :class:`Strict`.

    A dataclass does not check what code gives it, so rules that go beyond the types are functions.
    """

    __pydantic_config__: ClassVar[ConfigDict] = Strict.model_config

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        # A strict dataclass is only ever made of an instance; its fields stay strict.
        cast(dict[str, Any], handler.resolve_ref_schema(schema))["strict"] = False
        return schema


def fields_of(kind: type) -> dict[str, FieldInfo]:
    """Return the fields of a :class:`Strict` or a :class:`Table` by name."""
    if issubclass(kind, BaseModel):
        return dict(kind.model_fields)
    types = get_type_hints(kind, include_extras=True)
    declared = dataclasses.fields(cast(Any, kind))
    return {each.name: FieldInfo.from_annotated_attribute(types[each.name], each) for each in declared}


# TOML and JSON have no types of their own for these. What they hold is as strict as everything else.
Listed = Annotated[tuple[_Item, ...], Strictly(False)]
"""A tuple, from a list."""

Named = Annotated[_Enum, Strictly(False)]
"""A member of an enumeration, from its value."""

FolderPath = Annotated[Path, Strictly(False)]
"""A path, from a string."""


def read_toml(path: Path, *, what: str, code: ExitCode) -> dict[str, Any]:
    """Read a TOML file.

    Args:
        path: Of the file.
        what: What the message calls it.
        code: Of the command that needs it.

    Raises:
        CommandError: It cannot be read, or is not TOML.
    """
    try:
        return parse_toml(read_whole(path, most=MOST_BYTES, pipes=True).decode())
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise CommandError(f"cannot read {what} {path}: {why}", code=code) from error

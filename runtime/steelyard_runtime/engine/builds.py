"""The builds of llama.cpp that are known: ``abi.toml``."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

TABLE = Path(__file__).resolve().parent / "abi.toml"
BUILD_VARIABLE = "LLAMA_CPP_BUILD"
"""Set in an image, to the build of llama.cpp that its base has."""
BUNDLED = "bundled"
"""The build where the variable is not set: the library that pip built with llama-cpp-python."""


class AbiError(RuntimeError):
    """The engine's declarations and the library do not belong together, or it is not known that they do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """A row of the table, with what is known of its interface.

    Attributes:
        llama_cpp: Build of llama.cpp, such as ``b10433``, or ``bundled``.
        name: The build's name for people and for what depends on it; a bundled library has that of its package.
        interface: Name of the interface: the first build that was read with these structs.
        header_sha256: Hash of the build's ``include/llama.h``.
        commit: Its commit, 40 hexadecimal digits; None where that is not known.
        llama_version: What ``llama_version()`` answers; None where that is not known.
        ggml_version: What ``ggml_version()`` answers; None where that is not known.
        structs: Members of each struct that the engine declares, with their types, in order.
        defaults: The library's default values, by struct and member; empty where nobody measured them.
        calls: The functions that the engine calls, with their results and parameters.
        source: How one knows.
    """

    llama_cpp: str
    name: str
    interface: str
    header_sha256: str
    commit: str | None
    llama_version: str | None
    ggml_version: str | None
    structs: Mapping[str, str]
    defaults: Mapping[str, Mapping[str, int | float | bool]]
    calls: Mapping[str, str]
    source: str


@cache
def table() -> tuple[Build, ...]:
    """All builds of ``abi.toml``."""
    known = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    rows = []
    for row in known["build"]:
        interface = known["interface"][row["interface"]]
        rows.append(
            Build(
                llama_cpp=row["llama_cpp"],
                name=row.get("name", row["llama_cpp"]),
                interface=row["interface"],
                header_sha256=row["header_sha256"],
                commit=row.get("commit"),
                llama_version=row.get("llama_version"),
                ggml_version=row.get("ggml_version"),
                structs=interface["structs"],
                defaults={
                    "llama_model_params": interface.get("model_defaults", {}),
                    "llama_context_params": interface.get("context_defaults", {}),
                },
                calls=known["calls"],
                source=row["source"],
            )
        )
    return tuple(rows)


def find(llama_cpp: str) -> Build:
    """The row of a build of llama.cpp.

    Raises:
        AbiError: The table has none.
    """
    for build in table():
        if build.llama_cpp == llama_cpp:
            return build
    raise AbiError(
        f"llama.cpp {llama_cpp} is not a build that is known; {TABLE.name} has "
        f"{', '.join(build.llama_cpp for build in table())}. Add it from its own llama.h: "
        f"python scripts/read_llama_header.py llama.h --llama-cpp {llama_cpp} --write"
    )


def current() -> Build:
    """The build that this process is told to have: ``LLAMA_CPP_BUILD``, or the bundled one.

    Raises:
        AbiError: The table has none of that name.
    """
    return find(os.environ.get(BUILD_VARIABLE) or BUNDLED)


def members(declared: str) -> list[tuple[str, str]]:
    """Split the members of a struct, or the parameters of a function, into names and types.

    >>> members("n_tokens: int32, token: int32*")
    [('n_tokens', 'int32'), ('token', 'int32*')]
    """
    pairs = (part.partition(": ") for part in declared.split(", ") if part)
    return [(name, kind) for name, _, kind in pairs]


def signature(declared: str) -> tuple[str, list[str]]:
    """Split a function's declaration into its result and its parameters' types.

    >>> signature("bool(mem: void*, p0: int32)")
    ('bool', ['void*', 'int32'])
    """
    match = re.fullmatch(r"([^()]+)\(([^()]*)\)", declared)
    if match is None:
        raise AbiError(f"{declared!r} of {TABLE.name} is not a function's declaration")
    return match.group(1), [kind for _, kind in members(match.group(2))]

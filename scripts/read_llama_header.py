"""Read a llama.h and say how the engine has to declare its structs: rows for ``engine/abi.toml``.

    python scripts/read_llama_header.py LLAMA_H --llama-cpp b12345 [--source WORDS] [--write]

Reads exactly what the engine uses, and strictly: a struct, a member or a type that is not understood is refused, and so
is a function that the engine calls and that the header lacks or declares in another way. ``--write`` adds the build to
the table, with an interface of its own where no build before it has the same.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

from steelyard_runtime.engine.builds import TABLE

NUMBERS = {
    "bool": "bool",
    "double": "float64",
    "float": "float32",
    "int": "int32",
    "size_t": "uint64",
    **{f"{sign}int{bits}_t": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
CALLBACKS = ("ggml_abort_callback", "ggml_backend_sched_eval_callback", "ggml_log_callback")
"""Types of ggml's headers that are functions."""
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"


class HeaderError(Exception):
    """The header cannot be used; the message says what in it."""


def main(words: list[str] | None = None) -> int:
    """Read, print or write; returns an exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("header", type=Path, help="llama.cpp's include/llama.h, of the base's own commit")
    parser.add_argument("--llama-cpp", required=True, help="the build, such as b10964")
    parser.add_argument("--source", default="read from the build's own header", help="how one knows, for the table")
    parser.add_argument("--write", action="store_true", help="add it to engine/abi.toml")
    given = parser.parse_args(words)
    try:
        if not re.fullmatch(r"b[0-9]+", given.llama_cpp):
            raise HeaderError(f"{given.llama_cpp!r} is not a build of llama.cpp: write it like b10964")
        text = given.header.read_text(encoding="utf-8")
        table = TABLE.read_text(encoding="utf-8")
        rows = rows_for(text, table, llama_cpp=given.llama_cpp, source=given.source)
    except (HeaderError, OSError) as error:
        sys.stderr.write(f"{given.header} is refused: {error}\n")
        return 1
    if given.write:
        TABLE.write_text(table + rows, encoding="utf-8")
    sys.stdout.write(rows)
    return 0


def rows_for(header: str, table: str, *, llama_cpp: str, source: str) -> str:
    """The lines that add a build to the table.

    Raises:
        HeaderError: The header does not fit the engine, or the table has the build.
    """
    known = tomllib.loads(table)
    if any(row["llama_cpp"] == llama_cpp for row in known["build"]):
        raise HeaderError(f"{TABLE.name} has {llama_cpp} already")
    found = structs(header, next(iter(known["interface"].values()))["structs"])
    check_calls(header, known["calls"], found)
    same = next((name for name, each in known["interface"].items() if each["structs"] == found), None)
    rows = f"""
[[build]]
llama_cpp = {json.dumps(llama_cpp)}
interface = {json.dumps(same or llama_cpp)}
header_sha256 = "{hashlib.sha256(header.encode()).hexdigest()}"
source = {json.dumps(source)}
"""
    if same is None:
        rows += f'\n[interface."{llama_cpp}".structs]\n'
        rows += "".join(f"{name} = {json.dumps(members)}\n" for name, members in found.items())
    return rows


def structs(header: str, names: Mapping[str, object]) -> dict[str, str]:
    """The members of each struct with their types, in order.

    >>> structs("typedef int32_t llama_token; struct a { llama_token * b, c; enum d e; };", {"a": ""})
    {'a': 'b: int32*, c: int32, e: int32'}

    Raises:
        HeaderError: One is missing or has a member that is not understood.
    """
    text = _COMMENT.sub(" ", header)
    types = _types(text, names)
    return {name: ", ".join(_members(name, text, types)) for name in names}


def check_calls(header: str, wanted: Mapping[str, str], known: Mapping[str, object]) -> None:
    """Refuse a header that declares what the engine calls in another way.

    Raises:
        HeaderError: The message names every function that is missing or changed.
    """
    text = _COMMENT.sub(" ", header)
    types = _types(text, known)
    faults = []
    for name, signature in wanted.items():
        if (found := _signature(name, text, types)) != signature:
            faults.append(f"{name} is {found or 'missing'}, and the engine calls {signature}")
    if faults:
        raise HeaderError("; ".join(faults))


def _types(text: str, structs_: Mapping[str, object]) -> dict[str, str]:
    """Kinds by the name of a type."""
    types = dict(NUMBERS)
    types |= {name: name for name in structs_}
    types |= {name: name for name in CALLBACKS}
    types |= dict.fromkeys(re.findall(rf"typedef [^;{{}}()]*\(\s*\*\s*({_NAME})\s*\)", text), "void*")
    for old, stars, new in re.findall(rf"typedef\s+((?:struct\s+)?{_NAME})\s*(\**)\s*({_NAME})\s*;", text):
        if stars:
            types[new] = "void*"
        elif old in NUMBERS:
            types[new] = NUMBERS[old]
    return types


def _members(struct: str, text: str, types: Mapping[str, str]) -> list[str]:
    body = re.search(rf"struct\s+{struct}\s*\{{([^{{}}]*)\}}", text)
    if body is None:
        raise HeaderError(f"there is no struct {struct}, or another lies within it")
    members = []
    for line in filter(None, map(str.strip, body.group(1).split(";"))):
        first, *others = [part.strip() for part in line.split(",")]
        kind, name = _declared(first, types, where=struct)
        members.append(f"{name}: {kind}")
        for other in others:
            if not re.fullmatch(_NAME, other):
                raise HeaderError(f"the member {line!r} of {struct} is not understood")
            members.append(f"{other}: {kind.rstrip('*')}")
    return members


def _signature(function: str, text: str, types: Mapping[str, str]) -> str:
    """Return how a function is declared, "" where it is not."""
    match = re.search(rf"LLAMA_API\s+([^;(){{}}]*?)\b{function}\s*\(([^()]*)\)\s*;", text)
    if match is None:
        return ""
    result, parameters = match.groups()
    kind, _ = _declared(f"{result} result", types, where=function)
    given = [part.strip() for part in parameters.split(",") if part.strip() not in ("", "void")]
    named = [_declared(part, types, where=function) for part in given]
    return f"{kind}({', '.join(f'{name}: {each}' for each, name in named)})"


def _declared(words: str, types: Mapping[str, str], *, where: str) -> tuple[str, str]:
    """Return kind and name of a member or a parameter; what lies behind a pointer to an unknown thing is not asked."""
    match = re.fullmatch(rf"\s*((?:{_NAME}\s+)*?{_NAME})\s*(\**)\s*({_NAME})\s*", words.replace("* const", "*"))
    if match is None:
        raise HeaderError(f"{words!r} of {where} is not understood")
    base, stars, name = match.groups()
    parts = [part for part in base.split() if part != "const"]
    if parts == ["char"] and stars == "*":
        return "string", name
    if parts == ["void"]:
        return ("void*" if stars else "void"), name
    if parts[0] == "enum" and len(parts) == 2:
        return "int32" + stars, name
    kind = types.get(parts[-1]) if parts[0] == "struct" or len(parts) == 1 else None
    if kind is None and not stars:
        raise HeaderError(f"the type of {words!r} of {where} is not known")
    return ("void*" if kind in (None, "void*") and stars else f"{kind}{stars}"), name


if __name__ == "__main__":
    sys.exit(main())

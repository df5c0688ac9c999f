"""JSON as RFC 8259 and I-JSON want it: one reading for every document, or a clear error.

``json.loads`` accepts NaN, duplicate keys, lone surrogates and any nesting. Here each of them is refused, in time
linear in the size of the body, and nesting is measured before anything recurses.
"""

from __future__ import annotations

import json
import math
import re
from itertools import accumulate
from typing import Any, NoReturn

from steelyard_runtime.errors import Kind, Problem

MAX_INTEGER_DIGITS = 4300
"""Longest integer literal; converting longer ones takes quadratic time. Python's own default limit."""

_SHOWN = 80
_BOM = b"\xef\xbb\xbf"
_BRACKETS_AND_QUOTES = b'[]{}"'
_ALL_BYTES = bytes(range(256))
_NOT_STRUCTURE = bytes(byte for byte in _ALL_BYTES if byte not in _BRACKETS_AND_QUOTES)
# Signed steps of the depth: 1 for an opening bracket, -1 (255 as a signed byte) for a closing one.
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NUMERIC_CLASSES = bytes.maketrans(
    _ALL_BYTES, bytes(0x64 if 48 <= byte <= 57 else 0x65 if byte in b"eE" else 0x20 for byte in _ALL_BYTES)
)
_STRING_OR_BRACKET = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[{]|[\]}]', re.DOTALL)
_STRING_OR_CONSTANT = re.compile(r'"(?:[^"\\]|\\.)*+"|(NaN|-?Infinity)', re.DOTALL)
_MAYBE_SURROGATE = re.compile(rb"\\u[dD][89abcdefABCDEF]")
_ESCAPE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"  # a pair
    rb"|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"  # half of one
    rb"|\\.",
    re.DOTALL,
)


def parse(body: bytes, *, max_depth: int) -> Any:
    """The value of a JSON document.

    Args:
        body: The document, UTF-8 without a byte order mark.
        max_depth: Most arrays and objects inside each other; ``[]`` has depth 1. At most 512, which stays within
            Python's recursion limit.

    Raises:
        Problem: ``MALFORMED_JSON``; the message says what is wrong and where.
    """
    text = _decode(body)
    if not text.strip(" \t\n\r"):
        _refuse("The request has an empty body; send a JSON object")
    _check_depth(body, max_depth)
    _check_surrogates(body)
    classes = body.translate(_NUMERIC_CLASSES)
    # Only a number with an exponent or with hundreds of digits can overflow: without one the faster parser will do.
    may_overflow = b"de" in classes or b"d" * 300 in classes
    try:
        return json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=lambda name: _refuse_constant(name, text),
            parse_float=_finite if may_overflow else None,
            parse_int=_integer if b"d" * MAX_INTEGER_DIGITS in classes else None,
        )
    except json.JSONDecodeError as error:
        _refuse(f"The body is not valid JSON: {error.msg} at {_place(text, error.pos)}")


def _refuse(message: str) -> NoReturn:
    raise Problem(Kind.MALFORMED_JSON, message + ".") from None


def _decode(body: bytes) -> str:
    if body.startswith(_BOM):
        _refuse("The body starts with a byte order mark (byte offset 0); send UTF-8 without one")
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        _refuse(f"The body is not valid UTF-8: byte 0x{body[error.start]:02x} at byte offset {error.start}")


def _check_depth(body: bytes, max_depth: int) -> None:
    if body.count(b"[") + body.count(b"{") <= max_depth:
        return
    # Without escapes every quote delimits a string. Adjacent quotes can go, since that changes no bracket's side.
    bare = body.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in body else body
    structure = bare.translate(None, _NOT_STRUCTURE).replace(b'""', b"")
    if b'"' in structure:
        structure = b"".join(structure.split(b'"')[::2])
    steps = memoryview(structure.translate(_STEPS)).cast("b")
    if max(accumulate(steps), default=0) <= max_depth:
        return
    _refuse(
        f"Arrays and objects are nested more than {max_depth} deep at byte offset {_too_deep_at(body, max_depth)}; "
        f"the limit is {max_depth}"
    )


def _too_deep_at(body: bytes, max_depth: int) -> int:
    """Byte offset of the bracket that goes one level too deep."""
    depth = 0
    offset = 0
    for match in _STRING_OR_BRACKET.finditer(body):
        offset = match.start()
        first = body[offset]
        depth += 1 if first in b"[{" else -1 if first in b"]}" else 0
        if depth > max_depth:
            break
    return offset


def _check_surrogates(body: bytes) -> None:
    if _MAYBE_SURROGATE.search(body) is None:
        return
    for match in _ESCAPE.finditer(body):
        if match[1] is not None:
            _refuse(
                f"The escape {match[1].decode()} at byte offset {match.start()} is half of a surrogate pair and "
                "stands for no character; send both halves, or the character itself"
            )


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                _refuse(f"The key {_shown(key)} appears more than once in the same object; send it once")
            seen.add(key)
    return value


def _refuse_constant(name: str, text: str) -> NoReturn:
    start = next((match.start() for match in _STRING_OR_CONSTANT.finditer(text) if match[1]), 0)
    _refuse(f"{name} at {_place(text, start)} is not JSON; send a finite number or null")


def _place(text: str, position: int) -> str:
    line = text.count("\n", 0, position) + 1
    column = position - text.rfind("\n", 0, position)
    return f"line {line}, column {column} (byte offset {len(text[:position].encode())})"


def _finite(literal: str) -> float:
    value = float(literal)
    if not math.isfinite(value):
        _refuse(f"The number {_shorten(literal)} is too large for a double; the largest is about 1.8e308")
    return value


def _integer(literal: str) -> int:
    digits = len(literal.lstrip("-"))
    if digits > MAX_INTEGER_DIGITS:
        _refuse(f"The integer {_shorten(literal)} has {digits} digits; {MAX_INTEGER_DIGITS} are allowed")
    return int(literal)


def _shorten(text: str) -> str:
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def _shown(key: str) -> str:
    return json.dumps(_shorten(key), ensure_ascii=False)

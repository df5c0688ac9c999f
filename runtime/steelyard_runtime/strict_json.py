"""JSON as RFC 8259 and I-JSON want it: one reading for every document, or a clear error.

``json.loads`` accepts NaN, duplicate keys, lone surrogates and any nesting. Here each of them is refused, in time
linear in the size of the body, and nesting is measured before anything recurses.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from steelyard_runtime.errors import Kind, Problem
from steelyard_runtime.settings import MAX_INTEGER_DIGITS

_SHOWN = 80
_BOM = b"\xef\xbb\xbf"
_QUOTE = 0x22
_ALL_BYTES = bytes(range(256))
# Signed steps of the depth.
_STEPS = np.zeros(256, np.int32)
_STEPS[[*b"[{"]] = 1
_STEPS[[*b"]}"]] = -1
BLOCK = 256 << 10
"""Bytes that are looked at in one step."""
_NUMERIC_CLASSES = bytes.maketrans(
    _ALL_BYTES, bytes(0x64 if 48 <= byte <= 57 else 0x65 if byte in b"eE" else 0x20 for byte in _ALL_BYTES)
)
_STRING_OR_CONSTANT = re.compile(r'"(?:[^"\\]|\\.)*+"|(NaN|-?Infinity)', re.DOTALL)
_HALF_SURROGATE = re.compile(
    rb"\\u[dD](?:[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD])[c-fC-F][0-9a-fA-F]{2})"
)


def parse(body: bytes, *, max_depth: int, max_structure: int) -> Any:
    """Return the value of a JSON document.

    Args:
        body: The document, UTF-8 without a byte order mark.
        max_depth: Most arrays and objects inside each other; ``[]`` has depth 1. At most 512, which stays within
            Python's recursion limit.
        max_structure: Most structural characters (``[ ] { } : ,`` outside of strings). They bound how many values the
            document has, and so how long the parser and everything that walks the value hold the interpreter.

    Raises:
        Problem: ``MALFORMED_JSON``; the message says what is wrong and where. ``BODY_TOO_LARGE`` for more structural
            characters than ``max_structure``.
    """
    if not body.strip(b" \t\n\r"):
        _refuse("The request has an empty body; send a JSON object")
    # Without escapes every quote delimits a string; the other characters keep their places.
    bare = body.replace(b"\\\\", b"  ").replace(b'\\"', b"  ") if b"\\" in body else body
    _check_structure(bare, max_depth=max_depth, max_structure=max_structure)
    _check_surrogates(bare)
    classes = bare.translate(_NUMERIC_CLASSES)
    # Only a number with an exponent or with hundreds of digits can overflow: without one the faster parser will do.
    long_numbers = b"d" * 300 in classes
    may_overflow = long_numbers or b"de" in classes
    del bare, classes  # as large as the body each
    text = _decode(body)
    try:
        return json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=lambda name: _refuse_constant(name, text),
            parse_float=_finite if may_overflow else None,
            parse_int=_integer if long_numbers else None,
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


def _check_structure(bare: bytes, *, max_depth: int, max_structure: int) -> None:
    """Bound structural characters and depth before anything recurses or is allocated for a value.

    Works block by block in numpy, which gives way to other threads.
    """
    counted = depth = 0
    inside = False
    for start in range(0, len(bare), BLOCK):
        block = np.frombuffer(bare, np.uint8, count=min(BLOCK, len(bare) - start), offset=start)
        in_string = np.logical_xor.accumulate(block == _QUOTE) ^ inside
        inside = bool(in_string[-1])
        brackets, separators = _structural(block, ~in_string)
        counted += int(np.count_nonzero(brackets)) + int(np.count_nonzero(separators))
        if counted > max_structure:
            raise Problem(
                Kind.BODY_TOO_LARGE,
                f"The body has more than {max_structure} of the characters [ ] {{ }} : , outside of strings, and "
                f"{max_structure} are allowed: send fewer values in one request, or raise max_json_structure on the "
                "server.",
                counts={"limit": max_structure},
            )
        places = np.flatnonzero(brackets)
        if not len(places):
            continue
        depths = depth + np.cumsum(_STEPS[block[places]])
        depth = int(depths[-1])
        if depths.max() > max_depth:
            offset = start + int(places[np.argmax(depths > max_depth)])
            _refuse(
                f"Arrays and objects are nested more than {max_depth} deep at byte offset {offset}; the limit is "
                f"{max_depth}"
            )


def _structural(
    block: npt.NDArray[np.uint8], outside: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Find ``[ ] { }``, and ``: ,``, outside of strings; comparing is seven times as fast as looking each byte up."""
    folded = block | 0x20  # of all bytes, only [ and ] become { and }
    return ((folded == 0x7B) | (folded == 0x7D)) & outside, ((block == 0x3A) | (block == 0x2C)) & outside


def _check_surrogates(bare: bytes) -> None:
    match = _HALF_SURROGATE.search(bare)
    if match is not None:
        _refuse(
            f"The escape {match[0].decode()} at byte offset {match.start()} is half of a surrogate pair and "
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

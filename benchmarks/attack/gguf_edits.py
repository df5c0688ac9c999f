"""Edits of a GGUF file's head: the same tensors behind other metadata, as a hostile or broken file would have it."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
INT32_TENSOR = 26
DEFAULT_ALIGNMENT = 32


@dataclass
class Entry:
    """One metadata entry: its key and the bytes of its value, after the type's number."""

    key: str
    type: int
    value: bytes


@dataclass
class TensorInfo:
    """The description of one tensor."""

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int


@dataclass
class Head:
    """Everything before the tensors' data."""

    version: int
    entries: list[Entry]
    tensors: list[TensorInfo]

    def find(self, ending: str) -> Entry:
        """The entry whose key ends so."""
        return next(entry for entry in self.entries if entry.key.endswith(ending))


Edit = Callable[[Head], None]


def write_edited(model: Path, edited: Path, edit: Edit) -> None:
    """Copy ``model`` to ``edited`` with the head that ``edit`` leaves."""
    with model.open("rb") as source:
        head = _read(source)
        alignment = next((_unpack("I", e.value) for e in head.entries if e.key == "general.alignment"), 32)
        source.seek(-source.tell() % alignment, 1)
        edit(head)
        written = _written(head)
        with edited.open("wb") as target:
            target.write(written + b"\0" * (-len(written) % alignment))
            shutil.copyfileobj(source, target, 16 << 20)


def text(value: str) -> bytes:
    """A string's bytes in a GGUF file."""
    encoded = value.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _unpack(code: str, data: bytes) -> Any:
    return struct.unpack(f"<{code}", data)[0]


def _read(source: Any) -> Head:
    def number(code: str) -> Any:
        return _unpack(code, source.read(struct.calcsize(f"<{code}")))

    def string() -> bytes:
        return bytes(source.read(number("Q")))

    def value(type_: int) -> bytes:
        if type_ in SCALARS:
            return bytes(source.read(struct.calcsize(f"<{SCALARS[type_]}")))
        if type_ == STRING:
            content = string()
            return struct.pack("<Q", len(content)) + content
        part, count = number("I"), number("Q")
        if part in SCALARS:
            content = source.read(count * struct.calcsize(f"<{SCALARS[part]}"))
        else:
            content = b"".join(value(part) for _ in range(count))
        return struct.pack("<IQ", part, count) + content

    source.read(4)
    version, tensors, entries = number("I"), number("Q"), number("Q")
    read_entries = []
    for _ in range(entries):
        key, type_ = string().decode(), number("I")
        read_entries.append(Entry(key, type_, value(type_)))
    infos = []
    for _ in range(tensors):
        name = string().decode()
        shape = tuple(number("Q") for _ in range(number("I")))
        infos.append(TensorInfo(name, shape, number("I"), number("Q")))
    return Head(version, read_entries, infos)


def _written(head: Head) -> bytes:
    parts = [b"GGUF", struct.pack("<IQQ", head.version, len(head.tensors), len(head.entries))]
    for entry in head.entries:
        parts += [text(entry.key), struct.pack("<I", entry.type), entry.value]
    for info in head.tensors:
        shape = struct.pack(f"<I{len(info.shape)}Q", len(info.shape), *info.shape)
        parts += [text(info.name), shape, struct.pack("<IQ", info.type, info.offset)]
    return b"".join(parts)

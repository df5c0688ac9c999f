"""The header of a GGUF file: metadata, tensor list and where the tensor data must end. Standard library only.

A header is written by strangers, so everything is bounded: the counts, the text kept, the strings skipped and the
length of the header itself. Arrays (a vocabulary has hundreds of thousands of entries) are measured, never kept.
Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from steelyard_runtime.whole_files import without_waiting

Scalar = int | float | bool | str

MAX_HEADER_BYTES = 1 << 28
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 17
MAX_NAME_BYTES = 1 << 16
MAX_KEPT_STRING_BYTES = 1 << 16
MAX_KEPT_BYTES = 1 << 23
MAX_ARRAY_STRINGS = 1 << 22
MAX_DIMENSIONS = 4

_MAGIC = b"GGUF"
_LFS_MAGIC = b"version https://git-lfs"
_VERSIONS = (2, 3)
_WINDOW_BYTES = 1 << 20
_SMALLEST_PAIR_BYTES = 8 + 1 + 4 + 1
_SMALLEST_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8
_DEFAULT_ALIGNMENT = 32

_BOOL, _STRING, _ARRAY = 7, 8, 9
_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d", _BOOL: "?"}
_SCALARS = {number: struct.Struct(f"<{letter}") for number, letter in _FORMATS.items()}
_U32 = _SCALARS[4]
_U64 = _SCALARS[10]

# ggml tensor type -> (elements per block, bytes per block). A type that is not here has no known size, see TensorInfo.
_BLOCKS = {
    0: (1, 4),  # F32
    1: (1, 2),  # F16
    2: (32, 18),  # Q4_0
    3: (32, 20),  # Q4_1
    6: (32, 22),  # Q5_0
    7: (32, 24),  # Q5_1
    8: (32, 34),  # Q8_0
    9: (32, 36),  # Q8_1
    10: (256, 84),  # Q2_K
    11: (256, 110),  # Q3_K
    12: (256, 144),  # Q4_K
    13: (256, 176),  # Q5_K
    14: (256, 210),  # Q6_K
    15: (256, 292),  # Q8_K
    16: (256, 66),  # IQ2_XXS
    17: (256, 74),  # IQ2_XS
    18: (256, 98),  # IQ3_XXS
    19: (256, 50),  # IQ1_S
    20: (32, 18),  # IQ4_NL
    21: (256, 110),  # IQ3_S
    22: (256, 82),  # IQ2_S
    23: (256, 136),  # IQ4_XS
    24: (1, 1),  # I8
    25: (1, 2),  # I16
    26: (1, 4),  # I32
    27: (1, 8),  # I64
    28: (1, 8),  # F64
    29: (256, 56),  # IQ1_M
    30: (1, 2),  # BF16
    34: (256, 54),  # TQ1_0
    35: (256, 66),  # TQ2_0
    39: (32, 17),  # MXFP4
    40: (64, 36),  # NVFP4
    41: (128, 18),  # Q1_0
}


class GgufError(ValueError):
    """A file that is not a readable GGUF file; the message names the file, the offset and what is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """One entry of the tensor list.

    Attributes:
        name: As llama.cpp looks it up.
        shape: Elements per dimension, the fastest-varying first, as stored; up to four.
        type: ggml's number of the element type.
        offset: Bytes from the start of the tensor data.
        size_bytes: Bytes of the data, or None for a type that this reader does not know.
    """

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int
    size_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The header of a GGUF file.

    Attributes:
        path: The file.
        version: GGUF version, 2 or 3.
        file_bytes: Size of the file.
        values: Scalars, and strings of at most ``MAX_KEPT_STRING_BYTES``. Bytes that are not UTF-8 read as U+FFFD.
        lengths: Elements of each array, and bytes of each longer string; their contents are not kept.
        tensors: The tensor list, in the file's order.
        data_offset: Where the tensor data starts, in bytes from the start of the file.
        expected_bytes: The least size of a complete file. A tensor of an unknown type counts as empty.
    """

    path: Path
    version: int
    file_bytes: int
    values: Mapping[str, Scalar]
    lengths: Mapping[str, int]
    tensors: tuple[TensorInfo, ...]
    data_offset: int
    expected_bytes: int

    @property
    def truncated(self) -> bool:
        """Tell whether the file ends before its tensor data does."""
        return self.file_bytes < self.expected_bytes


def read_header(path: Path) -> Header:
    """Read the header of ``path``; at most ``MAX_HEADER_BYTES`` are read, and a few megabytes kept.

    A file that ends after its header but before its tensor data is read, with ``Header.truncated`` set.

    Raises:
        GgufError: The file cannot be read, is no GGUF file, or its header is broken or beyond this reader's bounds.
    """
    try:
        with open(path, "rb", buffering=0, opener=without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise GgufError(f"{path} is not a regular file")
            return _Reader(path, file, status.st_size).header()
    except OSError as error:
        raise GgufError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        if isinstance(error, GgufError):
            raise
        raise GgufError(f"{path!r} cannot be opened: {error}") from error


class _Reader:
    """A cursor over the file that reads forward in windows and never past ``limit``."""

    def __init__(self, path: Path, file: BinaryIO, file_bytes: int) -> None:
        self._path = path
        self._file = file
        self._file_bytes = file_bytes
        self._limit = min(file_bytes, MAX_HEADER_BYTES)
        self._window = b""
        self._window_start = 0
        self._position = 0
        self._kept_bytes = 0
        self._array_strings = 0

    def header(self) -> Header:
        version = self._version()
        tensor_count = self._count("tensors", limit=MAX_TENSORS, least_bytes=_SMALLEST_TENSOR_BYTES)
        key_count = self._count("metadata keys", limit=MAX_KEYS, least_bytes=_SMALLEST_PAIR_BYTES)
        values: dict[str, Scalar] = {}
        lengths: dict[str, int] = {}
        for _ in range(key_count):
            self._pair(values, lengths)
        alignment = self._alignment(values)
        tensors: dict[str, TensorInfo] = {}
        for _ in range(tensor_count):
            tensor = self._tensor(alignment)
            if tensor.name in tensors:
                raise self._error(f"the tensor {tensor.name!r} is listed twice")
            tensors[tensor.name] = tensor
        header_end = self._position
        data_offset = -(-header_end // alignment) * alignment
        ends = (data_offset + tensor.offset + (tensor.size_bytes or 0) for tensor in tensors.values())
        return Header(
            path=self._path,
            version=version,
            file_bytes=self._file_bytes,
            values=values,
            lengths=lengths,
            tensors=tuple(tensors.values()),
            data_offset=data_offset,
            expected_bytes=max(ends, default=header_end),
        )

    def _version(self) -> int:
        if self._file_bytes == 0:
            raise GgufError(f"{self._path} is empty (0 bytes)")
        start = self._read_window(0)[: len(_LFS_MAGIC)]
        if start == _LFS_MAGIC:
            raise GgufError(f"{self._path} is a Git LFS pointer, not the model itself; fetch it with 'git lfs pull'")
        if not start.startswith(_MAGIC):
            raise GgufError(
                f"{self._path} is not a GGUF file: at byte 0 it has {start[: len(_MAGIC)]!r} instead of {_MAGIC!r}"
            )
        self._position = len(_MAGIC)
        version: int = self._number(_U32, "the version")
        if version in _VERSIONS:
            return version
        if version & 0xFFFF == 0 and version != 0:
            raise self._error("the file is big-endian and only little-endian files can be served", back=4)
        raise self._error(f"GGUF version {version} is not supported, only 2 and 3; convert the model again", back=4)

    def _count(self, what: str, *, limit: int, least_bytes: int) -> int:
        count: int = self._number(_U64, f"the number of {what}")
        if count > limit:
            raise self._error(f"{count} {what} are declared and at most {limit} are accepted", back=8)
        if count * least_bytes > self._file_bytes - self._position:
            raise self._error(f"{count} {what} are declared, more than fit into {self._file_bytes} bytes", back=8)
        return count

    def _pair(self, values: dict[str, Scalar], lengths: dict[str, int]) -> None:
        key = self._name("a metadata key")
        if key in values or key in lengths:
            raise self._error(f"the metadata key {key!r} appears twice")
        type_number: int = self._number(_U32, f"the type of {key!r}")
        if type_number == _ARRAY:
            lengths[key] = self._skip_array(key)
        elif type_number == _STRING:
            length = self._length(f"the value of {key!r}")
            if length > MAX_KEPT_STRING_BYTES:
                self._position += length
                lengths[key] = length
            else:
                values[key] = self._take(length, key).decode("utf-8", errors="replace")
        elif type_number in _SCALARS:
            values[key] = self._number(_SCALARS[type_number], f"the value of {key!r}")
        else:
            raise self._error(f"{key!r} has the unknown value type {type_number}", back=4)

    def _skip_array(self, key: str) -> int:
        type_number: int = self._number(_U32, f"the element type of {key!r}")
        if type_number != _STRING and type_number not in _SCALARS:
            raise self._error(f"{key!r} is an array of the unsupported type {type_number}", back=4)
        count: int = self._number(_U64, f"the length of {key!r}")
        least_bytes = 8 if type_number == _STRING else _SCALARS[type_number].size
        if count * least_bytes > self._limit - self._position:
            raise self._error(f"{key!r} declares {count} elements, more than {self._bound()}", back=8)
        if type_number != _STRING:
            self._position += count * least_bytes
            return count
        self._array_strings += count
        if self._array_strings > MAX_ARRAY_STRINGS:
            raise self._error(f"more than {MAX_ARRAY_STRINGS} strings are in arrays up to {key!r}", back=8)
        self._skip_strings(count, key)
        return count

    def _skip_strings(self, count: int, key: str) -> None:
        # The one hot loop: local names and no call per string, for vocabularies of 262,144 entries.
        position, window, start = self._position, self._window, self._window_start
        unpack, last = _U64.unpack_from, start + len(self._window) - 8
        for _ in range(count):
            if position > last or position < start:
                window = self._read_window(position)
                start = self._window_start
                last = start + len(window) - 8
                if position > last:
                    self._position = position
                    raise self._ends(8, f"a string of {key!r}")
            position += 8 + unpack(window, position - start)[0]
        self._position = position
        if position > self._limit:
            raise self._error(f"a string of {key!r} reaches to byte {position}, beyond {self._bound()}")

    def _tensor(self, alignment: int) -> TensorInfo:
        name = self._name("a tensor's name")
        dimensions: int = self._number(_U32, f"the number of dimensions of {name!r}")
        if dimensions > MAX_DIMENSIONS:
            raise self._error(f"the tensor {name!r} has {dimensions} dimensions, more than {MAX_DIMENSIONS}", back=4)
        shape = tuple(self._number(_U64, f"the shape of {name!r}") for _ in range(dimensions))
        type_number: int = self._number(_U32, f"the type of {name!r}")
        size_bytes = self._tensor_bytes(name, shape, type_number)
        offset: int = self._number(_U64, f"the offset of {name!r}")
        if offset % alignment:
            raise self._error(f"the tensor {name!r} starts at {offset}, not a multiple of {alignment}", back=8)
        return TensorInfo(name=name, shape=shape, type=type_number, offset=offset, size_bytes=size_bytes)

    def _tensor_bytes(self, name: str, shape: tuple[int, ...], type_number: int) -> int | None:
        if type_number not in _BLOCKS:
            return None
        block_elements, block_bytes = _BLOCKS[type_number]
        row, *others = shape or (1,)
        if row % block_elements:
            raise self._error(f"the tensor {name!r} has rows of {row} elements, not a multiple of {block_elements}")
        size = row // block_elements * block_bytes
        for dimension in others:
            size *= dimension
        return size

    def _alignment(self, values: Mapping[str, Scalar]) -> int:
        alignment = values.get("general.alignment", _DEFAULT_ALIGNMENT)
        if type(alignment) is not int or alignment <= 0 or alignment & (alignment - 1):
            raise self._error(f"general.alignment is {alignment!r}, not a power of two")
        return alignment

    def _name(self, what: str) -> str:
        length = self._length(what)
        if length > MAX_NAME_BYTES:
            raise self._error(f"{what} has {length} bytes and at most {MAX_NAME_BYTES} are accepted", back=8)
        raw = self._take(length, what)
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self._error(f"{what} is not UTF-8", back=length) from error

    def _length(self, what: str) -> int:
        length: int = self._number(_U64, f"the length of {what}")
        if length > self._limit - self._position:
            raise self._error(f"{what} declares {length} bytes, more than {self._bound()}", back=8)
        return length

    def _take(self, length: int, what: str) -> bytes:
        self._kept_bytes += length
        if self._kept_bytes > MAX_KEPT_BYTES:
            raise self._error(f"names and short strings exceed {MAX_KEPT_BYTES} bytes, at {what}")
        return self._bytes(length, what)

    def _number(self, layout: struct.Struct, what: str) -> Any:
        return layout.unpack(self._bytes(layout.size, what))[0]

    def _bytes(self, length: int, what: str) -> bytes:
        start = self._position - self._window_start
        if start < 0 or start + length > len(self._window):
            self._read_window(self._position)
            start = 0
            if length > len(self._window):
                raise self._ends(length, what)
        self._position += length
        return self._window[start : start + length]

    def _read_window(self, position: int) -> bytes:
        wanted = max(0, min(_WINDOW_BYTES, self._limit - position))
        if wanted:  # a hostile position may be too large even to seek to
            self._file.seek(position)
        parts: list[bytes] = []
        while wanted:
            part = self._file.read(wanted)
            if not part:
                break
            parts.append(part)
            wanted -= len(part)
        self._window, self._window_start = b"".join(parts), position
        return self._window

    def _bound(self) -> str:
        if self._file_bytes <= MAX_HEADER_BYTES:
            return f"the file's {self._file_bytes} bytes allow"
        return f"the {MAX_HEADER_BYTES} bytes that a header may have allow"

    def _ends(self, length: int, what: str) -> GgufError:
        return self._error(f"{what} needs {length} bytes there, beyond what {self._bound()}")

    def _error(self, fault: str, *, back: int = 0) -> GgufError:
        return GgufError(f"{self._path} has a broken GGUF header at byte {self._position - back}: {fault}")

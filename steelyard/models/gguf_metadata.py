"""Metadata of a GGUF file, read with the ``gguf`` package.

The runtime's own bounded reader looks at the file first: it refuses broken, truncated and hostile ones with a sentence,
so that the package, which trusts what it reads, meets only files that are whole. The images carry the first reader
alone; see docs/decisions/0013-models.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steelyard_base.exit_codes import CommandError, ExitCode
from steelyard_runtime.engine.gguf_header import GgufError, Header, read_header

_FILE_TYPE_PREFIXES = ("MOSTLY_", "ALL_")
_SIZE_SUFFIXES = ("_XXS", "_XS", "_S", "_M", "_L")


@dataclass(frozen=True, kw_only=True)
class GgufFacts:
    """The metadata that a manifest makes claims about.

    Attributes:
        path: The file.
        kind: ``general.type``: ``model``, ``mmproj``, ``adapter`` or ``imatrix``.
        architecture: ``general.architecture``, such as ``gemma3``.
        quantization: ``general.file_type`` by its name, such as ``Q4_K_M``; None when the file does not say.
        tensor_types: How many tensors have which type, such as ``{"Q4_K": 27}``.
        context_length: Tokens that the model was trained for; None when the file does not say.
        tokenizer: ``tokenizer.ggml.model`` and ``tokenizer.ggml.pre`` with a ``/`` between; None without a tokenizer.
        vocabulary: Number of tokens; 0 without a tokenizer.
        chat_template: The chat template; None when the file carries none.
    """

    path: Path
    kind: str
    architecture: str
    quantization: str | None
    tensor_types: Mapping[str, int]
    context_length: int | None
    tokenizer: str | None
    vocabulary: int
    chat_template: str | None

    @property
    def chat_template_sha256(self) -> str:
        """Hash of the chat template, or ``none``."""
        if self.chat_template is None:
            return "none"
        return hashlib.sha256(self.chat_template.encode("utf-8", "replace")).hexdigest()


def read_facts(path: Path) -> GgufFacts:
    """Read a GGUF file's metadata; its tensors are not read.

    Raises:
        CommandError: The file is no whole GGUF file, or ``gguf`` is not installed.
    """
    try:
        header = read_header(path)
    except GgufError as error:
        raise CommandError(str(error), code=ExitCode.MODEL) from error
    if header.truncated:
        raise CommandError(
            f"{path} is truncated: it has {header.file_bytes} bytes and its header describes {header.expected_bytes}",
            code=ExitCode.MODEL,
            hint="Fetch it again.",
        )
    fields, tensor_types = _read_with_package(path, header)
    architecture = _text(path, fields, "general.architecture") or ""
    model, pre = _text(path, fields, "tokenizer.ggml.model"), _text(path, fields, "tokenizer.ggml.pre")
    context = fields.get(f"{architecture}.context_length")
    return GgufFacts(
        path=path,
        kind=_text(path, fields, "general.type") or ("mmproj" if architecture == "clip" else "model"),
        architecture=architecture,
        quantization=_file_type(path, fields.get("general.file_type")),
        tensor_types=tensor_types,
        context_length=context if isinstance(context, int) else None,
        tokenizer="/".join(filter(None, (model, pre))) or None,
        vocabulary=header.lengths.get("tokenizer.ggml.tokens", 0),
        chat_template=_text(path, fields, "tokenizer.chat_template"),
    )


def _read_with_package(path: Path, header: Header) -> tuple[dict[str, Any], dict[str, int]]:
    """Scalars and texts by key, and how many tensors have which type."""
    reader = _reader_class()
    try:
        read = reader(path)
        fields = {key: field.contents() for key, field in read.fields.items() if key not in header.lengths}
        long_texts = {
            key: read.fields[key].contents() for key in header.lengths if read.fields[key].types[0].name == "STRING"
        }
        counts: dict[str, int] = {}
        for tensor in read.tensors:
            counts[tensor.tensor_type.name] = counts.get(tensor.tensor_type.name, 0) + 1
    except Exception as error:  # the package lets out whatever its arithmetic meets in a strange file
        raise CommandError(
            f"{path} cannot be read by the gguf package: {type(error).__name__}: {error}", code=ExitCode.MODEL
        ) from error
    return fields | long_texts, counts


def _reader_class() -> Any:
    try:
        import gguf
    except ImportError as error:
        raise CommandError(
            "the gguf package is not installed in this Python environment",
            code=ExitCode.USAGE,
            hint="Run make setup, or install the extra: pip install 'steelyard[models]'.",
        ) from error

    class Reader(gguf.GGUFReader):  # type: ignore[misc]  # gguf is not typed
        """Steps over arrays: the package makes two objects for each of a vocabulary's entries, for seconds."""

        def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
            if int(raw_type) != int(gguf.GGUFValueType.ARRAY):
                return super()._get_field_parts(orig_offs, raw_type)
            size = _array_bytes(self.data, orig_offs, gguf)
            return size, [self.data[orig_offs : orig_offs + 12]], [0], [gguf.GGUFValueType.ARRAY]

    return Reader


def _array_bytes(data: Any, start: int, gguf: Any) -> int:
    """Length in bytes of an array that starts with its element type (4 bytes) and its count (8 bytes)."""
    view = memoryview(data)
    element = int.from_bytes(view[start : start + 4], "little")
    count = int.from_bytes(view[start + 4 : start + 12], "little")
    if element != int(gguf.GGUFValueType.STRING):
        kind = gguf.GGUFReader.gguf_scalar_to_np[gguf.GGUFValueType(element)]
        return 12 + count * int(kind().itemsize)
    position = start + 12
    for _ in range(count):
        position += 8 + int.from_bytes(view[position : position + 8], "little")
    return position - start


def _text(path: Path, fields: Mapping[str, Any], key: str) -> str | None:
    value = fields.get(key)
    if value is None or isinstance(value, str):
        return value
    raise CommandError(f"{path} has {key} = {value!r}, which should be a text", code=ExitCode.MODEL)


def _file_type(path: Path, value: Any) -> str | None:
    import gguf

    if value is None:
        return None
    try:
        name = str(gguf.LlamaFileType(value).name)
    except ValueError as error:
        raise CommandError(f"{path} has the unknown general.file_type {value!r}", code=ExitCode.MODEL) from error
    for prefix in _FILE_TYPE_PREFIXES:
        name = name.removeprefix(prefix)
    return name


def tensor_type_of(quantization: str, known: Mapping[str, int]) -> str:
    """The type that tensors of a quantization have: ``Q4_K`` for ``Q4_K_M``.

    Args:
        quantization: Name of a quantization.
        known: Types by name; a quantization that is one of them is its own type.
    """
    if quantization in known:
        return quantization
    for suffix in _SIZE_SUFFIXES:
        if quantization.endswith(suffix):
            return quantization.removesuffix(suffix)
    return quantization

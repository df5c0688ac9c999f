"""From a path to the one model it holds: which files, whether they are whole, and their hash. No llama.cpp here.

llama.cpp stops a process on some broken files and says little about others, so everything that a file's header can
tell is checked before it is loaded.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from steelyard_runtime.engine.gguf_header import GgufError, Header, Scalar, read_header

Progress = Callable[[int, int], None]

_SUFFIX = ".gguf"
_SHARD_NAME = re.compile(r"(?P<stem>.+)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf", re.IGNORECASE)
_NAMES_SHOWN = 8
_CHUNK_BYTES = 1 << 22
# general.type of files that go beside a model, and what messages call them.
_COMPANIONS = {
    "mmproj": "a multimodal projector",
    "adapter": "an adapter (LoRA)",
    "imatrix": "an importance matrix",
}
_PROJECTOR_ARCHITECTURE = "clip"


class ModelFileError(ValueError):
    """A path from which no model can be served; one sentence for the person who gave it, naming the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """The files of one model and what the first one's header says.

    Attributes:
        first: The file to hand to llama.cpp, which finds the other shards by their names.
        shards: All files in order; ``(first,)`` for a model in one file.
        shard_bytes: Size of each of them.
        architecture: ``general.architecture``, such as ``llama`` or ``qwen35``.
        name: ``general.name``, or an empty string.
        tensors: Number of tensors in all files together.
        context_length: Tokens that the model was trained for, if the header says so.
        embedding_length: Width of the hidden state, if the header says so.
        pooling_type: llama.cpp's number (0 none, 1 mean, 2 cls, 3 last, 4 rank), if the header says so.
        chat_template: Whether the file carries a chat template.
        ignored: Files of the searched folder that are no models, with what they are; for the log.
    """

    first: Path
    shards: tuple[Path, ...]
    shard_bytes: tuple[int, ...]
    architecture: str
    name: str
    tensors: int
    context_length: int | None
    embedding_length: int | None
    pooling_type: int | None
    chat_template: bool
    ignored: tuple[tuple[Path, str], ...] = ()

    @property
    def size_bytes(self) -> int:
        """Bytes of all files together."""
        return sum(self.shard_bytes)


def resolve(path: Path) -> ModelFiles:
    """Find the one model at ``path`` and check that its files are complete.

    ``path`` is a GGUF file, any shard of a split model (its siblings are found by name), or a folder, which is searched
    for ``*.gguf`` in itself and in its direct subfolders; hidden files and folders are left out. Projectors, adapters
    and importance matrices in a folder are passed over and reported in ``ModelFiles.ignored``; a file that cannot be
    read is an error, because it may be the model that was meant.

    Raises:
        ModelFileError: There is no model, more than one, or one that is incomplete, truncated or unusable.
    """
    try:
        if path.is_dir():
            return _resolve_folder(path)
        if not path.exists():
            raise ModelFileError(f"{path} does not exist; name a GGUF file or a folder that holds one")
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror or error}") from error
    return _resolve_file(path)


def sha256(files: ModelFiles, *, progress: Progress | None = None) -> str:
    """The model's SHA-256 as 64 lower-case hex digits.

    For one file it is the file's own hash, as ``sha256sum`` prints it. For shards it is the hash of their hex digests,
    concatenated in shard order without separators (ASCII).

    Args:
        files: What ``resolve`` found.
        progress: Called with the bytes hashed so far and the bytes in all.

    Raises:
        ModelFileError: A file cannot be read, or changed its size since it was resolved.
    """
    report = progress or (lambda _done, _total: None)
    digests: list[str] = []
    done = 0
    for path, size in zip(files.shards, files.shard_bytes, strict=True):
        base = done
        digest = hashlib.sha256()
        for chunk in _chunks(path):
            digest.update(chunk)
            done += len(chunk)
            report(done, files.size_bytes)
        if done - base != size:
            raise ModelFileError(f"{path} had {size} bytes and now has {done - base}; it changed while it was read")
        digests.append(digest.hexdigest())
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def _chunks(path: Path) -> Iterator[memoryview]:
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    try:
        with open(path, "rb", buffering=0) as file:
            while size := file.readinto(buffer):
                yield buffer[:size]
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror or error}") from error


def _resolve_file(path: Path) -> ModelFiles:
    header = _header(path)
    companion = _companion(header)
    if companion:
        raise ModelFileError(f"{path} is {companion}, not a model; name the model's own file")
    if _split_count(header) == 1:
        return _model((header,))
    try:
        siblings = sorted(path.parent.iterdir())
    except OSError as error:
        raise ModelFileError(f"{path.parent} cannot be searched for shards: {error.strerror or error}") from error
    stem = _shard_stem(header)
    return _model(_whole(header, [_header(s) for s in siblings if s == path or _stem_of_name(s) == stem]))


def _resolve_folder(folder: Path) -> ModelFiles:
    found = _gguf_files(folder)
    if not found:
        raise ModelFileError(f"{folder} holds no *{_SUFFIX} file, nor does a folder directly in it")
    ignored: list[tuple[Path, str]] = []
    models: dict[Path, list[Header]] = {}
    for header in map(_header, found):
        if companion := _companion(header):
            ignored.append((header.path, companion))
        else:
            key = header.path if _split_count(header) == 1 else _shard_stem(header)
            models.setdefault(key, []).append(header)
    if not models:
        listed = _listed(f"{path} is {companion}" for path, companion in ignored)
        raise ModelFileError(f"{folder} holds no model: {listed}")
    if len(models) > 1:
        firsts = sorted(min(header.path for header in headers) for headers in models.values())
        raise ModelFileError(
            f"{folder} holds {len(models)} models and which to serve is not guessed: {_listed(map(str, firsts))}; "
            "name one of these files instead of the folder"
        )
    (headers,) = models.values()
    split = _split_count(headers[0]) > 1
    return _model(_whole(headers[0], headers) if split else (headers[0],), ignored=tuple(ignored))


def _gguf_files(folder: Path) -> list[Path]:
    """The GGUF files in ``folder`` and its direct subfolders, in the order of their paths."""
    files: list[Path] = []
    pending = [(folder, 1)]
    while pending:
        place, depth = pending.pop()
        try:
            with os.scandir(place) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    if entry.is_dir():
                        if depth == 1:
                            pending.append((place / entry.name, 2))
                    elif entry.name.lower().endswith(_SUFFIX):
                        files.append(place / entry.name)
        except OSError as error:
            raise ModelFileError(f"{place} cannot be searched: {error.strerror or error}") from error
    return sorted(files)


def _header(path: Path) -> Header:
    try:
        header = read_header(path)
    except GgufError as error:
        raise ModelFileError(str(error)) from error
    if header.truncated and _companion(header) is None:
        raise ModelFileError(
            f"{path} is truncated: it has {header.file_bytes} bytes and its header describes "
            f"{header.expected_bytes}; fetch it again"
        )
    return header


def _companion(header: Header) -> str | None:
    """Say what the file is when it is no model by itself; else None."""
    if _text(header, "general.architecture") == _PROJECTOR_ARCHITECTURE:
        return _COMPANIONS["mmproj"]
    return _COMPANIONS.get(_text(header, "general.type") or "model")


def _split_count(header: Header) -> int:
    count = _integer(header, "split.count")
    return count if count is not None and count > 1 else 1


def _shard_stem(header: Header) -> Path:
    """The part of a shard's path that all shards of its model share."""
    stem = _stem_of_name(header.path)
    if stem is None:
        raise ModelFileError(
            f"{header.path} is one of {_split_count(header)} shards, which llama.cpp finds by their names; "
            "name it NAME-00001-of-00002.gguf, with its number and their count"
        )
    return stem


def _stem_of_name(path: Path) -> Path | None:
    match = _SHARD_NAME.fullmatch(path.name)
    return path.parent / f"{match['stem']}-of-{match['count']}" if match else None


def _whole(named: Header, headers: Sequence[Header]) -> tuple[Header, ...]:
    """The shards of one model in order, each checked against its name and the set against the first one's counts."""
    count = _split_count(named)
    by_number = {_shard_number(header, count): header for header in headers}
    match = _SHARD_NAME.fullmatch(named.path.name)
    stem = match["stem"] if match else named.path.stem
    missing = [number for number in range(1, count + 1) if number not in by_number]
    if missing:
        names = _listed(f"{stem}-{number:05d}-of-{count:05d}{_SUFFIX}" for number in missing)
        raise ModelFileError(
            f"{named.path} is one of {count} shards and {len(missing)} of them are missing in "
            f"{named.path.parent}: {names}"
        )
    shards = tuple(by_number[number] for number in range(1, count + 1))
    expected = _integer(shards[0], "split.tensors.count")
    actual = sum(len(shard.tensors) for shard in shards)
    if expected is not None and actual != expected:
        raise ModelFileError(
            f"{shards[0].path} says that its {count} shards hold {expected} tensors and they hold {actual}; "
            "they are not of one model"
        )
    return shards


def _shard_number(header: Header, count: int) -> int:
    """A shard's number from 1, when its header and its name agree with each other and with the ``count`` of shards."""
    match = _SHARD_NAME.fullmatch(header.path.name)
    named = (int(match["number"]), int(match["count"])) if match else None
    stated = ((_integer(header, "split.no") or 0) + 1, _split_count(header))
    if named != stated or stated[1] != count:
        raise ModelFileError(
            f"{header.path} says in its header that it is shard {stated[0]} of {stated[1]}, "
            f"which is not what its name and the other shards say (of {count}); rename it or fetch it again"
        )
    return stated[0]


def _model(shards: Sequence[Header], *, ignored: tuple[tuple[Path, str], ...] = ()) -> ModelFiles:
    first = shards[0]
    architecture = _text(first, "general.architecture")
    if not architecture:
        raise ModelFileError(f"{first.path} names no general.architecture, so llama.cpp cannot load it")
    tensors = sum(len(shard.tensors) for shard in shards)
    if tensors == 0:
        raise ModelFileError(f"{first.path} holds no tensors; it is a vocabulary only, not a model")
    template = "tokenizer.chat_template"
    return ModelFiles(
        first=first.path,
        shards=tuple(shard.path for shard in shards),
        shard_bytes=tuple(shard.file_bytes for shard in shards),
        architecture=architecture,
        name=_text(first, "general.name") or "",
        tensors=tensors,
        context_length=_integer(first, f"{architecture}.context_length"),
        embedding_length=_integer(first, f"{architecture}.embedding_length"),
        pooling_type=_integer(first, f"{architecture}.pooling_type"),
        chat_template=bool(first.values.get(template) or first.lengths.get(template)),
        ignored=ignored,
    )


def _integer(header: Header, key: str) -> int | None:
    value = _value(header, key)
    if value is None or type(value) is int:
        return value
    raise ModelFileError(f"{header.path} has {key} = {value!r}, which should be an integer")


def _text(header: Header, key: str) -> str | None:
    value = _value(header, key)
    if value is None or isinstance(value, str):
        return value
    raise ModelFileError(f"{header.path} has {key} = {value!r}, which should be a string")


def _value(header: Header, key: str) -> Scalar | None:
    if key in header.lengths:
        raise ModelFileError(f"{header.path} has an array or a very long string as {key}, which should be one value")
    return header.values.get(key)


def _listed(items: Iterable[str]) -> str:
    """``items`` for a message; beyond the first few, how many more."""
    names = list(items)
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")

from __future__ import annotations

import os
import struct
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tiny_models
from steelyard_runtime.engine.gguf_header import (
    MAX_ARRAY_STRINGS,
    MAX_HEADER_BYTES,
    MAX_KEPT_STRING_BYTES,
    MAX_KEYS,
    MAX_TENSORS,
    GgufError,
    read_header,
)

HUGE = 2**64 - 1
U32, STRING, ARRAY = 4, 8, 9


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return u64(len(raw)) + raw


def start(*, tensors: int = 0, keys: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + u32(version) + u64(tensors) + u64(keys)


def tensor(name: str = "w", shape: tuple[int, ...] = (32,), type_number: int = 0, offset: int = 0) -> bytes:
    return text(name) + u32(len(shape)) + b"".join(map(u64, shape)) + u32(type_number) + u64(offset)


def refusal(folder: Path, content: bytes) -> str:
    """The message for a file of ``content``, which always names the file."""
    path = folder / "hostile.gguf"
    path.write_bytes(content)
    with pytest.raises(GgufError) as caught:
        read_header(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A header of a few hundred bytes with every kind of value, so that a random edit often meets its structure."""
    path = tmp_path_factory.mktemp("header") / "small.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("t.u8", 200)
    writer.add_int8("t.i8", -3)
    writer.add_uint16("t.u16", 60000)
    writer.add_int16("t.i16", -30000)
    writer.add_uint64("t.u64", HUGE)
    writer.add_int64("t.i64", -(2**63))
    writer.add_float32("t.f32", 0.5)
    writer.add_float64("t.f64", 0.1)
    writer.add_bool("t.bool", True)
    writer.add_array("t.words", ["a", "", "漢字"])
    writer.add_array("t.numbers", [1, 2, 3, 4])
    writer.add_tensor("one.weight", np.ones((4, 32), dtype=np.float32))
    writer.add_tensor("two.weight", np.ones((3,), dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_every_value_type_is_read_and_arrays_are_only_measured(small: Path) -> None:
    header = read_header(small)
    assert header.values == {
        "general.architecture": "llama",
        "t.u8": 200,
        "t.i8": -3,
        "t.u16": 60000,
        "t.i16": -30000,
        "t.u64": HUGE,
        "t.i64": -(2**63),
        "t.f32": 0.5,
        "t.f64": 0.1,
        "t.bool": True,
    }
    assert header.lengths == {"t.words": 3, "t.numbers": 4}
    assert [(t.name, t.shape, t.type, t.size_bytes) for t in header.tensors] == [
        ("one.weight", (32, 4), 0, 512),
        ("two.weight", (3,), 1, 6),
    ]


@pytest.mark.parametrize("kind", tiny_models.KINDS)
def test_the_header_agrees_with_the_reference_reader(kind: str, tmp_path: Path) -> None:
    path = tiny_models.write(kind, tmp_path / "model.gguf")
    header, reference = read_header(path), gguf.GGUFReader(path)
    assert header.data_offset == reference.data_offset
    assert [t.name for t in header.tensors] == [t.name for t in reference.tensors]
    assert [t.size_bytes for t in header.tensors] == [t.n_bytes for t in reference.tensors]
    assert set(header.values) | set(header.lengths) == {key for key in reference.fields if not key.startswith("GGUF.")}
    assert header.expected_bytes == max(int(t.data_offset) + int(t.n_bytes) for t in reference.tensors)
    assert not header.truncated


def test_sizes_of_tensor_types_are_those_of_the_reference(tmp_path: Path) -> None:
    # Q8_1 is never stored in files, and the reference differs from ggml's own struct there.
    for number, (block, size) in gguf.GGML_QUANT_SIZES.items():
        if number is gguf.GGMLQuantizationType.Q8_1:
            continue
        path = tmp_path / "t.gguf"
        path.write_bytes(start(tensors=1) + tensor(shape=(block * 4, 3, 2), type_number=int(number)))
        assert read_header(path).tensors[0].size_bytes == 4 * size * 6


def test_a_tensor_type_of_the_future_counts_as_empty(tmp_path: Path) -> None:
    path = tmp_path / "future.gguf"
    path.write_bytes(start(tensors=1) + tensor(type_number=999, offset=64) + bytes(200))
    header = read_header(path)
    assert header.tensors[0].size_bytes is None
    assert header.expected_bytes == header.data_offset + 64


@pytest.mark.parametrize("missing", [1, 100, 5000])
def test_missing_tensor_data_is_noticed_to_the_byte(missing: int, tmp_path: Path) -> None:
    path = tiny_models.write("llama", tmp_path / "model.gguf")
    complete = read_header(path).expected_bytes
    os.truncate(path, complete)
    assert not read_header(path).truncated
    os.truncate(path, complete - missing)
    assert read_header(path).truncated


def test_a_header_that_ends_early_is_refused_wherever_it_ends(small: Path, tmp_path: Path) -> None:
    whole = small.read_bytes()
    tensor_list_end = read_header(small).data_offset - gguf.GGUF_DEFAULT_ALIGNMENT
    for length in range(tensor_list_end):
        refusal(tmp_path, whole[:length])


def test_long_strings_are_measured_and_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "long.gguf"
    fits, long = "x" * MAX_KEPT_STRING_BYTES, "x" * (MAX_KEPT_STRING_BYTES + 1)
    path.write_bytes(start(keys=2) + text("a") + u32(STRING) + text(fits) + text("b") + u32(STRING) + text(long))
    header = read_header(path)
    assert header.values == {"a": fits}
    assert header.lengths == {"b": len(long)}


def test_a_large_vocabulary_is_read_in_windows(tmp_path: Path) -> None:
    words = b"".join(text(f"word{i}") for i in range(262_144))
    path = tmp_path / "large.gguf"
    tail = text("after") + u32(U32) + u32(7)
    path.write_bytes(start(keys=2) + text("tokens") + u32(ARRAY) + u32(STRING) + u64(262_144) + words + tail)
    tracemalloc.start()
    header = read_header(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert header.lengths == {"tokens": 262_144}
    assert header.values == {"after": 7}
    assert peak < 8 << 20


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty (0 bytes)"),
        (b"GG", "is not a GGUF file: at byte 0 it has b'GG'"),
        (b"ggjt" + bytes(100), "is not a GGUF file: at byte 0 it has b'ggjt'"),
        (b"<!DOCTYPE html>", "is not a GGUF file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer"),
        (start(version=1), "at byte 4: GGUF version 1 is not supported"),
        (start(version=4), "at byte 4: GGUF version 4 is not supported"),
        (start(version=0), "at byte 4: GGUF version 0 is not supported"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(16), "at byte 4: the file is big-endian"),
        (start(tensors=HUGE), f"at byte 8: {HUGE} tensors are declared and at most {MAX_TENSORS}"),
        (start(keys=HUGE), f"at byte 16: {HUGE} metadata keys are declared and at most {MAX_KEYS}"),
        (start(tensors=50), "at byte 8: 50 tensors are declared, more than fit into 24 bytes"),
        (start(keys=50), "at byte 16: 50 metadata keys are declared, more than fit into 24 bytes"),
        (start(keys=1) + u64(HUGE) + bytes(20), "at byte 24: a metadata key declares"),
        (start(keys=1) + text("k") + u32(STRING) + u64(HUGE), "at byte 37: the value of 'k' declares"),
        (start(keys=1) + text("k") + u32(99) + bytes(20), "at byte 33: 'k' has the unknown value type 99"),
        (start(keys=1) + text("k") + u32(ARRAY) + u32(ARRAY) + u64(1) + bytes(20), "array of the unsupported type 9"),
        (start(keys=1) + text("k") + u32(ARRAY) + u32(U32) + u64(HUGE) + bytes(20), "'k' declares"),
        (start(keys=1) + text("k") + u32(ARRAY) + u32(STRING) + u64(HUGE) + bytes(20), "'k' declares"),
        (start(keys=1) + text("k") + u32(ARRAY) + u32(STRING) + u64(1) + u64(HUGE), "a string of 'k' reaches to byte"),
        (start(keys=1) + text("k") + u32(ARRAY) + u32(STRING) + u64(2) + u64(HUGE) + u64(1), "a string of 'k' needs"),
        (start(keys=1) + text(b"\xff\xfe") + u32(U32) + u32(1), "at byte 32: a metadata key is not UTF-8"),
        (start(keys=2) + (text("k") + u32(U32) + u32(1)) * 2, "the metadata key 'k' appears twice"),
        (start(keys=1) + text("general.alignment") + u32(U32) + u32(0), "general.alignment is 0"),
        (start(keys=1) + text("general.alignment") + u32(U32) + u32(48), "general.alignment is 48"),
        (start(keys=1) + text("general.alignment") + u32(STRING) + text("32"), "general.alignment is '32'"),
        (start(tensors=2) + tensor() * 2, "the tensor 'w' is listed twice"),
        (start(tensors=1) + tensor(offset=33), "starts at 33, not a multiple of 32"),
        (start(tensors=1) + tensor(shape=(1,) * 5), "has 5 dimensions"),
        (start(tensors=1) + tensor(shape=(33,), type_number=2), "rows of 33 elements, not a multiple of 32"),
    ],
)
def test_a_hostile_header_is_refused_with_the_place_and_the_reason(content: bytes, says: str, tmp_path: Path) -> None:
    assert says in refusal(tmp_path, content)


def test_tensors_larger_than_any_disk_make_a_truncated_file_not_an_overflow(tmp_path: Path) -> None:
    path = tmp_path / "vast.gguf"
    path.write_bytes(start(tensors=1) + tensor(shape=(HUGE - 31, HUGE, HUGE, HUGE), offset=2**64 - 32))
    header = read_header(path)
    assert header.truncated
    assert header.expected_bytes > 2**250


def sparse(path: Path, content: bytes) -> Path:
    """A file of ``content`` that claims to be twice as long as any header may be, and takes no room."""
    path.write_bytes(content)
    os.truncate(path, 2 * MAX_HEADER_BYTES)
    return path


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (start(keys=1) + text("k") + u32(ARRAY) + u32(STRING) + u64(MAX_ARRAY_STRINGS + 1), "strings are in arrays"),
        (start(keys=1) + text("k") + u32(ARRAY) + u32(0) + u64(MAX_HEADER_BYTES), "that a header may have"),
        (start(keys=1) + text("k") + u32(STRING) + u64(MAX_HEADER_BYTES), "that a header may have"),
        (start(keys=1) + u64(1 << 20), "a metadata key has 1048576 bytes"),
        (
            start(keys=500) + b"".join(text(f"{i}") + u32(STRING) + text(b"x" * 60_000) for i in range(200)),
            "names and short strings exceed",
        ),
    ],
)
def test_a_large_file_cannot_make_the_reader_large(content: bytes, says: str, tmp_path: Path) -> None:
    path = sparse(tmp_path / "large.gguf", content)
    tracemalloc.start()
    with pytest.raises(GgufError, match=says):
        read_header(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 32 << 20


def test_what_is_not_a_regular_file_is_refused_without_waiting(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.gguf"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero")):
        with pytest.raises(GgufError, match="is not a regular file"):
            read_header(path)
    with pytest.raises(GgufError, match="cannot be read"):
        read_header(tmp_path)
    with pytest.raises(GgufError, match="cannot be read: No such file"):
        read_header(tmp_path / "absent.gguf")
    with pytest.raises(GgufError, match="cannot be opened"):
        read_header(Path("nul\0byte.gguf"))


edits = st.lists(
    st.tuples(
        st.floats(0, 1, exclude_max=True),
        st.one_of(
            st.binary(min_size=1, max_size=9),
            st.sampled_from([0, 1, 7, 9, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, HUGE]).map(u64),
            st.sampled_from([0, 8, 9, 13, 2**31, 2**32 - 1]).map(u32),
        ),
    ),
    min_size=1,
    max_size=6,
)


kept = st.one_of(st.just(1.0), st.floats(0, 1))
Edits = list[tuple[float, bytes]]


def check_mutation(whole: bytes, path: Path, changes: Edits, keep: float) -> None:
    content = bytearray(whole)
    for place, replacement in changes:
        offset = int(place * len(content))
        content[offset : offset + len(replacement)] = replacement
    path.write_bytes(content[: max(1, int(len(content) * keep))])
    tracemalloc.start()
    try:
        header = read_header(path)
    except GgufError as error:
        assert str(path) in str(error)  # noqa: PT017 - both outcomes are right, each with its own promise
    else:
        assert header.file_bytes == path.stat().st_size
        assert header.expected_bytes >= 24
        assert all(len(tensor.shape) <= 4 for tensor in header.tensors)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 16 << 20


@settings(max_examples=600, deadline=None)
@given(changes=edits, keep=kept)
def test_a_mutated_small_header_is_read_or_refused(small: Path, changes: Edits, keep: float) -> None:
    check_mutation(small.read_bytes(), small.with_name("mutant.gguf"), changes, keep)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.write("qwen35", tmp_path_factory.mktemp("real") / "model.gguf")


@settings(max_examples=150, deadline=None)
@given(changes=edits, keep=kept)
def test_a_mutated_real_header_is_read_or_refused(real: Path, changes: Edits, keep: float) -> None:
    header_bytes = read_header(real).data_offset
    check_mutation(real.read_bytes()[:header_bytes], real.with_name("mutant.gguf"), changes, keep)


@settings(max_examples=200, deadline=None)
@given(tail=st.binary(max_size=200))
def test_random_bytes_after_a_good_start_are_read_or_refused(small: Path, tail: bytes) -> None:
    check_mutation(b"GGUF" + u32(3) + tail, small.with_name("random.gguf"), [], 1.0)

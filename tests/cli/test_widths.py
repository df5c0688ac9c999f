"""What a person types or copies is whole, however narrow the terminal is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from steelyard import cli
from steelyard.commands.root import app
from steelyard.releases.manifest import load_release
from steelyard.terminal import console
from steelyard_runtime.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
WIDTHS = (60, 80, 100)


def commands(command: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each command with the words that name it, groups included."""
    command = command or typer.main.get_command(app)
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, (*path, name))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    ("path", "command"),
    [pytest.param(path, command, id=" ".join(("steelyard", *path))) for path, command in commands()],
)
def test_help_cuts_no_name(path, command, width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    assert cli.run([*path, "--help"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= width
    assert "…" not in out
    names = [name for each in command.params for name in [*each.opts, *each.secondary_opts] if name.startswith("-")]
    variables = [each.envvar for each in command.params if isinstance(getattr(each, "envvar", None), str)]
    words = out.replace(",", " ").replace("]", " ").replace(";", " ").split()
    for name in [*names, *variables, *getattr(command, "commands", {})]:
        assert name in words, name


@pytest.mark.parametrize("width", WIDTHS)
def test_help_of_serve_cuts_no_variable(width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    assert cli.run(["serve", "--help"]) == 0
    words = capsys.readouterr().out.replace("]", " ").split()
    for name in Settings.model_fields:
        assert f"STEELYARD_{name.upper()}" in words, name


def printed(*words: str, width: int, **variables: str) -> str:
    """Standard output of a command."""
    command = [sys.executable, "-m", "steelyard", *words]
    environment = {**os.environ, "COLUMNS": str(width), **variables}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.mark.parametrize("width", [20, 80])
def test_paths_and_hashes_are_not_broken(width, tmp_path):
    cache = tmp_path / ("a-folder-with-a-long-name-" * 4) / "cache"
    assert f" {cache}" in printed("doctor", width=width, STEELYARD_CACHE=str(cache))
    sample = load_release()
    shown = printed("release", "show", "sample", width=width).split()
    for model in sample.models.values():
        assert {model.manifest_sha256, model.name + ":"} <= set(shown)
    for images in sample.images.values():
        assert {image.digest for image in images.values()} <= set(shown)
    manifest = json.loads((ROOT / "releases" / "sample.json").read_text())
    other = json.loads(json.dumps(manifest).replace("16bf4b24", "26bf4b24")) | {"id": "other"}
    (tmp_path / "other.json").write_text(json.dumps(other))
    diff = printed("release", "diff", "sample", str(tmp_path / "other.json"), width=width).split()
    for content in (manifest, other):
        assert content["images"]["chat"]["cpu"]["digest"] in diff


def test_a_release_is_listed_in_one_line():
    lines = printed("release", "list", width=80).splitlines()
    assert [line.split()[0] for line in lines] == ["release", "sample"]
    assert max(map(len, lines)) <= 80


def test_the_licence_of_a_model_is_whole():
    assert "Gemma Terms of Use" in printed("model", "list", width=40)


@pytest.mark.parametrize("width", [20, 80])
def test_places_and_headings_are_not_broken(width, monkeypatch, capsys):
    """What ``up`` prints at its end: folders, buckets, log groups, stacks."""
    monkeypatch.setattr(console.out, "width", width)
    places = {
        "models": f"s3://{'bucket-' * 8}",
        "its log": f"/aws/sagemaker/Endpoints/{'name-' * 10}",
        "stacks": "a\nb",
    }
    console.rows(list(places.items()))
    console.heading(f"the model x into {places['models']}")
    out = capsys.readouterr().out
    for place in ("models", "its log"):
        assert f"{place.ljust(9)}{places[place]}\n" in out
    assert "stacks   a\n         b\n" in out
    assert f" {places['models']} " in out


def test_no_row_prints_nothing(capsys):
    console.rows([], heads=("release",))
    assert capsys.readouterr().out == ""

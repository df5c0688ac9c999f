"""Published containers move: what is told, what is written, and what is refused."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import httpx
import pytest
import small_builds
from accounts import DLC, Account

from steelyard.cli import run
from steelyard.commands import release
from steelyard.releases.bases import FILE, base_tags, load_bases
from steelyard_base.exit_codes import ExitCode
from steelyard_constructs.hardware import Hardware

TAG = "server-sagemaker-cpu-v1"


def push(account: Account, *, tag: str = TAG, **labels: str) -> str:
    """Push an image of these labels to the published registry, and move the tag to it; its digest."""
    details = account.cloud.details
    login = (details.access_key_id, details.secret_access_key)
    digest = small_builds.push_image(details.registry, DLC, login=login, labels=labels)
    address = f"http://{details.registry}/v2/{DLC}/manifests"
    with httpx.Client(auth=login, trust_env=False) as client:
        manifest = client.get(f"{address}/{digest}", headers={"Accept": small_builds.DOCKER}).raise_for_status()
        client.put(
            f"{address}/{tag}", content=manifest.content, headers={"Content-Type": small_builds.DOCKER}
        ).raise_for_status()
    return digest


@pytest.fixture
def bases(account: Account, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with the account's base, whose tag is where it was."""
    monkeypatch.setattr(release, "load_environment", lambda _: account.environment())
    assert push(account) == account.base
    path = account.bases_file(tag=TAG)
    path.write_text("# What we build on.\n" + path.read_text() + 'cuda = "13.0" # of the driver\n', encoding="utf-8")
    return path


def test_a_tag_that_stayed_is_right(bases: Path, account: Account, capsys: pytest.CaptureFixture[str]) -> None:
    before = bases.read_text()
    assert run(["release", "bases", "--bases", str(bases), "--check", "--write", "--json"]) == ExitCode.OK
    (told,) = json.loads(capsys.readouterr().out)
    assert told == {
        "hardware": "cpu",
        "tag": f"llama-cpp:{TAG}",
        "digest": account.base,
        "now": account.base,
        "critical": 0,
        "moved": False,
    }
    assert bases.read_text() == before


def test_a_tag_that_moved_is_told_and_written(
    bases: Path, account: Account, capsys: pytest.CaptureFixture[str]
) -> None:
    before = bases.read_text()
    moved = push(account, newer="yes")
    assert run(["release", "bases", "--bases", str(bases), "--check"]) == ExitCode.FAILED
    said = capsys.readouterr()
    assert f"llama-cpp:{TAG} is moved to {moved[:19]}" in said.out
    assert "1 of 1 tags name other images than" in said.err

    assert run(["release", "bases", "--bases", str(bases), "--write"]) == ExitCode.USAGE
    assert "Add --llama-cpp" in capsys.readouterr().err
    assert run(["release", "bases", "--bases", str(bases), "--write", "--llama-cpp", "b1"]) == ExitCode.USAGE
    assert "llama.cpp b1 is not a build that is known" in capsys.readouterr().err
    assert bases.read_text() == before

    assert run(["release", "bases", "--bases", str(bases), "--write", "--llama-cpp", "b10964"]) == ExitCode.OK
    assert bases.read_text() == before.replace(account.base, moved).replace("b10433", "b10964")
    assert load_bases(bases)[Hardware.CPU].llama_cpp == "b10964"
    assert run(["release", "bases", "--bases", str(bases), "--check"]) == ExitCode.OK


def test_a_tag_that_is_not_there_is_refused(bases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bases.write_text(bases.read_text().replace(TAG, "no-such-tag"))
    assert run(["release", "bases", "--bases", str(bases)]) == ExitCode.FAILED
    assert "in us-east-1 has no tag no-such-tag" in capsys.readouterr().err


def test_a_file_that_is_written_otherwise_is_not_changed(
    bases: Path, account: Account, capsys: pytest.CaptureFixture[str]
) -> None:
    push(account, newer="yes")
    inline = ", ".join(
        f"{name} = {json.dumps(value)}" for name, value in tomllib.loads(bases.read_text())["cpu"].items()
    )
    bases.write_text(f"cpu = {{ {inline} }}\n")
    before = bases.read_text()
    assert run(["release", "bases", "--bases", str(bases), "--write", "--llama-cpp", "b10964"]) == ExitCode.FAILED
    assert "has no line digest" in capsys.readouterr().err
    assert bases.read_text() == before


def test_the_file_of_the_project_names_tags_and_is_valid(tmp_path: Path) -> None:
    assert base_tags(FILE)[Hardware.CPU] == TAG
    assert base_tags(FILE).keys() == load_bases(FILE).keys() == set(Hardware)


def test_a_base_without_a_tag_is_told(bases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bases.write_text(bases.read_text().replace(f'tag = "{TAG}"\n', ""))
    assert run(["release", "bases", "--bases", str(bases), "--check"]) == ExitCode.OK
    assert "no tag, so it is not followed" in capsys.readouterr().out


def test_what_is_no_tag_is_refused(bases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bases.write_text(bases.read_text().replace(TAG, "a tag"))
    assert run(["release", "bases", "--bases", str(bases)]) == ExitCode.USAGE
    assert "cpu.tag is 'a tag', which is no tag of a registry" in capsys.readouterr().err

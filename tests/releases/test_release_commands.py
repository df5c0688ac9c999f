"""``steelyard release`` without an account: what it prints, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema_rs
import pytest
from test_release_manifest import content

from steelyard.cli import run
from steelyard.commands import release, up
from steelyard.deploy import deployment
from steelyard.releases import source
from steelyard.releases.assemble import Order
from steelyard.releases.manifest import Release, ReleaseSource, sealed, write_release
from steelyard.releases.source import Checkout
from steelyard.terminal import building
from steelyard_base.exit_codes import CommandError, ExitCode

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    """Two releases that differ in the interface of their image."""
    other = content()
    other["images"]["decision"]["cpu"]["build"]["interface"] = "b10883"
    return tuple(write_release(sealed(each), folder=tmp_path)[1] for each in (content(), other))  # type: ignore[return-value]


def test_show(two: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["release", "show", str(two[0]), "--json"]) == ExitCode.OK
    shown = Release.model_validate_json(capsys.readouterr().out)
    assert shown.id == two[0].stem
    assert run(["release", "show", str(two[0])]) == ExitCode.OK
    assert two[0].stem in capsys.readouterr().out


def test_diff(two: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["release", "diff", *map(str, two), "--json"]) == ExitCode.OK
    said = json.loads(capsys.readouterr().out)
    assert (said["before"], said["after"]) == (two[0].stem, two[1].stem)
    change = {"part": "images.decision.cpu", "what": "build.interface", "before": "b10429", "after": "b10883"}
    assert said["changes"] == [change]
    assert run(["release", "diff", *map(str, two)]) == ExitCode.OK
    assert "build.interface" in capsys.readouterr().out
    assert run(["release", "diff", str(two[0]), str(two[0])]) == ExitCode.OK
    assert "are the same" in capsys.readouterr().out


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["release", "list", "--json"]) == ExitCode.OK
    assert "sample" in [each["id"] for each in json.loads(capsys.readouterr().out)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["release", "show", "none"], "there is no release 'none'"),
        (["release", "build", "--model", "decision"], "--model 'decision' is not ROLE=NAME"),
        (["release", "build", "--env", "prod"], "builds no images: it pulls those of account"),
        (["up", "--build"], "--build is for --local without --release"),
    ],
)
def test_refused_before_anything_is_asked(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == ExitCode.USAGE
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("words", [["release", "build"], ["release", "build", "--local"], ["up"]])
def test_what_is_not_committed_is_refused_before_anything_is_deployed(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once deployed, it would be what the projects build, whatever is committed then."""
    done = []
    monkeypatch.setattr(deployment, "prepare", lambda *_given, **_options: done.append("prepared"))
    monkeypatch.setattr(source, "changes", lambda _root: ["runtime/server.py"])
    assert run(words) == ExitCode.USAGE
    assert "changes that no commit has:\n- runtime/server.py" in capsys.readouterr().err
    assert done == []


@pytest.mark.parametrize("words", [["release", "build", "--bootstrap"], ["up", "--no-check", "--bootstrap"]])
def test_a_commit_while_the_stacks_are_deployed_is_not_the_release_s(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is built is what was read first; a deployment of anything later is refused by its source."""
    read = Checkout(source=ReleaseSource(commit="1" * 40, dirty=False), asset="a" * 64)
    later = Checkout(source=ReleaseSource(commit="2" * 40, dirty=False), asset="b" * 64)
    now = [read]
    ordered = []

    def prepare(*_given: object, **_options: object) -> str:
        now[0] = later
        return "bucket"

    def build(_aws: object, order: Order, *_given: object, **_options: object) -> None:
        ordered.append(order)
        raise CommandError("far enough")

    for module in (release, up):
        monkeypatch.setattr(module, "read_checkout", lambda **_given: now[0])
    monkeypatch.setattr(up, "read_source", lambda: now[0].source)
    monkeypatch.setattr(deployment, "prepare", prepare)
    monkeypatch.setattr(building, "build_release", build)
    assert run([*words, "--allow-critical"]) == ExitCode.FAILED
    (order,) = ordered
    assert order.checkout == read
    assert order.allow_critical


def test_the_published_schema_takes_what_is_written_and_refuses_a_tag(two: tuple[Path, Path]) -> None:
    schema = json.loads((ROOT / "docs" / "reference" / "release.schema.json").read_text())
    for path in (*two, ROOT / "releases" / "sample.json"):
        jsonschema_rs.validate(schema, json.loads(path.read_text()))
    wrong = json.loads(two[0].read_text())
    wrong["images"]["decision"]["cpu"]["digest"] = "latest"
    with pytest.raises(jsonschema_rs.ValidationError):
        jsonschema_rs.validate(schema, wrong)

"""A release's name is its content's: what is refused, with which sentence, and what is written."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.releases.checks import check_account
from steelyard.releases.difference import changes
from steelyard.releases.manifest import content_id, load_release, parse_release, sealed, write_release
from steelyard_base.exit_codes import CommandError, ExitCode

MANIFEST = "b" * 64
IMAGE = {"architecture": "x86_64", "llama_cpp": "b10433"}
DOCKER = "application/vnd.docker.distribution.manifest.v2+json"
BUILD = {
    "base_digest": "sha256:" + "c" * 64,
    "interface": "b10429",
    "sbom": {"key": "images/dd/sbom.cdx.json", "sha256": "e" * 64},
}


def content() -> dict[str, Any]:
    """A release without its name."""
    model = {
        "name": "tiny",
        "key": f"models/tiny/{MANIFEST}/",
        "manifest_sha256": MANIFEST,
        "file": "tiny.gguf",
        "files": [{"name": "tiny.gguf", "role": "weights", "size": 5, "sha256": "a" * 64}],
    }
    made = {
        "source": {"commit": "1" * 40, "dirty": False},
        "models": {"decision": model},
        "images": {
            "chat": {"cpu": {"digest": "sha256:" + "c" * 64, "repository": "llama-cpp", "media_type": DOCKER, **IMAGE}},
            "decision": {"cpu": {"digest": "sha256:" + "d" * 64, "media_type": DOCKER, "build": BUILD, **IMAGE}},
        },
        "prompts": [{"name": "decision", "version": "1", "sha256": "f" * 64}],
    }
    return copy.deepcopy(made)


def changed(change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    data = content()
    change(data)
    return data


def image_of(data: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = data["images"]["decision"]["cpu"]
    return found


def test_the_name_follows_from_the_content_alone() -> None:
    data = sealed(content())
    assert len(data["id"]) == 32
    assert parse_release(data, source="r.json").id == data["id"] == content_id(data)
    assert parse_release({**data, "note": "what a person should know"}, source="r.json").id == data["id"]
    backwards = json.loads(json.dumps(dict(reversed(data.items()))))
    assert content_id(backwards) == data["id"]


@given(st.data())
def test_every_changed_value_is_another_name(data: st.DataObject) -> None:
    release = sealed(content())
    places = list(leaves({name: each for name, each in release.items() if name not in ("id", "note")}))
    place = data.draw(st.sampled_from(places))
    other = copy.deepcopy(release)
    inner: Any = other
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = f"{inner[place[-1]]}0"
    assert content_id(other) != release["id"]
    with pytest.raises(CommandError, match=r"r\.json is refused"):
        parse_release(other, source="r.json")


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Any:
    if isinstance(value, dict | list):
        for step, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(each, (*path, step))
    else:
        yield path


def test_a_changed_byte_in_the_file_is_refused(tmp_path: Path) -> None:
    release, path = write_release(sealed(content()), folder=tmp_path)
    text = path.read_text()
    path.write_text(text.replace('"version": "1"', '"version": "2"'))
    with pytest.raises(
        CommandError, match=f"it says that it is {release.id}, so something in it has changed"
    ) as refused:
        load_release(release.id, folder=tmp_path)
    assert refused.value.code is ExitCode.USAGE
    assert "A release is never edited" in (refused.value.hint or "")


def test_a_renamed_file_is_refused(tmp_path: Path) -> None:
    release, path = write_release(sealed(content()), folder=tmp_path)
    path.rename(tmp_path / "mine.json")
    with pytest.raises(CommandError, match=f"must be called {release.id}.json"):
        load_release("mine", folder=tmp_path)


REFUSED: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "a tag for a digest": (lambda data: image_of(data).update(digest="latest"), "a tag can be moved to another image"),
    "an index of images": (
        lambda data: image_of(data).update(media_type="application/vnd.oci.image.index.v1+json"),
        "is not application/vnd.docker.distribution.manifest.v2+json, and SageMaker takes no other",
    ),
    "a single image of OCI": (
        lambda data: image_of(data).update(media_type="application/vnd.oci.image.manifest.v1+json"),
        "is not application/vnd.docker.distribution.manifest.v2+json, and SageMaker takes no other",
    ),
    "no media type": (lambda data: image_of(data).pop("media_type"), "images.decision.cpu has no media_type"),
    "no facts of the build": (lambda data: image_of(data).pop("build"), "build says what our images are made of"),
    "facts of a build of a published container": (
        lambda data: data["images"]["chat"]["cpu"].update(build=BUILD),
        "the published container for chat does not",
    ),
    "no source": (lambda data: data.pop("source"), "source is missing"),
    "a short commit": (lambda data: data["source"].update(commit="abc"), "source.commit: String should match pattern"),
    "a file twice": (
        lambda data: data["models"]["decision"]["files"].append(data["models"]["decision"]["files"][0]),
        "'tiny.gguf' is named twice",
    ),
    "a file outside the prefix": (
        lambda data: data["models"]["decision"]["files"][0].update(name="../tiny.gguf"),
        "files.0.name: String should match pattern",
    ),
}


@pytest.mark.parametrize(("change", "sentence"), REFUSED.values(), ids=REFUSED)
def test_refused(change: Callable[[dict[str, Any]], None], sentence: str) -> None:
    with pytest.raises(CommandError) as refused:
        parse_release(sealed(changed(change)), source="r.json")
    assert sentence in refused.value.message


def test_json_that_says_one_thing_twice_or_is_none_is_refused(tmp_path: Path) -> None:
    for text, said in (
        ('{"id": "a", "id": "b"}', "'id' is there twice"),
        ('{"a": NaN}', "NaN is not JSON"),
        ("[" * 100_000, "cannot read the release manifest"),
        ("\udcff", "cannot read the release manifest"),
    ):
        (tmp_path / "bad.json").write_text(text, errors="surrogateescape")
        with pytest.raises(CommandError, match=said):
            load_release("bad", folder=tmp_path)


def test_unknown_and_ambiguous_names(tmp_path: Path) -> None:
    release, _ = write_release(sealed(content()), folder=tmp_path)
    assert load_release(release.id[:6], folder=tmp_path) == release
    for unknown in (release.id[:5], "0" * 32, "none"):
        with pytest.raises(CommandError, match="there is no release") as refused:
            load_release(unknown, folder=tmp_path)
        assert release.id in (refused.value.hint or "")
    (tmp_path / f"{release.id[:8]}ffff.json").write_text("{}")
    with pytest.raises(CommandError, match=f"'{release.id[:6]}' begins 2 releases"):
        load_release(release.id[:6], folder=tmp_path)


def test_nothing_half_is_written(tmp_path: Path) -> None:
    data = sealed(content())
    with pytest.raises(CommandError, match="something in it has changed"):
        write_release({**data, "prompts": []}, folder=tmp_path / "a")
    assert not (tmp_path / "a").exists()
    (tmp_path / "b").write_text("a file, not a folder")
    with pytest.raises(CommandError, match="cannot write the release manifest"):
        write_release(data, folder=tmp_path / "b")
    (tmp_path / "c" / f"{data['id']}.json").mkdir(parents=True)
    with pytest.raises(CommandError, match="cannot write the release manifest"):
        write_release(data, folder=tmp_path / "c")
    assert [each.name for each in (tmp_path / "c").iterdir()] == [f"{data['id']}.json"]


def test_a_sample_is_refused_on_aws() -> None:
    check_account(load_release(), "000000000000")
    with pytest.raises(CommandError, match="is a sample: its image digests are placeholders, and account 111122223333"):
        check_account(load_release(), "111122223333")


def test_what_changes_is_said_by_part() -> None:
    def change(data: dict[str, Any]) -> None:
        image_of(data)["build"]["interface"] = "b10883"
        data["models"]["decision"]["files"][0]["sha256"] = "9" * 64
        data["models"]["chat"] = copy.deepcopy(content()["models"]["decision"])
        data["prompts"] = []

    before = parse_release(sealed(content()), source="a")
    after = parse_release(sealed(changed(change)), source="b")
    assert changes(before, before) == []
    found = {(each.part, each.what): (each.before, each.after) for each in changes(before, after)}
    assert found == {
        ("images.decision.cpu", "build.interface"): ("b10429", "b10883"),
        ("models.decision", "files.tiny.gguf.sha256"): ("a" * 64, "9" * 64),
        ("models.chat", ""): (None, "tiny"),
        ("prompts.decision", ""): ("f" * 64, None),
    }

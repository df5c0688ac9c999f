"""Differences between two releases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from steelyard.releases.manifest import Release


@dataclass(frozen=True, kw_only=True)
class Change:
    """One value that differs.

    Attributes:
        part: What it belongs to, such as ``models.decision``.
        what: Which value of it, such as ``manifest_sha256``; empty where the part is there in one of the two only.
        before: The value in the first release; None where it has none.
        after: The value in the second.
    """

    part: str
    what: str
    before: str | None
    after: str | None


def changes(before: Release, after: Release) -> list[Change]:
    """Everything that differs, in the order of the manifest; nothing for two releases with the same content."""
    old, new = dict(_parts(before)), dict(_parts(after))
    return [change for part in dict.fromkeys([*old, *new]) for change in _of_part(part, old.get(part), new.get(part))]


def _of_part(part: str, old: Mapping[str, str] | None, new: Mapping[str, str] | None) -> Iterator[Change]:
    if old is None or new is None:
        there = old or new or {}
        name = there.get("digest") or there.get("sha256") or there.get("name") or there.get("commit") or "there"
        yield Change(part=part, what="", before=name if old is not None else None, after=name if old is None else None)
        return
    for what in dict.fromkeys([*old, *new]):
        if old.get(what) != new.get(what):
            yield Change(part=part, what=what, before=old.get(what), after=new.get(what))


def _parts(release: Release) -> Iterator[tuple[str, dict[str, str]]]:
    """A release's parts by name, each with its values by name."""
    data = release.model_dump(mode="json")
    yield "release", {"sample": str(release.sample).lower()}
    if release.source is not None:
        yield "source", dict(_values(data["source"]))
    for role, model in data["models"].items():
        yield f"models.{role}", dict(_values(model))
    for kind, images in data["images"].items():
        for hardware, image in images.items():
            yield f"images.{kind}.{hardware}", dict(_values(image))
    for name in ("prompts", "decision_contracts", "calibrations", "evaluation_reports"):
        names = [part["name"] for part in data[name]]
        for part in data[name]:
            # A decision is there once for each build of llama.cpp that it has a head for.
            build = f" with {part['head']['llama_cpp']}" if names.count(part["name"]) > 1 else ""
            yield f"{name}.{part['name']}{build}", dict(_values(part))


def _values(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """The leaves of a value by their path; files go by their names, so that their order does not matter."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _values(each, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for each in value:
            yield from _values({name: leaf for name, leaf in each.items() if name != "name"}, f"{path}.{each['name']}")
    elif value is not None:
        yield path, str(value).lower() if isinstance(value, bool) else str(value)

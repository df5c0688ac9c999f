"""The page on architecture: the files that it names exist, and its glossary stays short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`([A-Za-z0-9_/.-]+\.(?:py|toml))`", PAGE)


def places() -> list[tuple[str, str]]:
    """Each file that is named, and the folder of the last whole path before it, for those "beside it"."""
    found, folder = [], ""
    for name in NAMED:
        found.append((name, folder))
        if "/" in name and (ROOT / name).exists():
            folder = str(Path(name).parent)
    return found


@pytest.mark.parametrize(("name", "folder"), places())
def test_a_named_file_exists(name: str, folder: str) -> None:
    inside = ROOT / "runtime" / "steelyard_runtime"
    assert any((where / name).is_file() for where in (ROOT, ROOT / folder, inside)), (
        f"{name} is neither whole nor in {folder}"
    )


def test_many_files_are_named() -> None:
    assert len(NAMED) > 30


def test_the_glossary_is_short() -> None:
    rows = PAGE.partition("## Glossary")[2].count("\n| ") - 2
    assert 10 < rows <= 25

"""The table of CONTRIBUTING: its paths exist, its names stand in a file of their row, every subject has a row."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RUNTIME = ROOT / "runtime" / "steelyard_runtime"
TABLE = (
    (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Where to change what")[2].partition("\n## ")[0]
)
ROWS = [line for line in TABLE.splitlines() if line.startswith("| ") and not line.startswith(("| ---", "| to change"))]
SUBJECTS = (
    *("what a decision's prompt says", "a contract", "how a decision is read", "a construct", "a field of an endpoint"),
    *("an alarm", "a command", "a route", "a setting", "a pinned model"),
)


def words(row: str) -> list[str]:
    return re.findall(r"`([^`]+)`", row)


def is_path(word: str) -> bool:
    return " " not in word and bool(re.search(r"/|\.(py|toml|md|txt|jsonl)$", word))


def found(word: str, row: str) -> list[Path]:
    """Files and folders of a path: whole, below the runtime, or beside another whole path of its row."""
    pattern = word.replace("NAME", "*")
    beside = [ROOT / each for each in words(row) if is_path(each) and each != word]
    places = [ROOT, RUNTIME, *(each if each.is_dir() else each.parent for each in beside)]
    places += [(RUNTIME / each).parent for each in words(row) if is_path(each)]
    return [each for place in places for each in place.glob(pattern)]


@pytest.mark.parametrize("row", ROWS, ids=[row.split("|")[1].strip() for row in ROWS])
def test_a_row_leads_somewhere(row: str) -> None:
    assert [word for word in words(row) if is_path(word) and not found(word, row)] == []
    constants = [word for word in words(row) if re.fullmatch(r"_?[A-Za-z]+(_[A-Z]+)*", word) and word.isidentifier()]
    files = [path for word in words(row) if is_path(word) for path in found(word, row) if path.is_file()]
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    assert [name for name in constants if name not in text and name != "golden"] == []


@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_subject_has_a_row(subject: str) -> None:
    assert any(row.startswith(f"| {subject}") for row in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=[row.split("|")[1].strip() for row in ROWS])
def test_a_change_is_at_most_two_edits(row: str) -> None:
    """Two places where something is written, and beside them the generated pages, a file that shows it, and tests."""
    places = [word for word in words(row.split("|")[2]) if is_path(word)]
    assert len(places) <= 3

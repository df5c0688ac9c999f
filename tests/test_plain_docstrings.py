"""A docstring states or commands: one that begins like a question makes its reader finish the sentence."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
NOUN_CLAUSE = re.compile(r'"""(?:What|Who|Where|How|Which|When|Whether|Why) .*')


def faults(text: str) -> list[str]:
    return NOUN_CLAUSE.findall(text)


def test_every_docstring_is_a_statement_or_an_imperative() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    names = [name for name in listed if not name.startswith("tests/") and (ROOT / name).is_file()]
    assert len(names) > 300
    found = [f"{name}: {line}" for name in names for line in faults((ROOT / name).read_text(encoding="utf-8"))]
    assert not found, "Begin with a statement or an imperative:\n" + "\n".join(found)


def test_a_noun_clause_is_found() -> None:
    assert faults('"""Whether it waits."""') == ['"""Whether it waits."""']
    assert not faults('"""Tell whether it waits."""')

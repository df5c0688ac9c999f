"""The project has one name: no trace of an earlier one is left in a tracked file or in a file's name."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EARLIER = ("switch" + "yard").encode()


def test_no_trace_of_an_earlier_name() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    names = [name for name in listed.split(b"\0") if name]
    assert len(names) > 400
    found = [name for name in names if EARLIER in name.lower() or EARLIER in _content(name)]
    assert found == []


def _content(name: bytes) -> bytes:
    path = ROOT / name.decode()
    return path.read_bytes().lower() if path.is_file() and not path.is_symlink() else b""

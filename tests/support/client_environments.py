"""Environments that hold other people's clients, apart from this project's own: two, because they need two ``openai``.

Each is made from its lock when a test first needs it, and again when the lock changes. They lie in ``.venv/clients``.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ROOT / "tests" / "clients" / "environments"
FOLDER = ROOT / ".venv" / "clients"


def python_of(name: str) -> Path:
    """The interpreter of an environment, which is made when there is none of its lock."""
    lock, folder = LOCKS / f"{name}.txt", FOLDER / name
    stamp, python = folder / "made-from", folder / "bin" / "python"
    wanted = hashlib.sha256(lock.read_bytes() + sys.version.encode()).hexdigest()
    if stamp.is_file() and stamp.read_text() == wanted:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    # Without compiling: of thousands of modules few are ever imported.
    install = ["install", "--quiet", "--no-input", "--no-compile", "--disable-pip-version-check", "--require-hashes"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--python", python, *install, "-r", lock], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    stamp.write_text(wanted)
    return python

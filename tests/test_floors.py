"""The floors of the house: `make check` holds them; here is that the rules see what they are for."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = ROOT / "steelyard" / "commands"
LINTER = Path(sys.executable).with_name("lint-imports")


def imported(path: Path) -> set[str]:
    """Names of the modules of `steelyard.commands` that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "steelyard.commands":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("steelyard.commands."):
            found.add((node.module or "").split(".")[2])
    return found


def test_no_command_imports_another() -> None:
    """They share options through `options.py`; what two of them do is in the room that it belongs to."""
    commands = imported(COMMANDS / "root.py") - {"app"}
    assert {"up", "decide"} <= commands
    assert {name: both for name in commands if (both := imported(COMMANDS / f"{name}.py") & commands)} == {}


def lint(folder: Path, files: dict[str, str], contract: dict[str, object]) -> str:
    """What the linter says of a package `house` under one contract of ours, told for it."""
    package = folder / "house"
    for name, text in {"__init__.py": "", **files}.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    settings = "".join(f"{name} = {value!r}\n" for name, value in contract.items())
    config = folder / ".importlinter.toml"
    config.write_text(f"[tool.importlinter]\nroot_package = 'house'\n[[tool.importlinter.contracts]]\n{settings}")
    command = [str(LINTER), "--no-cache", "--config", str(config)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return "kept" if done.returncode == 0 else done.stdout


@pytest.mark.parametrize("guard", ["", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    "])
def test_a_circle_of_two_files_is_found(tmp_path: Path, guard: str) -> None:
    """Also one of types alone: whoever reads one file has to read the other."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (ours,) = [each for each in contracts if each["type"] == "acyclic_siblings"]
    contract = {**ours, "ancestors": ["house"]}
    files = {"room/__init__.py": "", "room/a.py": "import house.room.b\n", "room/b.py": ""}
    assert lint(tmp_path, files, contract) == "kept"
    files["room/b.py"] = f"{guard}import house.room.a\n"
    assert "house.room" in lint(tmp_path, files, contract)

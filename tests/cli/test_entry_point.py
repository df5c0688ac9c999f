"""Ctrl-C at any moment of a command: a status, and no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from steelyard_base.exit_codes import ExitCode

# Sends a signal to its own process when a module is imported, so that the moment does not depend on the machine.
AT_IMPORT = """
import os, signal, sys
name, number = os.environ["AT_IMPORT"].split(":")
def when(event, given):
    if event == "import" and given[0] == name:
        os.kill(os.getpid(), int(number))
sys.addaudithook(when)
"""

# From the first line of the entry point to the last module of the slowest command.
EARLY = ["typer", "pydantic", "rich.console", "httpx", "steelyard.commands.root", "steelyard.commands.up"]
LATE = ["boto3", "botocore.exceptions", "botocore.session"]


@pytest.fixture
def interrupted(tmp_path: Path):
    """Run a command that gets a signal when it imports a module."""
    (tmp_path / "sitecustomize.py").write_text(AT_IMPORT)

    def run(*words: str, at: str, number: int, parent: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {
            "PYTHONPATH": str(tmp_path),
            "AT_IMPORT": f"{at}:{number}",
            "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
            "STEELYARD_CACHE": str(tmp_path / "cache"),
        }
        command = [*parent, Path(sys.executable).parent / "steelyard", *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)

    return run


@pytest.mark.parametrize("number", [2, 15])
@pytest.mark.parametrize("module", EARLY)
def test_a_signal_while_the_commands_are_imported_ends_without_a_word(interrupted, module, number):
    done = interrupted("doctor", at=module, number=number)
    assert (done.returncode, done.stdout, done.stderr) == (ExitCode.INTERRUPTED, "", "")


@pytest.mark.parametrize("module", LATE)
def test_a_signal_while_a_command_imports_what_it_needs_is_told_in_a_word(interrupted, module):
    done = interrupted("sweep", at=module, number=2)
    assert (done.returncode, done.stdout, done.stderr) == (ExitCode.INTERRUPTED, "", "interrupted\n")


def test_a_parent_that_ignores_ctrl_c_means_its_children_too(interrupted):
    parent = ("bash", "-c", 'trap "" INT; exec "$@"', "bash")
    done = interrupted("--version", at="typer", number=2, parent=parent)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_entry_point_imports_nothing_that_takes_time():
    """What is imported before the signals are looked after is the interpreter's own."""
    script = "import sys; before = set(sys.modules); import steelyard.cli; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in done.stdout.split()} - set(sys.stdlib_module_names)
    assert loaded == {"steelyard", "steelyard_base"}


@pytest.mark.parametrize("redirected", ["> /dev/full", ">&-", "<&- >&- 2>&-", "| true"])
def test_an_output_that_takes_nothing_is_no_traceback(redirected):
    script = f"{Path(sys.executable).parent}/steelyard model list --json {redirected}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert "Traceback" not in done.stderr
    assert (done.returncode, done.stderr) in [(0, ""), (1, "error: No space left on device\n")]


def test_an_encoding_without_a_character_spells_it():
    script = "from steelyard.terminal import console; console.heading('grün')"
    script = f"import sys; from steelyard.cli import _open_streams; _open_streams(); {script}"
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, "gr\\xfcn" in done.stdout) == (0, True), done.stderr

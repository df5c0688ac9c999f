"""What a shell completes, asked as a shell asks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = Path(sys.executable).parent / "steelyard"


def complete(line: str, **variables: str) -> list[str]:
    """What bash offers for the last word of ``line``."""
    words = line.split(" ")
    asked = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1), "_STEELYARD_COMPLETE": "complete_bash"}
    done = subprocess.run(
        [COMMAND], env={**os.environ, **asked, **variables}, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("steelyard sw", ["sweep"]),
        ("steelyard release l", ["list", "log"]),
        ("steelyard serve --model gem", ["gemma-3-270m"]),
        ("steelyard model pull qwen3.5-", ["qwen3.5-0.8b", "qwen3.5-2b", "qwen3.5-4b"]),
        ("steelyard model verify gemma-3-270m lev", ["lev-4b"]),
        ("steelyard up --env ", ["dev", "prod", "staging"]),
        ("steelyard invoke --env staging decision-c", ["decision-cpu"]),
        ("steelyard invoke --env nowhere d", []),
        ("steelyard release diff sample sam", ["sample"]),
        ("steelyard decide --op", ["--option"]),
    ],
)
def test_names_are_completed(line, offered):
    assert complete(line) == offered


def test_a_broken_catalogue_offers_nothing(tmp_path):
    (tmp_path / "x.toml").write_text("name =")
    assert complete("steelyard model pull x", STEELYARD_MODELS=str(tmp_path)) == []


def test_the_script_for_bash_completes_in_bash():
    script = f"""
        eval "$(_STEELYARD_COMPLETE=source_bash {COMMAND})"
        COMP_WORDS=({COMMAND} release li) COMP_CWORD=2
        _steelyard_completion {COMMAND}
        echo "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("list\n", "")

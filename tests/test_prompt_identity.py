"""The identity of a prompt's words: a changed word changes it, a changed comment does not."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from starlette.testclient import TestClient

import steelyard_runtime
from steelyard.releases.assemble import prompt_versions
from steelyard_runtime.prompt_identity import LAYOUTS, prompt_identities, wording_hashes
from steelyard_runtime.scoring import options_as_cases, prompt, question_as_case

PACKAGE = Path(steelyard_runtime.__file__).parent
FOLDERS = ("scoring", "contracts", "decisions")
WORDS = {
    'INSTRUCTIONS = "Read the input': 'INSTRUCTIONS = "Look at the input',
    "Which option describes the input best?": "Which is it?",
    'state="Input:\\n"': 'state="State:\\n"',
    'question="Question: "': 'question="Q: "',
    'options="Options:\\n"': 'options="Answers:\\n"',
    'mark=")"': 'mark="."',
    'Piece("Answer:")': 'Piece("It is:")',
    'f"{label}: {description}"': 'f"{label} - {description}"',
    'dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")': "dumps(value, allow_nan=False",
    "Does this apply to the state: yes or no?": "Yes or no?",
    "Which option fits the state best?": "Which one?",
    "Which level fits the state best?": "Which level?",
    '_option("yes"': '_option("Yes"',
    '_option("no"': '_option("No"',
    'f"Level {index + 1} of {levels}"': 'f"Level {index + 1}"',
    'f"{title}{_indented(header)}: {_indented(content)}"': 'f"{title}{_indented(header)}:{_indented(content)}"',
    'line_break + "  "': 'line_break + " "',
    'f"refusal: {part.refusal}"': 'f"refused: {part.refusal}"',
    '{"phase": item.phase}': '{"stage": item.phase}',
    '"namespace": call.namespace': '"space": call.namespace',
    'for name in ("yes", "no")': 'for name in ("true", "false")',
}
"""Words as they stand in the sources, with others. All of them are in prompts."""

OF_HEADS = {
    "The essence of a message": "The essence of a text",
    "Piece('\" means in one word:\"')": "Piece('\" means:\"')",
}
"""Words around the state that heads read, with others."""
OF_CASES = {"Where can I download my invoice?": "Where is my invoice?"}
"""Words of the texts that options and states are measured against, with others."""
CASES, LETTERS = slice(2 * len(LAYOUTS)), slice(2 * len(LAYOUTS), 3 * len(LAYOUTS))
WORDINGS_AT = slice(3 * len(LAYOUTS), None)
"""Places in a line of hashes."""

SHOW = """
import importlib, sys
from pathlib import Path

def show():
    for name in [name for name in sys.modules if name.startswith("steelyard_runtime")]:
        del sys.modules[name]
    importlib.invalidate_caches()
    module = importlib.import_module("steelyard_runtime.prompt_identity")
    print(*(each.sha256 for each in module.prompt_identities()), *module.wording_hashes().values(), flush=True)

show()
for line in sys.stdin:
    path, word, other = eval(line)
    source = Path(path).read_text()
    Path(path).write_text(source.replace(word, other))
    show()
    Path(path).write_text(source)
"""
"""Prints the hashes, and again after each change of a file that it is told of."""


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The runtime's sources, to be changed."""
    ignored = shutil.ignore_patterns("__pycache__", "*.gguf")
    return Path(shutil.copytree(PACKAGE, tmp_path / PACKAGE.name, ignore=ignored))


def hashes(package: Path, changes: list[tuple[str, str, str]]) -> list[str]:
    """A line of hashes for the sources as they are, and one for each change alone."""
    found = subprocess.run(
        [sys.executable, "-B", "-c", SHOW],
        cwd=package.parent,
        input="".join(f"{change!r}\n" for change in changes),
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(package.parent)},
    )
    return found.stdout.splitlines()


def here() -> str:
    return " ".join([*(each.sha256 for each in prompt_identities()), *wording_hashes().values()])


def test_there_is_one_for_every_readout_and_layout() -> None:
    found = prompt_identities()
    assert [(each.strategy, each.layout, each.version) for each in found] == [
        *(("options-as-cases", layout, options_as_cases.VERSION) for layout in LAYOUTS),
        *(("question-as-case", layout, question_as_case.VERSION) for layout in LAYOUTS),
        *(("letters-raw", layout, prompt.VERSIONS[layout]) for layout in LAYOUTS),
    ]
    # Readouts that read the state alone have one prompt in both layouts.
    assert len({each.sha256 for each in found}) == len(found) - 2
    assert all(re.fullmatch("[0-9a-f]{64}", each.sha256) for each in found)


def test_a_release_and_a_server_say_the_same(stub_client: TestClient) -> None:
    told = stub_client.get("/v1/identity").json()["prompt"]
    released = {each["name"]: (each["version"], each["sha256"]) for each in prompt_versions()}
    assert released == {
        f"{name} {layout}": (words["version"], words["sha256"])
        for name, layouts in told["readouts"].items()
        for layout, words in layouts.items()
    } | {f"head {name}": (name, sha256) for name, sha256 in told["wordings"].items()}


def test_comments_and_docstrings_do_not_change_it(copied: Path) -> None:
    for path in (path for folder in FOLDERS for path in (copied / folder).rglob("*.py")):
        path.write_text(re.sub(r'^"""', '"""Other words. ', path.read_text(), count=1) + "\n# A comment.\n")
    assert hashes(copied, []) == [here()]


@pytest.mark.parametrize(
    ("words", "changes", "keeps"),
    [(WORDS, LETTERS, slice(0)), (OF_HEADS, WORDINGS_AT, LETTERS), (OF_CASES, CASES, slice(2 * len(LAYOUTS), None))],
)
def test_every_changed_word_changes_it(copied: Path, words: dict[str, str], changes: slice, keeps: slice) -> None:
    sources = {str(path): path.read_text() for folder in FOLDERS for path in (copied / folder).rglob("*.py")}
    told = []
    for word, other in words.items():
        (path,) = [path for path, source in sources.items() for _ in range(source.count(word))]
        told.append((path, word, other))
    unchanged, *changed = (line.split() for line in hashes(copied, told))
    assert unchanged == here().split()
    assert len(changed) == len(words)
    for word, line in zip(words, changed, strict=True):
        assert line[keeps] == unchanged[keeps], word
        if changes is WORDINGS_AT:
            assert line[changes] != unchanged[changes], word
        else:
            assert not set(line[changes]) & set(unchanged[changes]), word

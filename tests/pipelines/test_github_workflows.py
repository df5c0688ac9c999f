"""The workflows for GitHub Actions: their form, what they are pinned to, and that the commands they run exist."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import Any

import pytest
import typer.main
import yaml

from steelyard.commands.root import app

FOLDER = Path(__file__).resolve().parents[2] / "pipelines" / "github"
FILES = sorted(FOLDER.glob("*.yml"))
WORKFLOW = {"name", "on", "permissions", "concurrency", "env", "jobs"}
JOB = {"needs", "if", "runs-on", "timeout-minutes", "environment", "permissions", "env", "steps"}
STEP = {"name", "if", "uses", "with", "env", "run"}
PINNED = re.compile(r"[a-z-]+/[a-z-]+@[0-9a-f]{40} # v[0-9]+\.[0-9]+\.[0-9]+")


class Unique(yaml.SafeLoader):
    """Refuses a key that is there twice, and takes ``on`` as a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value]
        assert len(names) == len(set(names)), names
        return {key.value: self.construct_object(value, deep=True) for key, value in node.value}


def workflow(path: Path) -> dict[str, Any]:
    said: dict[str, Any] = yaml.load(path.read_text(), Loader=Unique)
    return said


def steps(path: Path) -> Iterator[dict[str, Any]]:
    for job in workflow(path)["jobs"].values():
        yield from job["steps"]


def test_all_are_there() -> None:
    assert [path.name for path in FILES] == ["bases.yml", "drift.yml", "pull-request.yml", "release.yml"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_form(path: Path) -> None:
    said = workflow(path)
    assert set(said) <= WORKFLOW
    assert said["permissions"] == {}
    for name, job in said["jobs"].items():
        assert set(job) <= JOB, name
        assert job["runs-on"] == "ubuntu-24.04"  # not "latest"
        assert 0 < job["timeout-minutes"] <= 240
        assert set(job["permissions"]) <= {"contents", "id-token", "pull-requests"}
        assert job["permissions"]["contents"] == "read"
        assert job.get("needs", name) in said["jobs"]
    for step in steps(path):
        assert set(step) <= STEP
        assert ("uses" in step) != ("run" in step)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_others_made_is_pinned_by_commit_and_no_key_is_stored(path: Path) -> None:
    text = path.read_text()
    used = re.findall(r"uses: (.*)", text)
    assert used
    assert [each for each in used if not PINNED.fullmatch(each)] == []
    assert "secrets." not in text
    for step in steps(path):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scripts_are_bash_into_which_nobody_writes(path: Path) -> None:
    for step in steps(path):
        if "run" in step:
            assert "${{" not in step["run"], "an expression is pasted into the script; give it as env"
            done = subprocess.run(["bash", "-n"], input=step["run"], text=True, capture_output=True, check=False)
            assert done.returncode == 0, done.stderr


def commands(path: Path) -> Iterator[list[str]]:
    """The words of each call of our command, in scripts of ``pipelines/steps`` too, with what their step says."""
    for step in steps(path):
        script = step.get("run", "")
        if script.startswith("pipelines/steps/"):
            script = (FOLDER.parents[1] / script).read_text()
        for line in script.replace("\\\n", " ").splitlines():
            for call in re.findall(r"\.venv/bin/steelyard ([^>|]*)", line):
                said = Template(call.replace("$(", "").replace(")", "")).safe_substitute(step.get("env", {}))
                yield shlex.split(said)


def test_each_step_is_run_and_told_all_that_it_reads() -> None:
    """Here by what the workflow says; tests/deploy/test_pipeline.py runs them."""
    run = {}
    for path in FILES:
        whole = workflow(path).get("env", {})
        for step in steps(path):
            if (script := step.get("run", "")).startswith("pipelines/steps/"):
                text = (FOLDER.parents[1] / script).read_text()
                read = set(re.findall(r"\$([A-Z_]+)", text))
                assert read <= {*whole, *step.get("env", {})}, script
                run[Path(script).stem] = text
    assert sorted(run) == sorted(each.stem for each in (FOLDER.parent / "steps").iterdir())
    assert all("set -euo pipefail" in text for text in run.values())
    assert all(each.stat().st_mode & 0o111 == 0o111 for each in (FOLDER.parent / "steps").iterdir())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_commands_exist_with_these_options(path: Path) -> None:
    found = list(commands(path))
    assert found
    for words in found:
        command: Any = typer.main.get_command(app)
        while hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        known = {name for each in command.params for name in each.opts}
        assert {word for word in words if word.startswith("--")} <= known, command.name


def test_a_release_is_built_once_and_goes_on_by_evidence() -> None:
    path = FOLDER / "release.yml"
    jobs = workflow(path)["jobs"]
    assert [(name, job.get("needs")) for name, job in jobs.items()] == [
        ("dev", None),
        ("staging", "dev"),
        ("prod", "staging"),
    ]
    assert jobs["prod"]["environment"] == "prod"  # its reviewers approve
    called = [" ".join(words[:2]) for words in commands(path)]
    assert called == [
        *("release build", "up --env", "decision evaluate"),
        *("release promote", "decision evaluate", "release promote", "release watch", "release log"),
    ]
    promoted = [words for words in commands(path) if words[:2] == ["release", "promote"]]
    assert [(words[words.index("--from") + 1], words[words.index("--to") + 1]) for words in promoted] == [
        ("dev", "staging"),
        ("staging", "prod"),
    ]
    assert all("--evidence" in words and "--why" in words for words in promoted)

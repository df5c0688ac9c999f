"""The runner: real commands, in the order and with the variables that CodeBuild has."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

RUNNER = [sys.executable, "-m", "steelyard_localcloud.codebuild.runner"]


@dataclass(frozen=True)
class Outcome:
    """What a run left behind."""

    exit_status: int
    log: str
    result: dict[str, Any]

    @property
    def status(self) -> str:
        return str(self.result["buildStatus"])

    @property
    def phases(self) -> dict[str, str]:
        return {phase["phaseType"]: phase["phaseStatus"] for phase in self.result["phases"]}

    @property
    def exported(self) -> dict[str, str]:
        return {each["name"]: each["value"] for each in self.result["exportedEnvironmentVariables"]}

    def lines(self) -> list[str]:
        """What the commands printed."""
        return [line for line in self.log.splitlines() if not line.startswith("[Container]")]


Run = Callable[..., Outcome]


@pytest.fixture
def words(tmp_path: Path) -> Callable[..., list[str]]:
    """The words of a run of a specification."""

    def make(spec: str, *options: str) -> list[str]:
        (tmp_path / "source").mkdir(exist_ok=True)
        (tmp_path / "tmp").mkdir(exist_ok=True)
        (tmp_path / "spec.yml").write_text("version: 0.2\n" + textwrap.dedent(spec), encoding="utf-8")
        places = ["--buildspec", "spec.yml", "--source", "source", "--result", "result.json"]
        return [*RUNNER, *places, *options]

    return make


@pytest.fixture
def run(tmp_path: Path, words: Callable[..., list[str]]) -> Run:
    def go(spec: str, *options: str) -> Outcome:
        environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
        ended = subprocess.run(
            words(spec, *options), cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert ended.stderr == ""
        assert list((tmp_path / "tmp").iterdir()) == []
        assert not (tmp_path / "result.json.part").exists()
        result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
        return Outcome(ended.returncode, ended.stdout, result)

    return go


def test_variables_and_the_folder_go_on_and_nothing_else_does(run: Run) -> None:
    outcome = run(
        """
        env:
          shell: bash
          variables: {A: specification, B: specification}
          exported-variables: [MADE, LINES, MISSING]
        phases:
          pre_build:
            commands:
              - mkdir inner && cd inner
              - export MADE="$A-$B"
              - KEPT=no
          build:
            commands:
              - export LINES="one
                two = \\"three\\""
              - printf '%s\\n' "$MADE" "${KEPT:-nothing}" "${PWD##*/}"
              - set -a && . <(echo FROM_FILE=yes) && set +a
              - echo "$FROM_FILE"; exit 0
              - |
                export LINES=$'a\\nb'
        """,
        "--env=B=given",
    )
    assert outcome.status == "SUCCEEDED"
    assert outcome.exit_status == 0
    assert outcome.lines() == ["specification-given", "nothing", "inner", "yes"]
    assert outcome.exported == {"MADE": "specification-given", "LINES": "a\nb"}


def test_codebuilds_own_variables(run: Run, tmp_path: Path) -> None:
    outcome = run("phases: {build: {commands: ['echo $CODEBUILD_SRC_DIR $CODEBUILD_CI $CODEBUILD_BUILD_SUCCEEDING']}}")
    assert outcome.lines() == [f"{tmp_path / 'source'} true 1"]


@pytest.mark.parametrize(
    ("failing", "option", "phases"),
    [
        ("install", "", {"INSTALL": "FAILED"}),
        ("pre_build", "", {"INSTALL": "SUCCEEDED", "PRE_BUILD": "FAILED"}),
        (
            "build",
            "",
            {"INSTALL": "SUCCEEDED", "PRE_BUILD": "SUCCEEDED", "BUILD": "FAILED", "POST_BUILD": "SUCCEEDED"},
        ),
        ("build", "ABORT", {"INSTALL": "SUCCEEDED", "PRE_BUILD": "SUCCEEDED", "BUILD": "FAILED"}),
        (
            "pre_build",
            "CONTINUE",
            {"INSTALL": "SUCCEEDED", "PRE_BUILD": "FAILED", "BUILD": "SUCCEEDED", "POST_BUILD": "SUCCEEDED"},
        ),
        (
            "post_build",
            "",
            {"INSTALL": "SUCCEEDED", "PRE_BUILD": "SUCCEEDED", "BUILD": "SUCCEEDED", "POST_BUILD": "FAILED"},
        ),
    ],
)
def test_a_failed_command_ends_its_phase(run: Run, failing: str, option: str, phases: dict[str, str]) -> None:
    spec = "phases:\n"
    for name in ("install", "pre_build", "build", "post_build"):
        spec += f"  {name}:\n    finally: [echo finally {name} $CODEBUILD_BUILD_SUCCEEDING]\n"
        if name == failing:
            spec += f"    on-failure: {option}\n" * bool(option)
            spec += "    commands: [exit 7, echo never]\n"
        else:
            spec += "    commands: ['true']\n"
    outcome = run(spec)
    assert outcome.status == "FAILED"
    assert outcome.exit_status == 1
    assert outcome.phases == phases
    failed = list(phases.values()).index("FAILED")
    names = ["install", "pre_build", "build", "post_build"][: len(phases)]
    assert outcome.lines() == [f"finally {name} {int(place <= failed)}" for place, name in enumerate(names)]
    [context] = outcome.result["phases"][failed]["contexts"]
    assert context["statusCode"] == "COMMAND_EXECUTION_ERROR"
    assert context["message"] == "Error while executing command: exit 7. Reason: exit status 7"
    assert outcome.result["message"] == context["message"]


def test_a_failed_finally_fails_its_phase(run: Run) -> None:
    outcome = run("phases: {build: {commands: ['true'], finally: ['false']}}")
    assert outcome.phases == {"BUILD": "FAILED"}


def test_a_killed_shell_is_a_failed_command_and_keeps_the_variables_of_before(run: Run) -> None:
    outcome = run(
        """
        env: {exported-variables: [A]}
        phases: {build: {commands: [export A=1, 'export A=2; kill -9 $$'], finally: [echo "$A"]}}
        """
    )
    assert outcome.status == "FAILED"
    assert "exit status 137" in outcome.result["message"]
    assert outcome.exported == {"A": "1"}


def test_a_build_that_asks_for_python_gets_an_environment_of_its_own(run: Run) -> None:
    outcome = run(
        """
        phases:
          install:
            runtime-versions: {python: "3.12"}
            commands:
              - python -c 'import sys; print(sys.prefix != sys.base_prefix, "python" in sys.prefix)'
              - python -c 'import yaml' 2>&1 | tail -n 1
              - command -v pip | grep -c "$VIRTUAL_ENV"
        """
    )
    assert outcome.lines() == ["True True", "ModuleNotFoundError: No module named 'yaml'", "1"]


def started(words: list[str], folder: Path, *, lifeline: bool = False) -> subprocess.Popen[str]:
    """A run that has reached its first command, which prints a line."""
    process = subprocess.Popen(
        words,
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder / "tmp")},
        stdin=subprocess.PIPE if lifeline else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    while not process.stdout.readline().startswith("ready"):
        assert process.poll() is None
    return process


SLOW = """
phases:
  build:
    commands:
      - (setsid sleep 600 > /dev/null 2>&1 & echo $! > daemon); echo $$ > shell; echo ready; sleep 600
      - touch never
  post_build: {commands: [touch never]}
"""


def ended(folder: Path) -> bool:
    """Whether the processes of ``SLOW`` are gone."""
    return not any(Path(f"/proc/{(folder / name).read_text().strip()}").exists() for name in ("shell", "daemon"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_build_leaves_no_process(words: Any, tmp_path: Path, number: signal.Signals) -> None:
    process = started(words(SLOW), tmp_path)
    result = tmp_path / "result.json"
    assert json.loads(result.read_text())["buildStatus"] == "IN_PROGRESS"
    process.send_signal(number)
    log, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "The build was stopped" in log
    assert ended(tmp_path / "source")
    told = json.loads(result.read_text())
    assert told["buildStatus"] == "STOPPED"
    assert [(phase["phaseType"], phase["phaseStatus"]) for phase in told["phases"]] == [("BUILD", "STOPPED")]
    assert not (tmp_path / "source" / "never").exists()
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_build_ends_with_its_starter(words: Any, tmp_path: Path) -> None:
    process = started(words(SLOW, "--lifeline"), tmp_path, lifeline=True)
    process.communicate(timeout=60)  # closes standard input
    assert process.returncode == 130
    assert ended(tmp_path / "source")


def test_the_longest_time_ends_a_build(run: Run, tmp_path: Path) -> None:
    outcome = run(SLOW, "--timeout-s=2")
    assert outcome.status == "TIMED_OUT"
    assert outcome.exit_status == 1
    assert outcome.phases == {"BUILD": "TIMED_OUT"}
    assert ended(tmp_path / "source")


def test_what_a_successful_build_leaves_running_is_ended(run: Run, tmp_path: Path) -> None:
    outcome = run("phases: {build: {commands: ['(setsid sleep 600 & echo $! > daemon)']}}")
    assert outcome.status == "SUCCEEDED"
    assert "1 processes that the build left behind were ended" in outcome.log
    assert not Path(f"/proc/{(tmp_path / 'source' / 'daemon').read_text().strip()}").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"--buildspec": "missing.yml"}, "cannot read missing.yml"),
        ({"--source": "missing"}, "the source missing is not a folder"),
    ],
)
def test_a_wrong_place_is_a_sentence(words: Any, tmp_path: Path, change: dict[str, str], said: str) -> None:
    given = words("phases: {build: {commands: ['true']}}")
    for option, value in change.items():
        given[given.index(option) + 1] = value
    refused = subprocess.run(given, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert said in refused.stderr
    assert "Traceback" not in refused.stderr


def test_an_unknown_key_is_refused_before_anything_runs(words: Any, tmp_path: Path) -> None:
    given = words("phases: {build: {commands: [touch made]}}\ncache: {paths: [a]}")
    refused = subprocess.run(given, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "cache: there is no such field" in refused.stderr
    assert not (tmp_path / "source" / "made").exists()

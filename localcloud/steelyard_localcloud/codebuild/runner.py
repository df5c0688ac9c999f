"""Runs a build specification on this machine, as CodeBuild does: ``python -m steelyard_localcloud.codebuild.runner``.

Each command gets a shell of its own, which begins with the exported variables and the folder that the one before ended
with. A variable that was not exported, a function or an alias does not carry over to the next command, so that a
specification that works here does not lean on more than CodeBuild documents.

- A failed command ends its phase; ``finally`` runs all the same. A failed ``install`` or ``pre_build`` ends the build;
  a failed ``build`` is followed by ``post_build``, unless ``on-failure: ABORT`` says otherwise.
- A build with a failed phase has failed, also where ``on-failure: CONTINUE`` let it continue.
- ``runtime-versions`` with Python gives a fresh virtual environment of the Python that runs this module, first on
  ``PATH``. The log names its version, not the one that was asked for: no Python is installed.
- ``docker`` is ``docker_on_buildah`` where no Docker daemon answers.

There is no container around the build: it runs as the caller, with the caller's files and network. Its temporary files
(``TMPDIR``) and whatever processes it leaves behind are removed at its end.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib.metadata
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from steelyard_base.exit_codes import CommandError, ExitCode
from steelyard_localcloud.codebuild.buildspec import PHASES, Buildspec, Phase, parse
from steelyard_localcloud.containers.docker_on_buildah import remove_containers
from steelyard_localcloud.containers.storage import VARIABLE, own_storage

OLDEST_PYTHON = (3, 11)
_GRACE_S = 10.0
_LOOK_EVERY_S = 0.05
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_GOES_ON_TO = {"install": None, "pre_build": None, "build": "post_build", "post_build": None}

# The command is sourced, so that `exit` in it still leaves the variables and the folder behind.
_WRAPPER = """\
trap 'status=$?; env -0 > "$STEELYARD_BUILD_STATE/env" && pwd > "$STEELYARD_BUILD_STATE/folder"; exit $status' EXIT
. "$STEELYARD_BUILD_STATE/command"
"""


class _Ended(BaseException):
    """The build is to end now, with this status."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


@dataclass
class PhaseResult:
    """Result of one phase. Times are seconds since the epoch."""

    phase: str
    start: float
    status: str = "IN_PROGRESS"
    end: float | None = None
    message: str = ""

    def shape(self) -> dict[str, Any]:
        """As CodeBuild tells it."""
        phase: dict[str, Any] = {"phaseType": self.phase.upper(), "startTime": self.start}
        if self.end is not None:
            phase |= {
                "phaseStatus": self.status,
                "endTime": self.end,
                "durationInSeconds": round(self.end - self.start),
                "contexts": [
                    {"statusCode": "COMMAND_EXECUTION_ERROR" if self.message else "", "message": self.message}
                ],
            }
        return phase


@dataclass
class Build:
    """One run of a build specification.

    Attributes:
        spec: What to run.
        source: The folder that its commands start in.
        result: The file that says how far it is, replaced at every phase.
        variables: Variables of the build, over those of the specification.
        folder: For its own temporary files.
        environment: The variables that the next command begins with.
    """

    spec: Buildspec
    source: Path
    result: Path
    variables: Mapping[str, str]
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    phases: list[PhaseResult] = field(default_factory=list)
    status: str = "IN_PROGRESS"
    message: str = ""

    def run(self, timeout_s: float | None) -> str:
        """Run all phases and write the result.

        Args:
            timeout_s: The longest that it may take, in seconds.

        Returns:
            The status: ``SUCCEEDED``, ``FAILED``, ``STOPPED`` or ``TIMED_OUT``.
        """
        self._working = self.source
        self._write()
        try:
            _take_signals(_stop)
            signal.setitimer(signal.ITIMER_REAL, timeout_s or 0)
            self._prepare()
            failed = self._run_phases()
            ended = "FAILED" if failed else "SUCCEEDED"
            self.message = next((phase.message for phase in self.phases if phase.message), "")
        except CommandError as error:
            ended, self.message = "FAILED", error.message
            _say(error.message)
        except _Ended as error:
            ended, self.message = error.status, error.reason
            _say(error.reason)
            if self.phases and self.phases[-1].end is None:
                self._finish(self.phases[-1], ended, error.reason)
        _take_signals(_ignore)
        if (self.folder / "bin" / "docker").exists() and Path(self.environment.get(VARIABLE, "")).is_file():
            remove_containers(self.environment["CODEBUILD_BUILD_ID"], self.environment)
        if left := _end_descendants():
            _say(f"{left} processes that the build left behind were ended")
        self.status = ended
        self._write()
        return ended

    def _prepare(self) -> None:
        """The variables that the first command begins with, and the Python that the build asks for."""
        self.environment = _environment(self.spec, source=self.source, folder=self.folder, variables=self.variables)
        if self.spec.python is None:
            return
        running = f"{sys.version_info.major}.{sys.version_info.minor}"
        if sys.version_info < OLDEST_PYTHON:
            raise CommandError(
                f"the build asks for Python {self.spec.python}, and {running} is too old: 3.11 is needed"
            )
        _say(f"Python {self.spec.python} is asked for; the build gets an environment of Python {running}")
        environment = self.folder / "python"
        _make_python(environment)
        self.environment["VIRTUAL_ENV"] = str(environment)
        self.environment["PATH"] = f"{environment / 'bin'}:{self.environment['PATH']}"

    def _run_phases(self) -> bool:
        """Run the phases that are due; whether one failed."""
        failed, only = False, None
        for name in PHASES:
            phase = self.spec.phase(name)
            if phase is None or (only is not None and name != only):
                continue
            if not self._run_phase(name, phase):
                failed = True
                self.environment["CODEBUILD_BUILD_SUCCEEDING"] = "0"
                if phase.on_failure == "ABORT":
                    return True
                if phase.on_failure is None:
                    only = _GOES_ON_TO[name]
                    if only is None:
                        return True
        return failed

    def _run_phase(self, name: str, phase: Phase) -> bool:
        result = PhaseResult(name, time.time())
        self.phases.append(result)
        self._write()
        _say(f"Entering phase {name.upper()}")
        message = self._run_commands(phase.commands)
        if said := self._run_commands(phase.finally_):
            message = message or said
        self._finish(result, "FAILED" if message else "SUCCEEDED", message)
        return not message

    def _finish(self, result: PhaseResult, status: str, message: str) -> None:
        result.status, result.end, result.message = status, time.time(), message
        self._write()
        _say(f"Phase complete: {result.phase.upper()} State: {status}")
        code = "COMMAND_EXECUTION_ERROR" if message else ""
        _say(f"Phase context status code: {code} Message: {message}")

    def _run_commands(self, commands: list[str]) -> str:
        """Run commands until one fails; what failed, or nothing."""
        for command in commands:
            _say(f"Running command {command.rstrip()}")
            if status := self._run_command(command):
                _say(f"Command did not exit successfully {command.rstrip()} exit status {status}")
                return f"Error while executing command: {command.rstrip()}. Reason: exit status {status}"
        return ""

    def _run_command(self, command: str) -> int:
        state = self.folder / "state"
        state.mkdir(exist_ok=True)
        for name in ("env", "folder"):
            (state / name).unlink(missing_ok=True)
        (state / "command").write_text(f"{command}\n", encoding="utf-8")
        status = _run(
            [self.spec.env.shell, "-c", _WRAPPER],
            environment={**self.environment, "STEELYARD_BUILD_STATE": str(state)},
            folder=self._working,
        )
        if (state / "folder").is_file():
            self.environment = _read_variables(state / "env")
            self._working = Path((state / "folder").read_text(encoding="utf-8").removesuffix("\n"))
        else:
            _say("The shell was ended before it could hand on its variables; the next command gets those of before")
        return status

    def exported(self) -> dict[str, str]:
        """The exported variables that are set."""
        return {name: self.environment[name] for name in self.spec.env.exported_variables if name in self.environment}

    def _write(self) -> None:
        exported = {} if self.status == "IN_PROGRESS" else self.exported()
        content = {
            "buildStatus": self.status,
            "message": self.message,
            "phases": [phase.shape() for phase in self.phases],
            "exportedEnvironmentVariables": [{"name": name, "value": value} for name, value in exported.items()],
        }
        part = self.result.with_name(f"{self.result.name}.part")
        part.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        part.replace(self.result)


def run_build(
    *, spec: Buildspec, source: Path, result: Path, variables: Mapping[str, str], timeout_s: float | None = None
) -> str:
    """Run a build specification in this process, which must do nothing else meanwhile.

    Args:
        spec: What to run.
        source: The folder that its commands start in.
        result: The JSON file to write; it is there from the start, with ``buildStatus`` ``IN_PROGRESS``.
        variables: Variables of the build, over those of the specification.
        timeout_s: The longest that it may take, in seconds.

    Returns:
        The build's status.
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    folder = Path(tempfile.mkdtemp(prefix="steelyard-build-"))
    try:
        return Build(spec, source, result, variables, folder).run(timeout_s)
    finally:
        _close_the_log()
        shutil.rmtree(folder, ignore_errors=True)


def _close_the_log() -> None:
    """Close the log, so that its reader need not wait until thousands of small files are removed."""
    sys.stdout.flush()
    with open(os.devnull, "wb") as nowhere:
        for number in (1, 2):
            os.dup2(nowhere.fileno(), number)


def _environment(spec: Buildspec, *, source: Path, folder: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that the first command begins with."""
    temporary, programs = folder / "tmp", folder / "bin"
    for made in (temporary, programs):
        made.mkdir()
    own = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
    found = {
        **own,
        "CODEBUILD_BUILD_ID": f"local:{uuid.uuid4()}",
        **spec.env.variables,
        **variables,
        "CODEBUILD_BUILD_SUCCEEDING": "1",
        "CODEBUILD_CI": "true",
        "CODEBUILD_SRC_DIR": str(source),
        "CODEBUILD_START_TIME": str(int(time.time() * 1000)),
        "TMPDIR": str(temporary),
    }
    if found.get("STEELYARD_DOCKER") == "buildah" or not _docker_answers():
        _write_docker(programs / "docker")
        if VARIABLE not in found and os.geteuid() == 0:
            found[VARIABLE] = str(own_storage())
    found["PATH"] = f"{programs}:{found.get('PATH', os.defpath)}"
    # Where a login is kept: with the build, not in the caller's home.
    found.setdefault("REGISTRY_AUTH_FILE", str(folder / "auth.json"))
    found.setdefault("DOCKER_CONFIG", str(folder / "docker"))
    return found


def _docker_answers() -> bool:
    if shutil.which("docker") is None:
        return False
    try:
        asked = subprocess.run(["docker", "version"], capture_output=True, timeout=10, check=False)  # noqa: S607
    except subprocess.TimeoutExpired:
        return False
    return asked.returncode == 0


def _write_docker(path: Path) -> None:
    """A ``docker`` that is ours. ``-I``: the folder of the build, its own packages included, is not searched."""
    words = shlex.join([sys.executable, "-I", "-m", "steelyard_localcloud.containers.docker_on_buildah"])
    path.write_text(f'#!/bin/sh\nexec {words} "$@"\n', encoding="utf-8")
    path.chmod(0o755)


def _run(words: list[str], *, environment: Mapping[str, str] | None = None, folder: Path | None = None) -> int:
    """Run a program and wait; its exit status, as a shell tells it."""
    try:
        child = subprocess.Popen(  # noqa: S603 - the commands of the specification are what this program is for
            words,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=folder,
            preexec_fn=_die_with_the_runner,
        )
    except FileNotFoundError as error:
        raise CommandError(f"cannot run {words[0]}: {error.strerror} ({error.filename})") from error
    status = child.wait()
    return status if status >= 0 else 128 - status


def _die_with_the_runner() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # Python ignores these, and so would every program of the build.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)


def _make_python(environment: Path) -> None:
    """Make an empty environment with the pip of this Python; to install pip anew would take seconds of every build."""
    try:
        files = importlib.metadata.distribution("pip").files or ()
    except importlib.metadata.PackageNotFoundError:
        _run([sys.executable, "-m", "venv", str(environment)])
        return
    _run([sys.executable, "-m", "venv", "--without-pip", str(environment)])
    (packages,) = environment.glob("lib/python*/site-packages")
    for file in files:
        if ".." not in file.parts:
            path = packages / file
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file.locate(), path)
    program = environment / "bin" / "pip"
    program.write_text(f"#!{environment / 'bin' / 'python'}\nfrom pip._internal.cli.main import main\nmain()\n")
    program.chmod(0o755)


def _read_variables(path: Path) -> dict[str, str]:
    pairs = (entry.partition(b"=") for entry in path.read_bytes().split(b"\0") if entry)
    read = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
    for name in ("STEELYARD_BUILD_STATE", "_", "SHLVL"):
        read.pop(name, None)
    return read


def _end_descendants() -> int:
    """End every process that the build left behind; how many there were."""
    left = list(_descendants())
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in _descendants():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        deadline = time.monotonic() + _GRACE_S
        while any(True for _ in _descendants()) and time.monotonic() < deadline:
            time.sleep(_LOOK_EVERY_S)
    return len(left)


def _descendants() -> Iterator[int]:
    """Ids of the living processes below this one; the dead ones are buried on the way."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isascii() and entry.name.isdecimal():
            with contextlib.suppress(OSError):
                state, parent = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[:2]
                if state != "Z":
                    children.setdefault(int(parent), []).append(int(entry.name))
    waiting = list(children.get(os.getpid(), []))
    while waiting:
        pid = waiting.pop()
        yield pid
        waiting += children.get(pid, [])


def _take_signals(handler: Any) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
        signal.signal(number, handler)


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Not SIG_IGN, which the build's programs would inherit."""


def _stop(number: int, _frame: FrameType | None) -> NoReturn:
    _take_signals(_ignore)
    if number == signal.SIGALRM:
        raise _Ended("TIMED_OUT", "The build has taken longer than its project allows and was ended")
    raise _Ended("STOPPED", "The build was stopped")


def _stop_with_the_starter() -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 1024):
            pass
    os.kill(os.getpid(), signal.SIGTERM)


def _say(line: str) -> None:
    stamp = datetime.now(UTC).strftime("%Y/%m/%d %H:%M:%S.%f")
    sys.stdout.write(f"[Container] {stamp} {line}\n")
    sys.stdout.flush()


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m steelyard_localcloud.codebuild.runner", description="Run a build specification on this machine."
    )
    parser.add_argument("--buildspec", type=Path, required=True, help="the build specification")
    parser.add_argument("--source", type=Path, required=True, help="the folder that its commands start in")
    parser.add_argument("--result", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--env", type=_variable, action="append", default=[], metavar="NAME=VALUE", help="a variable")
    parser.add_argument("--timeout-s", type=float, help="the longest that it may take, in seconds")
    parser.add_argument("--lifeline", action="store_true", help="stop when standard input ends")
    return parser


def main(arguments: list[str]) -> int:
    """Run a build specification; 0 when the build succeeded."""
    given = _arguments().parse_args(arguments)
    try:
        try:
            text = given.buildspec.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CommandError(f"cannot read {given.buildspec}: {error}", code=ExitCode.USAGE) from error
        if not given.source.is_dir():
            raise CommandError(f"the source {given.source} is not a folder", code=ExitCode.USAGE)
        spec = parse(text, name=str(given.buildspec))
    except CommandError as error:
        sys.stderr.write(f"{error.message}\n{error.hint or ''}".rstrip() + "\n")
        return int(error.code)
    if given.lifeline:
        threading.Thread(target=_stop_with_the_starter, daemon=True).start()
    status = run_build(
        spec=spec,
        source=given.source.resolve(),
        result=given.result,
        variables=dict(given.env),
        timeout_s=given.timeout_s,
    )
    if status == "STOPPED":
        return int(ExitCode.INTERRUPTED)
    return int(ExitCode.OK if status == "SUCCEEDED" else ExitCode.FAILED)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

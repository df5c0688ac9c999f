"""Runs what a CodeBuild project would run on this machine, with the caller's credentials."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from steelyard.aws.session import Aws
from steelyard.releases.codebuild import (
    TAIL_LINES,
    FinishedBuild,
    WantedBuild,
    Watcher,
    asset_of,
    project_definition,
    require_asset,
)
from steelyard.releases.source import ROOT, asset_hash, input_files
from steelyard_base.exit_codes import CommandError, ExitCode

_STOP_S = 60.0


def run_builds_here(
    aws: Aws, wanted: Sequence[WantedBuild], watcher: Watcher, *, root: Path = ROOT
) -> dict[str, FinishedBuild]:
    """Run every wanted build here, one after the other. What is in its place already is not made again.

    Args:
        aws: The account whose projects say what to run, and that gets the results.
        wanted: The results.
        watcher: Receives the builds' progress.
        root: The checkout to build.

    Returns:
        The finished builds by label.

    Raises:
        CommandError: What runs builds here is not installed, the project or the checkout has other source, or a build
            failed; the message has the end of its log.
        KeyboardInterrupt: The build has been stopped.
    """
    _require_emulation()
    finished = {}
    for each in wanted:
        with tempfile.TemporaryDirectory(prefix="steelyard-release-") as folder:
            finished[each.label] = _run(aws, each, watcher, Path(folder), root)
    return finished


def _require_emulation() -> None:
    missing = [name for name in ("steelyard_localcloud", "yaml") if importlib.util.find_spec(name) is None]
    if missing:
        raise CommandError(
            f"builds cannot be run on this machine: {' and '.join(missing)} cannot be imported",
            code=ExitCode.USAGE,
            hint="Run make setup, or install the extra: pip install 'steelyard[local-images]'.",
        )


def stage(root: Path, to: Path) -> None:
    """Copy what the builds are made of, as the project's source has it: what git knows, as it lies here."""
    for name in input_files(root):
        target = to / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, target, follow_symlinks=False)


def _run(aws: Aws, wanted: WantedBuild, watcher: Watcher, folder: Path, root: Path) -> FinishedBuild:
    definition = project_definition(aws, wanted.project)
    # The image's tag is the project's, a hash of the project's source: other source must never come under it.
    require_asset(f"the project {wanted.project}", asset_of(definition), wanted)
    source, buildspec, result = folder / "source", folder / "buildspec.yml", folder / "result.json"
    source.mkdir()
    stage(root, source)
    # After the copy, so that a change before or during it is seen.
    require_asset(f"this checkout, {root},", asset_hash(root) if wanted.asset is not None else "", wanted)
    buildspec.write_text(definition["source"]["buildspec"], encoding="utf-8")
    listed = definition.get("environment", {}).get("environmentVariables", ())
    variables = {**{each["name"]: each["value"] for each in listed}, **dict(wanted.variables)}
    command = [
        *(sys.executable, "-m", "steelyard_localcloud.codebuild.runner", "--lifeline"),
        *("--buildspec", str(buildspec), "--source", str(source), "--result", str(result)),
        *(word for name, value in variables.items() for word in ("--env", f"{name}={value}")),
    ]
    watcher.state(wanted.label, "on this machine")
    region = {"AWS_REGION": aws.region, "AWS_DEFAULT_REGION": aws.region}
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    process = subprocess.Popen(  # noqa: S603 - our own module
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, **region},
    )
    try:
        for line in process.stdout or ():
            tail.append(line.rstrip("\n"))
            watcher.line(wanted.label, tail[-1])
        code = process.wait()
    except BaseException:
        _stop(process)
        raise
    if code:
        raise _failure(wanted, result, tail)
    exported = json.loads(result.read_text(encoding="utf-8"))["exportedEnvironmentVariables"]
    watcher.state(wanted.label, "done")
    return FinishedBuild(
        label=wanted.label, id="on this machine", exported={e["name"]: e["value"] for e in exported}, fresh=True
    )


def _stop(process: subprocess.Popen[str]) -> None:
    """End the build, which then removes what it has begun: its lifeline is its standard input."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _failure(wanted: WantedBuild, result: Path, tail: Sequence[str]) -> CommandError:
    reason = ""
    if result.is_file():
        said = json.loads(result.read_text(encoding="utf-8"))
        reason = f": {said['message']}" if said.get("message") else ""
    lines = "\n".join(["", *(f"  {line}" for line in tail)]) if tail else " (its log is empty)"
    return CommandError(
        f"the build of {wanted.label} on this machine has failed{reason}; the end of its log:{lines}",
        hint="Run this again when the cause is gone: what has been published is not made again.",
    )

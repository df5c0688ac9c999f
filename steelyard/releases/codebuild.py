"""Starts CodeBuild projects, follows them, and takes up again what an interrupted run left behind.

A build carries the hash of all that it depends on (its project's source, specification and variables) in a variable of
its own. Whoever wants the same result therefore finds the build that makes it, or has made it, and starts no second.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Protocol

from steelyard.aws.session import Aws, aws_errors, error_code
from steelyard_base.exit_codes import CommandError, ExitCode

KEY_VARIABLE = "STEELYARD_BUILD_KEY"
"""Tells builds with the same outcome apart from others of their project."""

POLL_S = 3.0
TAIL_LINES = 25
_LOOK_BACK = 25
"""Builds of a project that are looked at, newest first."""
_RUNNING = "IN_PROGRESS"


class Watcher(Protocol):
    """Receives the progress of builds."""

    def line(self, label: str, text: str) -> None:
        """A line of a build's log."""

    def state(self, label: str, text: str) -> None:
        """Receives what a build does now, in a few words, when it changes."""

    def note(self, label: str, text: str) -> None:
        """Something that a person wants to know once."""


@dataclass(frozen=True, kw_only=True)
class WantedBuild:
    """A result that a project of CodeBuild makes.

    Attributes:
        label: Such as ``model gemma-3-270m``, for people.
        project: Name of the project.
        variables: Names and values of the build's variables beside those of the project.
        asset: The source that it must be built from; None where what comes out is compared instead.
    """

    label: str
    project: str
    variables: tuple[tuple[str, str], ...] = ()
    asset: str | None = None


@dataclass(frozen=True, kw_only=True)
class FinishedBuild:
    """A build that succeeded.

    Attributes:
        label: That of the wanted build.
        id: CodeBuild's name for it.
        exported: The variables that it exported.
        fresh: Whether it was started by this run; otherwise it was found.
    """

    label: str
    id: str
    exported: Mapping[str, str]
    fresh: bool


def project_definition(aws: Aws, name: str) -> dict[str, Any]:
    """The project as CodeBuild has it.

    Raises:
        CommandError: There is none, or CodeBuild cannot be asked.
    """
    with aws_errors():
        found = aws.client("codebuild").batch_get_projects(names=[name])["projects"]
    if not found:
        raise CommandError(f"the CodeBuild project {name} does not exist, although a stack names it")
    definition: dict[str, Any] = found[0]
    return definition


def asset_of(described: Mapping[str, Any]) -> str:
    """The source of a project or a build: the CDK calls its archive in S3 after a hash of what is in it."""
    return PurePosixPath(described.get("source", {}).get("location") or "").stem


def require_asset(what: str, found: str, wanted: WantedBuild) -> None:
    """Refuse other source than the one that is to be built: the release would name a commit that it was not made of.

    Args:
        what: What has the source, for the message.
        found: The source that it has.
        wanted: The build.

    Raises:
        CommandError: They differ; the message has both.
    """
    if wanted.asset is not None and found != wanted.asset:
        raise CommandError(
            f"{what} has other source than {wanted.label} is to be built from: {found or 'none'}, not {wanted.asset}",
            code=ExitCode.REFUSED,
            hint="Another checkout or commit was deployed, or files of this one have changed meanwhile. Run this again "
            "without --no-stacks, which deploys the projects of this checkout first; one person at a time.",
        )


def build_key(definition: Mapping[str, Any], wanted: WantedBuild) -> str:
    """Hash of all that the outcome of a build depends on."""
    environment = definition.get("environment", {})
    content = {
        "source": {name: definition.get("source", {}).get(name) for name in ("type", "location", "buildspec")},
        "image": environment.get("image"),
        "variables": sorted((each["name"], each["value"]) for each in environment.get("environmentVariables", ())),
        "own": sorted(wanted.variables),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def run_builds(
    aws: Aws,
    wanted: Sequence[WantedBuild],
    watcher: Watcher,
    *,
    again: frozenset[str] = frozenset(),
    poll_s: float = POLL_S,
) -> dict[str, FinishedBuild]:
    """Have every wanted build finished, side by side: found, taken up while it runs, or started.

    Args:
        aws: Where to.
        wanted: The results, with different labels and projects.
        watcher: Receives the builds' progress.
        again: Labels of those whose finished builds do not count, because what they made is gone.
        poll_s: Seconds between two looks.

    Returns:
        The finished builds by label.

    Raises:
        CommandError: A project or a build has other source, a build failed (the message has the end of its log), or
            AWS refused. Running builds continue.
        KeyboardInterrupt: Running builds continue, which the watcher has reported.
    """
    followed = [_Followed(aws, each, watcher, finished_counts=each.label not in again) for each in wanted]
    try:
        while pending := [each for each in followed if each.finished is None]:
            for each in pending:
                each.look()
            if any(each.finished is None for each in followed):
                time.sleep(poll_s)
    except (KeyboardInterrupt, CommandError):
        for each in followed:
            if each.id is not None and each.finished is None and not each.ended:
                watcher.note(each.wanted.label, f"continues in CodeBuild as {each.id}; run this again to follow it")
        raise
    return {each.wanted.label: each.finished for each in followed if each.finished is not None}


class _Followed:
    """One wanted build on its way."""

    def __init__(self, aws: Aws, wanted: WantedBuild, watcher: Watcher, *, finished_counts: bool) -> None:
        self.wanted = wanted
        self.id: str | None = None
        self.finished: FinishedBuild | None = None
        self.ended = False
        self._aws = aws
        self._watcher = watcher
        self._finished_counts = finished_counts
        self._fresh = False
        definition = project_definition(aws, wanted.project)
        self._asset = asset_of(definition)
        require_asset(f"the project {wanted.project}", self._asset, wanted)
        self._key = build_key(definition, wanted)
        self._state = ""
        self._log: _Log | None = None

    def look(self) -> None:
        """Go one step on."""
        if self.id is None:
            self._begin()
            return
        build = self._build(self.id)
        self._read_log(build)
        self._say_state(str(build.get("currentPhase", "")).lower().replace("_", " "))
        if build["buildStatus"] == _RUNNING:
            return
        self.ended = True
        if build["buildStatus"] != "SUCCEEDED":
            raise self._failure(build)
        self._finish(build)

    def _begin(self) -> None:
        """Find the build, or start it; or wait while the project is busy with another."""
        recent = self._recent()
        ours = [build for build in recent if _variables(build).get(KEY_VARIABLE) == self._key]
        # A deployment between our look at the project and the start gives a build our key and other source.
        for build in (each for each in ours if asset_of(each) == self._asset):
            if build["buildStatus"] == _RUNNING:
                self._take_up(build)
                return
            if build["buildStatus"] == "SUCCEEDED" and self._finished_counts:
                self._watcher.note(self.wanted.label, f"was built before, by {build['id']}; nothing to do")
                self._finish(build)
                return
        if busy := [build for build in recent if build["buildStatus"] == _RUNNING]:
            self._say_state(f"waiting for {busy[0]['id']}, which builds something else")
            return
        self._start(attempt=len(ours))

    def _take_up(self, build: Mapping[str, Any]) -> None:
        self.id = str(build["id"])
        self._watcher.note(self.wanted.label, f"runs already, as {self.id}; following it")

    def _start(self, *, attempt: int) -> None:
        from botocore.exceptions import ClientError

        given = {**dict(self.wanted.variables), KEY_VARIABLE: self._key}
        with aws_errors():
            try:
                build = self._aws.client("codebuild").start_build(
                    projectName=self.wanted.project,
                    environmentVariablesOverride=[
                        {"name": name, "value": value, "type": "PLAINTEXT"} for name, value in given.items()
                    ],
                    # Two people at the same time start one build. A failed one must not be the answer to the next try.
                    idempotencyToken=f"{self._key[:48]}-{attempt}",
                )["build"]
            except ClientError as error:
                if error_code(error) != "AccountLimitExceededException":
                    raise
                self._say_state("waiting for CodeBuild, which runs as many builds as it may")
                return
        self.id, self._fresh = str(build["id"]), True
        self._watcher.note(self.wanted.label, f"started as {self.id}")
        require_asset(f"the build {self.id}", asset_of(build), self.wanted)

    def _finish(self, build: Mapping[str, Any]) -> None:
        exported = {each["name"]: each["value"] for each in build.get("exportedEnvironmentVariables", ())}
        self.finished = FinishedBuild(
            label=self.wanted.label, id=str(build["id"]), exported=exported, fresh=self._fresh
        )
        self._say_state("done")

    def _failure(self, build: Mapping[str, Any]) -> CommandError:
        failed = [each for each in build.get("phases", ()) if each.get("phaseStatus") not in (None, "SUCCEEDED")]
        where = f" in {failed[0]['phaseType']}" if failed else ""
        reasons = [
            context["message"] for each in failed[:1] for context in each.get("contexts", ()) if context.get("message")
        ]
        tail = list(self._log.tail) if self._log else []
        told_lines = "\n".join(["", *(f"  {line}" for line in tail)]) if tail else " (its log is empty)"
        logs = build.get("logs", {})
        return CommandError(
            f"the build of {self.wanted.label} has {str(build['buildStatus']).lower().replace('_', ' ')}{where}"
            + "".join(f": {reason}" for reason in reasons)
            + f"; the end of its log:{told_lines}",
            code=ExitCode.FAILED,
            hint=f"The whole log: aws logs tail {logs.get('groupName')} --log-stream-names {logs.get('streamName')}. "
            "Run this again when the cause is gone: what has finished is not built again.",
        )

    def _read_log(self, build: Mapping[str, Any]) -> None:
        group, stream = build.get("logs", {}).get("groupName"), build.get("logs", {}).get("streamName")
        if not group or not stream:
            return
        if self._log is None:
            self._log = _Log(self._aws, group, stream)
        for line in self._log.new_lines():
            self._watcher.line(self.wanted.label, line)

    def _say_state(self, state: str) -> None:
        if state != self._state:
            self._state = state
            self._watcher.state(self.wanted.label, state)

    def _recent(self) -> list[dict[str, Any]]:
        client = self._aws.client("codebuild")
        with aws_errors():
            ids = client.list_builds_for_project(projectName=self.wanted.project, sortOrder="DESCENDING")["ids"]
            found = client.batch_get_builds(ids=ids[:_LOOK_BACK])["builds"] if ids else []
        return sorted(found, key=lambda build: ids.index(build["id"]))

    def _build(self, build_id: str) -> dict[str, Any]:
        with aws_errors():
            found = self._aws.client("codebuild").batch_get_builds(ids=[build_id])["builds"]
        if not found:
            raise CommandError(f"the build {build_id} of {self.wanted.label} is gone; somebody has deleted it")
        build: dict[str, Any] = found[0]
        return build


class _Log:
    """A build's log stream, read onward from where it was left."""

    def __init__(self, aws: Aws, group: str, stream: str) -> None:
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._aws = aws
        self._where = {"logGroupName": group, "logStreamName": stream}
        self._token: str | None = None

    def new_lines(self) -> Iterator[str]:
        """Yield the lines written since the last time; none while there is no log."""
        from botocore.exceptions import ClientError

        while True:
            onward = {"startFromHead": True, **({"nextToken": self._token} if self._token else {})}
            with aws_errors():
                try:
                    page = self._aws.client("logs").get_log_events(**self._where, **onward)
                except ClientError as error:
                    if error_code(error) == "ResourceNotFoundException":
                        return
                    raise
            for event in page["events"]:
                for line in str(event["message"]).splitlines():
                    self.tail.append(line)
                    yield line
            if page["nextForwardToken"] == self._token or not page["events"]:
                self._token = page["nextForwardToken"]
                return
            self._token = page["nextForwardToken"]


def _variables(build: Mapping[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in build.get("environment", {}).get("environmentVariables", ())}

"""One execution of a pipeline: its stages in order, each when the execution before it has left it."""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
import uuid
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError
from ministack.core.responses import get_account_id, get_region, request_scope

from steelyard_localcloud.codebuild.builds import Builds
from steelyard_localcloud.codebuild.handed import Handed
from steelyard_localcloud.codebuild.run import Run
from steelyard_localcloud.codepipeline.definition import build_variables, resolved, run_order
from steelyard_localcloud.details import CloudDetails
from steelyard_localcloud.errors import ServiceError
from steelyard_localcloud.role_client import role_client
from steelyard_localcloud.service_role import ServiceRole
from steelyard_localcloud.wire import Parameters

_SERVICE = "codepipeline.amazonaws.com"
_LOOK_EVERY_S = 0.05
_USE = "codeconnections:UseConnection"


class _Stopped(BaseException):
    """The execution is to end."""


@dataclass
class ActionState:
    """The state of an action in an execution, as GetPipelineState tells it."""

    status: str = "InProgress"
    summary: str = ""
    changed: float = field(default_factory=time.time)
    token: str | None = None
    build: str | None = None
    verdict: str | None = None

    def settle(self, status: str, summary: str = "") -> None:
        """Change the status."""
        self.status, self.summary, self.changed = status, summary, time.time()

    def shape(self) -> Parameters:
        """As AWS tells it."""
        told: Parameters = {"status": self.status, "lastStatusChange": self.changed}
        if self.summary:
            told["summary"] = self.summary
            if self.status == "Failed":
                told["errorDetails"] = {"code": "JobFailed", "message": self.summary}
        if self.build is not None:
            told["externalExecutionId"] = self.build
        if self.token is not None and self.status == "InProgress":
            told["token"] = self.token
        return told


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """The parts of a local cloud that executions use.

    Attributes:
        cloud: The local cloud.
        builds: Its builds.
        repositories: Folders that stand for repositories, by ``owner/name``.
    """

    cloud: CloudDetails
    builds: Builds
    repositories: Mapping[str, str]


class Execution:
    """Made within the request that starts it.

    Args:
        pipeline: The pipeline, as it is when the execution begins.
        locks: A lock for each of its stages.
        surroundings: What it uses.
    """

    def __init__(self, pipeline: Parameters, locks: Mapping[str, threading.Lock], surroundings: Surroundings) -> None:
        self.id = str(uuid.uuid4())
        self.pipeline = pipeline
        self.status = "InProgress"
        self.states: dict[str, dict[str, ActionState]] = {}
        self.stage_status: dict[str, str] = {}
        self._locks = locks
        self._around = surroundings
        self._scope = (get_account_id(), get_region())
        arn = f"arn:aws:codepipeline:{get_region()}:{get_account_id()}:{pipeline['name']}"
        self._role = ServiceRole(pipeline["roleArn"], _SERVICE, arn)
        self._artifacts: dict[str, str] = {}
        self._variables: dict[str, dict[str, str]] = {}
        self._stopped = threading.Event()
        self._runs: list[Run] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Abandon it: builds that run are stopped."""
        self._stopped.set()
        for run in self._runs:
            run.stop()

    def join(self, timeout_s: float) -> None:
        """Wait for its end."""
        self._thread.join(timeout_s)

    def approve(self, stage: str, action: str, *, token: str, status: str, summary: str) -> None:
        """Answer a manual approval.

        Raises:
            ServiceError: It does not wait for this answer.
        """
        state = self.states.get(stage, {}).get(action)
        if state is None or state.token is None:
            raise ServiceError(f"Action {action} of stage {stage} is not waiting", code="ActionNotFoundException")
        if state.status != "InProgress" or state.verdict is not None:
            raise ServiceError("The approval action has been answered", code="ApprovalAlreadyCompletedException")
        if token != state.token:
            raise ServiceError("The token is not that of the approval", code="InvalidApprovalTokenException")
        state.summary, state.verdict = summary, status

    def _run(self) -> None:
        with request_scope(*self._scope):
            try:
                for stage in self.pipeline["stages"]:
                    with self._locks[stage["name"]]:
                        self._run_stage(stage)
            except _Stopped:
                self.status = "Stopped"
            except ServiceError:
                self.status = "Failed"
            else:
                self.status = "Succeeded"

    def _run_stage(self, stage: Parameters) -> None:
        name = stage["name"]
        self.states[name] = {}
        self.stage_status[name] = "InProgress"
        actions = sorted(stage["actions"], key=run_order)
        for _, together in groupby(actions, key=run_order):
            states = self._run_together(name, list(together))
            if self._stopped.is_set():
                self.stage_status[name] = "Stopped"
                raise _Stopped
            if failed := [state for state in states if state.status == "Failed"]:
                self.stage_status[name] = "Failed"
                raise ServiceError(failed[0].summary)
        self.stage_status[name] = "Succeeded"

    def _run_together(self, stage: str, actions: list[Parameters]) -> list[ActionState]:
        states = [self.states[stage].setdefault(each["name"], ActionState()) for each in actions]

        def perform(action: Parameters, state: ActionState) -> None:
            with request_scope(*self._scope):
                self._run_action(action, state)

        threads = [
            threading.Thread(target=perform, args=pair, daemon=True) for pair in zip(actions, states, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return states

    def _run_action(self, action: Parameters, state: ActionState) -> None:
        kinds: dict[str, Callable[[Parameters, Parameters, ActionState], None]] = {
            "CodeStarSourceConnection": self._source,
            "CodeBuild": self._build,
            "Manual": self._wait,
        }
        try:
            given = action.get("configuration", {})
            configuration = {name: resolved(text, self._variables) for name, text in given.items()}
            kinds[action["actionTypeId"]["provider"]](action, configuration, state)
        except _Stopped:
            state.settle("Abandoned", "The execution was stopped")
        except ServiceError as error:
            state.settle("Failed", error.message)
        except Exception as error:  # - an action must end, whatever it was
            state.settle("Failed", f"{type(error).__name__}: {error}")
        else:
            state.settle("Succeeded", state.summary)

    def _source(self, action: Parameters, configuration: Parameters, state: ActionState) -> None:
        """Put the folder that stands for the repository into the bucket, as the pipeline's role."""
        if not self._role.allows(_USE, configuration["ConnectionArn"]):
            raise ServiceError(f"The role {self._role.arn} lacks {_USE} on {configuration['ConnectionArn']}")
        repository = configuration["FullRepositoryId"]
        if (folder := self._around.repositories.get(repository)) is None:
            known = ", ".join(self._around.repositories) or "none"
            raise ServiceError(f"No folder stands for the repository {repository} in this local cloud; it has {known}")
        archive = Path(self._around.cloud.home) / "tmp" / f"{self.id}.zip"
        commit = _pack(Path(folder), archive)
        bucket, key = self._place(action["outputArtifacts"][0]["name"])
        credentials = self._role.assume("CodePipeline")
        s3 = role_client(self._around.cloud, "s3", credentials, region=self._scope[1])
        try:
            s3.upload_file(str(archive), bucket, key)
        except (BotoCoreError, ClientError) as error:
            raise ServiceError(f"The source could not be put into s3://{bucket}/{key}: {error}") from error
        finally:
            archive.unlink(missing_ok=True)
        state.summary = commit
        self._keep(action, {"CommitId": commit, "BranchName": configuration["BranchName"]})

    def _build(self, action: Parameters, configuration: Parameters, state: ActionState) -> None:
        """Run the project, with the inputs as its sources and its artifacts as the output."""
        name = configuration["ProjectName"]
        account, region = self._scope
        arn = f"arn:aws:codebuild:{region}:{account}:project/{name}"
        for permission in ("codebuild:StartBuild", "codebuild:BatchGetBuilds"):
            if not self._role.allows(permission, arn):
                raise ServiceError(f"The role {self._role.arn} lacks {permission} on {arn}")
        inputs = [each["name"] for each in action["inputArtifacts"]]
        outputs = [self._place(each["name"]) for each in action.get("outputArtifacts", [])]
        bucket = self.pipeline["artifactStore"]["location"]
        handed = Handed(
            inputs={each: (bucket, self._artifacts[each]) for each in inputs},
            primary=configuration.get("PrimarySource") or inputs[0],
            output=outputs[0] if outputs else None,
        )
        run = self._around.builds.start_handed(
            name, build_variables(configuration), handed, initiator=f"codepipeline/{self.pipeline['name']}"
        )
        self._runs.append(run)
        state.build = run.record["id"]
        if self._stopped.is_set():
            run.stop()
        while run.running:
            time.sleep(_LOOK_EVERY_S)
        if self._stopped.is_set():
            raise _Stopped
        if (status := run.record["buildStatus"]) != "SUCCEEDED":
            raise ServiceError(f"Build terminated with state: {status}. {_reason(run.record)}".rstrip())
        exported = run.record["exportedEnvironmentVariables"]
        self._keep(action, {each["name"]: each["value"] for each in exported})

    def _wait(self, _action: Parameters, configuration: Parameters, state: ActionState) -> None:
        """Wait for PutApprovalResult."""
        state.summary = configuration.get("ExternalEntityLink", "")
        state.token = str(uuid.uuid4())
        while state.verdict is None:
            if self._stopped.wait(_LOOK_EVERY_S):
                raise _Stopped
        if state.verdict != "Approved":
            raise ServiceError(f"Rejected: {state.summary}")

    def _place(self, artifact: str) -> tuple[str, str]:
        """Bucket and key of an artifact; noted as where it is."""
        key = f"{self.pipeline['name'][:20]}/{artifact}/{secrets.token_hex(4)}"
        self._artifacts[artifact] = key
        return self.pipeline["artifactStore"]["location"], key

    def _keep(self, action: Parameters, values: dict[str, str]) -> None:
        if "namespace" in action:
            self._variables[action["namespace"]] = values


def _reason(record: Mapping[str, Any]) -> str:
    """The first thing that went wrong in a build."""
    said = (context["message"] for phase in record["phases"] for context in phase.get("contexts", ()))
    return next((message for message in said if message), "")


def _pack(folder: Path, archive: Path) -> str:
    """Pack a folder with the permissions of its files; a name for its content."""
    content = hashlib.sha1(usedforsecurity=False)
    with zipfile.ZipFile(archive, "w") as opened:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                name = str(path.relative_to(folder))
                content.update(name.encode() + path.read_bytes())
                opened.write(path, name)
    return content.hexdigest()

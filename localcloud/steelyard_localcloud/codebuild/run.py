"""One build: its role, its source, its process, and the record that CodeBuild shows of it."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ministack.core.responses import get_account_id, get_region, request_scope
from ministack.services import cloudwatch, codebuild

from steelyard_base.exit_codes import CommandError
from steelyard_localcloud.codebuild.handed import Handed
from steelyard_localcloud.codebuild.log import BuildLog
from steelyard_localcloud.codebuild.source import bring
from steelyard_localcloud.details import CloudDetails
from steelyard_localcloud.errors import ServiceError
from steelyard_localcloud.service_role import Credentials, ServiceRole

Record = dict[str, Any]

_SERVICE = "codebuild.amazonaws.com"


class Run:
    """A build that was started. Made within the request that starts it.

    Args:
        project: The project's record in ministack.
        variables: Its variables, those of the request included.
        timeout_minutes: The longest that it may take.
        initiator: Who started it.
        cloud: The local cloud.
        inherited: What it gets of the machine's environment.
        handed: What a pipeline hands to it, and takes; None where nobody does.
    """

    def __init__(
        self,
        project: Record,
        *,
        variables: dict[str, str],
        timeout_minutes: float,
        initiator: str,
        cloud: CloudDetails,
        inherited: Mapping[str, str],
        handed: Handed | None = None,
    ) -> None:
        name = str(uuid.uuid4())
        self._scope = (get_account_id(), get_region())
        self._cloud = cloud
        self._inherited = inherited
        self._variables = variables
        self._handed = handed
        self._source = dict(project["source"])
        self._folder = Path(cloud.home) / "builds" / name
        self._log_file = Path(cloud.home) / "logs" / f"codebuild-{project['name']}-{name}.log"
        self._role = ServiceRole(project["serviceRole"], _SERVICE, project["arn"])
        self._process: subprocess.Popen[str] | None = None
        self._stopped = threading.Event()
        self._starting = threading.Lock()
        self.record = _record(project, name, timeout_minutes, initiator, variables)
        self._own_phases: list[Record] = [_phase("SUBMITTED", ended=True), _phase("QUEUED", ended=True)]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        """Tell whether it has not ended."""
        return not self.record["buildComplete"]

    def stop(self) -> None:
        """Let it end as stopped, soon."""
        with self._starting:
            self._stopped.set()
            if self._process is not None and self._process.poll() is None:
                self._process.terminate()

    def join(self, timeout_s: float) -> None:
        """Wait for its end."""
        self._thread.join(timeout_s)

    def refresh(self) -> None:
        """Bring the record up to what the process has reported."""
        if not self.running:
            return
        reported = self._reported()
        phases = [*self._own_phases, *reported.get("phases", [])]
        self.record["phases"] = phases
        self.record["currentPhase"] = phases[-1]["phaseType"]

    def _run(self) -> None:
        with request_scope(*self._scope):
            logs = self.record["logs"]
            log = BuildLog(logs["groupName"], logs["streamName"], path=self._log_file, role=self._role)
            try:
                status, message = self._perform(log)
            except Exception as error:  # - a build must end, whatever it was
                status, message = "FAULT", f"{type(error).__name__}: {error}"
            if message:
                log.write(f"[Container] {message}")
            log.close()
            self._end(status, message)
            if self._process is not None:
                self._process.wait()
                if self._process.stdin is not None:
                    self._process.stdin.close()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _perform(self, log: BuildLog) -> tuple[str, str]:
        """Run it to its end; the status, and what is not in the log yet."""
        self._folder.mkdir(parents=True)
        try:
            with self._phase("PROVISIONING"):
                credentials = self._role.assume(f"AWSCodeBuild-{self._folder.name}")
            with self._phase("DOWNLOAD_SOURCE"):
                region = self._scope[1]
                source = self._folder / "source"
                if self._handed is None:
                    bring(self._source, source, cloud=self._cloud, region=region, credentials=credentials)
                else:
                    self._handed.bring(self._folder, cloud=self._cloud, region=region, credentials=credentials)
                text = str(self._source.get("buildspec") or "")
                spec = _checked_buildspec(text)
        except ServiceError as error:
            return "FAILED", error.message
        (self._folder / "buildspec.yml").write_text(text, encoding="utf-8")
        process = self._start(credentials)
        if process is None:
            return "STOPPED", "The build was stopped"
        for line in process.stdout or ():
            log.write(line.rstrip("\n"))
        reported = self._reported()
        status = reported.get("buildStatus", "FAULT")
        if status in ("FAULT", "IN_PROGRESS"):
            # It was ended before it could say so: as soon as it was started, or by somebody else.
            stopped = self._stopped.is_set()
            return ("STOPPED", "The build was stopped") if stopped else ("FAULT", "The build's process was killed")
        if self._handed is not None and status == "SUCCEEDED":
            try:
                self._handed.take(spec.artifacts, source, cloud=self._cloud, region=region, credentials=credentials)
            except ServiceError as error:
                return "FAILED", error.message
        return status, ""

    def _start(self, credentials: Credentials) -> subprocess.Popen[str] | None:
        """Start the process, unless the build was stopped before."""
        temporary = self._folder / "tmp"
        temporary.mkdir()
        own = {
            **self._inherited,
            **self._cloud.environment(),
            "AWS_ACCESS_KEY_ID": credentials.access_key_id,
            "AWS_SECRET_ACCESS_KEY": credentials.secret_access_key,
            "AWS_SESSION_TOKEN": credentials.session_token,
            "AWS_REGION": self._scope[1],
            "AWS_DEFAULT_REGION": self._scope[1],
            "TMPDIR": str(temporary),
            "PYTHONUNBUFFERED": "1",
        }
        words = [sys.executable, "-I", "-m", "steelyard_localcloud.codebuild.runner", "--lifeline"]
        words += ["--buildspec", str(self._folder / "buildspec.yml"), "--source", str(self._folder / "source")]
        words += ["--result", str(self._folder / "result.json")]
        words += ["--timeout-s", str(self.record["timeoutInMinutes"] * 60)]
        words += [
            f"--env={name}={value}" for name, value in {**self._variables, **self._about(), **self._folders()}.items()
        ]
        with self._starting:
            if self._stopped.is_set():
                return None
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=own,
                cwd=self._folder,
                text=True,
                errors="replace",
                start_new_session=True,
            )
            return self._process

    def _about(self) -> dict[str, str]:
        """The variables with which CodeBuild tells a build about itself."""
        record = self.record
        return {
            "CODEBUILD_BUILD_ARN": record["arn"],
            "CODEBUILD_BUILD_ID": record["id"],
            "CODEBUILD_BUILD_IMAGE": record["environment"].get("image", ""),
            "CODEBUILD_BUILD_NUMBER": str(record["buildNumber"]),
            "CODEBUILD_INITIATOR": record["initiator"],
            "CODEBUILD_KMS_KEY_ID": record["encryptionKey"],
            "CODEBUILD_LOG_PATH": record["logs"]["streamName"],
            "CODEBUILD_SOURCE_REPO_URL": self._source.get("location", ""),
        }

    def _folders(self) -> dict[str, str]:
        return {} if self._handed is None else self._handed.variables(self._folder)

    def _reported(self) -> Record:
        try:
            found: Record = json.loads((self._folder / "result.json").read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return {}
        return found

    @contextlib.contextmanager
    def _phase(self, name: str) -> Any:
        """A phase before the process; one that fails says why."""
        phase = _phase(name)
        self._own_phases.append(phase)
        try:
            yield
        except ServiceError as error:
            _finish(phase, "FAILED", error.code, error.message)
            raise
        _finish(phase, "SUCCEEDED")

    def _end(self, status: str, message: str) -> None:
        reported = self._reported()
        phases = [*self._own_phases, *reported.get("phases", [])]
        for phase in phases:
            if "endTime" not in phase:
                _finish(phase, status, "", message)
        finalizing = [_phase("UPLOAD_ARTIFACTS", ended=True)] if reported else []
        phases += [*finalizing, _phase("FINALIZING", ended=True), _phase("COMPLETED")]
        self.record |= {
            "phases": phases,
            "currentPhase": "COMPLETED",
            "exportedEnvironmentVariables": reported.get("exportedEnvironmentVariables", []),
            "endTime": time.time(),
            "buildStatus": status,
        }
        name = {"ProjectName": self.record["projectName"]}
        for metric in ("Builds", "SucceededBuilds" if status == "SUCCEEDED" else "FailedBuilds"):
            cloudwatch.record_metric("AWS/CodeBuild", metric, 1.0, "Count", name)
        # Last: a reader that sees this sees the rest.
        self.record["buildComplete"] = True


def _checked_buildspec(text: str) -> Any:
    try:
        from steelyard_localcloud.codebuild.buildspec import parse
    except ImportError as error:
        raise ServiceError(
            f"builds cannot be run here: {error}; install the extra: pip install 'steelyard[local-images]'"
        ) from error
    try:
        return parse(text, name="the project's buildspec")
    except CommandError as error:
        raise ServiceError(error.message, code="YAML_FILE_ERROR") from error


def _record(project: Record, name: str, timeout_minutes: float, initiator: str, variables: Mapping[str, str]) -> Record:
    identifier = f"{project['name']}:{name}"
    account, region = get_account_id(), get_region()
    given = project.get("logsConfig", {}).get("cloudWatchLogs", {})
    group = given.get("groupName") or f"/aws/codebuild/{project['name']}"
    prefix = given.get("streamName")
    stream = f"{prefix}/{name}" if prefix else name
    builds = codebuild._builds.values()
    return {
        "id": identifier,
        "arn": f"arn:aws:codebuild:{region}:{account}:build/{identifier}",
        "buildNumber": 1 + sum(build["projectName"] == project["name"] for build in builds),
        "startTime": time.time(),
        "currentPhase": "QUEUED",
        "buildStatus": "IN_PROGRESS",
        "buildComplete": False,
        "projectName": project["name"],
        "phases": [],
        "source": project["source"],
        "artifacts": {"location": ""},
        "environment": {
            **project["environment"],
            "environmentVariables": [
                {"name": name, "type": "PLAINTEXT", "value": value} for name, value in variables.items()
            ],
        },
        "serviceRole": project["serviceRole"],
        "logs": {
            "groupName": group,
            "streamName": stream,
            "cloudWatchLogs": given or {"status": "ENABLED"},
            "cloudWatchLogsArn": f"arn:aws:logs:{region}:{account}:log-group:{group}:log-stream:{stream}",
        },
        "timeoutInMinutes": timeout_minutes,
        "queuedTimeoutInMinutes": 480,
        "initiator": initiator,
        "encryptionKey": project["encryptionKey"],
        "exportedEnvironmentVariables": [],
    }


def _phase(name: str, *, ended: bool = False) -> Record:
    phase: Record = {"phaseType": name, "startTime": time.time()}
    if ended:
        _finish(phase, "SUCCEEDED")
    return phase


def _finish(phase: Record, status: str, code: str = "", message: str = "") -> None:
    phase |= {
        "phaseStatus": status,
        "endTime": time.time(),
        "durationInSeconds": round(time.time() - phase["startTime"]),
        "contexts": [{"statusCode": code, "message": message}],
    }

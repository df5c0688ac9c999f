"""CodeBuild's operations on builds; projects are ministack's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from ministack.core import iam_evaluator
from ministack.services import codebuild

from steelyard_localcloud import wire
from steelyard_localcloud.codebuild import projects
from steelyard_localcloud.codebuild.handed import Handed
from steelyard_localcloud.codebuild.run import Run
from steelyard_localcloud.details import CloudDetails
from steelyard_localcloud.errors import ServiceError, not_emulated
from steelyard_localcloud.wire import Parameters, Response

_CLOSE_S = 40.0
_TAKEN = {"projectName", "environmentVariablesOverride", "timeoutInMinutesOverride", "idempotencyToken"}


class Builds:
    """All builds of one local cloud.

    Args:
        cloud: The local cloud.
        inherited: What builds get of the machine's environment.
    """

    def __init__(self, cloud: CloudDetails, inherited: Mapping[str, str]) -> None:
        self._cloud = cloud
        self._inherited = inherited
        self._runs: dict[str, Run] = {}
        self._lock = threading.Lock()

    def install(self) -> None:
        """Replace ministack's operations: without Docker it reports builds as succeeded that never ran."""
        plain_delete = codebuild._batch_delete_builds
        codebuild._start_build = _answered(self.start)
        codebuild._batch_get_builds = _answered(self.describe)
        codebuild._stop_build = _answered(self.stop)

        def delete(parameters: Parameters) -> Response:
            kept = [each for each in parameters.get("ids", []) if each in self._runs and self._runs[each].running]
            if kept:
                return wire.refuse(ServiceError(f"The build {kept[0]} runs; stop it first.", code=_INVALID))
            for each in parameters.get("ids", []):
                self._runs.pop(each, None)
            answer: Response = plain_delete(parameters)
            return answer

        codebuild._batch_delete_builds = delete
        projects.extend()

    def start(self, parameters: Parameters) -> Parameters:
        """``StartBuild``."""
        if unknown := sorted(set(parameters) - _TAKEN):
            raise not_emulated(f"{', '.join(unknown)} of StartBuild")
        project = self._project(parameters.get("projectName", ""))
        if project["source"].get("type") == "CODEPIPELINE":
            raise ServiceError(
                f"The project {project['name']} gets its source from CodePipeline, which alone can start it",
                code=_INVALID,
            )
        if project["source"].get("type") not in ("S3", "NO_SOURCE"):
            raise not_emulated(f"sources of the type {project['source'].get('type')}")
        run = self._begin(
            project,
            parameters.get("environmentVariablesOverride", []),
            timeout_minutes=parameters.get("timeoutInMinutesOverride"),
            initiator=iam_evaluator.caller_arn().rpartition(":")[2] or "unknown",
        )
        return {"build": dict(run.record)}

    def start_handed(self, name: str, variables: Mapping[str, str], handed: Handed, *, initiator: str) -> Run:
        """Start a build of a pipeline.

        Raises:
            ServiceError: There is no such project, it is not made for a pipeline, or as many builds of it run as may.
        """
        project = self._project(name)
        if project["source"].get("type") != "CODEPIPELINE":
            raise ServiceError(f"The source of the project {name} is not CODEPIPELINE", code=_INVALID)
        given = [{"name": key, "value": value} for key, value in variables.items()]
        return self._begin(project, given, timeout_minutes=None, initiator=initiator, handed=handed)

    def _project(self, name: str) -> Parameters:
        project: Parameters | None = codebuild._projects.get(name)
        if project is None:
            raise ServiceError(f"Project cannot be found: {name}", code="ResourceNotFoundException")
        return project

    def _begin(
        self,
        project: Parameters,
        overrides: list[Parameters],
        *,
        timeout_minutes: float | None,
        initiator: str,
        handed: Handed | None = None,
    ) -> Run:
        if not project["source"].get("buildspec"):
            raise not_emulated("projects whose buildspec is in their source")
        given = [*project["environment"].get("environmentVariables", []), *overrides]
        with self._lock:
            self._check_limit(project)
            run = Run(
                project,
                variables=_variables(given),
                timeout_minutes=timeout_minutes or project.get("timeoutInMinutes", 60),
                initiator=initiator,
                cloud=self._cloud,
                inherited=self._inherited,
                handed=handed,
            )
            self._runs[run.record["id"]] = run
            codebuild._builds[run.record["id"]] = run.record
        return run

    def describe(self, parameters: Parameters) -> Parameters:
        """``BatchGetBuilds``."""
        found, missing = [], []
        for identifier in parameters.get("ids", []):
            name = identifier.rpartition("/")[2]
            record = codebuild._builds.get(name)
            if record is None:
                missing.append(identifier)
                continue
            self._runs[name].refresh()
            found.append(dict(record))
        return {"builds": found, "buildsNotFound": missing}

    def stop(self, parameters: Parameters) -> Parameters:
        """``StopBuild``."""
        name = parameters.get("id", "").rpartition("/")[2]
        record = codebuild._builds.get(name)
        if record is None:
            raise ServiceError(f"Build cannot be found: {name}", code="ResourceNotFoundException")
        self._runs[name].stop()
        return {"build": dict(record)}

    def close(self) -> None:
        """Stop all builds and wait for their ends."""
        for run in self._runs.values():
            run.stop()
        for run in self._runs.values():
            run.join(_CLOSE_S)

    def _check_limit(self, project: Parameters) -> None:
        limit = project.get("concurrentBuildLimit")
        running = sum(run.running and run.record["projectName"] == project["name"] for run in self._runs.values())
        if limit is not None and running >= limit:
            raise ServiceError(
                f"Cannot have more than {limit} active builds for the project {project['name']}",
                code="AccountLimitExceededException",
            )


_INVALID = "InvalidInputException"


def _variables(given: list[Parameters]) -> dict[str, str]:
    """Variables by name, the later ones winning.

    Raises:
        ServiceError: One comes from Parameter Store or Secrets Manager.
    """
    for each in given:
        if each.get("type", "PLAINTEXT") != "PLAINTEXT":
            raise not_emulated(f"environment variables of the type {each['type']}")
    return {each["name"]: each["value"] for each in given}


def _answered(perform: Callable[[Parameters], Parameters]) -> Callable[[Any], Response]:
    def work(parameters: Any) -> Response:
        try:
            return wire.answer(perform(parameters))
        except ServiceError as error:
            return wire.refuse(error)

    return work

"""Adds the missing services to ministack, and replaces the answers of its that would only pretend."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ministack.app as ministack
from ministack.core import router
from ministack.core.concurrency import run_offloop
from ministack.services import cloudwatch

from steelyard_localcloud import function_roles, iam, s3_encryption, tagging, wire
from steelyard_localcloud.autoscaling import ApplicationAutoScaling
from steelyard_localcloud.cloudformation import adoption, exports
from steelyard_localcloud.cloudformation import alarms as alarm_resources
from steelyard_localcloud.cloudformation import buckets as bucket_resources
from steelyard_localcloud.cloudformation import budgets as budget_resources
from steelyard_localcloud.cloudformation import flow_logs as flow_log_resources
from steelyard_localcloud.cloudformation import sagemaker as sagemaker_resources
from steelyard_localcloud.cloudformation import scaling as scaling_resources
from steelyard_localcloud.cloudformation.handler import register
from steelyard_localcloud.cloudwatch import alarms
from steelyard_localcloud.codebuild.builds import Builds
from steelyard_localcloud.codepipeline.execution import Surroundings
from steelyard_localcloud.codepipeline.pipelines import Pipelines
from steelyard_localcloud.details import CloudDetails
from steelyard_localcloud.errors import ServiceError
from steelyard_localcloud.options import Options
from steelyard_localcloud.registry import tools
from steelyard_localcloud.registry.access import Access
from steelyard_localcloud.registry.blobs import Blobs
from steelyard_localcloud.registry.images import Images
from steelyard_localcloud.registry.server import Registry
from steelyard_localcloud.sagemaker import interfaces
from steelyard_localcloud.sagemaker.control import SageMaker
from steelyard_localcloud.sagemaker.invoke import Runtime
from steelyard_localcloud.wire import Parameters, Response

_Handler = Callable[..., Any]


@dataclass(frozen=True)
class Installed:
    """The services that were added."""

    sagemaker: SageMaker
    scaling: ApplicationAutoScaling
    runtime: Runtime
    registry: Registry
    builds: Builds
    pipelines: Pipelines
    cloud: CloudDetails

    def close(self) -> None:
        """End all processes: pipelines, builds, then endpoints; and unmount what killed builds left in the storage."""
        self.pipelines.close()
        self.builds.close()
        self.sagemaker.endpoints.close()
        tools.empty_storage(self.cloud)


def install(*, cloud: CloudDetails, options: Options, inherited: Mapping[str, str]) -> Installed:
    """Extend ministack in this process. Once only.

    Args:
        cloud: The local cloud.
        options: Its settings.
        inherited: What builds get of the environment in which it was started.
    """
    sagemaker = SageMaker(cloud=cloud, options=options)
    scaling = ApplicationAutoScaling(sagemaker.endpoints)
    runtime = Runtime(sagemaker.endpoints, options)
    _serve_services(sagemaker, scaling, runtime)
    images = Images(Blobs(Path(cloud.home) / "registry"), Access(cloud))
    images.install()
    builds = Builds(cloud, inherited)
    builds.install()
    pipelines = Pipelines(Surroundings(cloud=cloud, builds=builds, repositories=options.repositories))
    router.SERVICE_PATTERNS[iam.PIPELINES] = {"target_prefixes": ["CodePipeline_20150709."]}
    ministack.SERVICE_HANDLERS[iam.PIPELINES] = _json_service(pipelines.perform)
    _take_metric_math()
    register(
        [
            *sagemaker_resources.handlers(sagemaker),
            *scaling_resources.handlers(scaling),
            *budget_resources.handlers(),
            *flow_log_resources.handlers(),
            *pipelines.handlers(),
        ]
    )
    alarm_resources.extend()
    bucket_resources.extend()
    adoption.extend()
    exports.extend()
    interfaces.extend()
    s3_encryption.extend()
    tagging.extend()
    iam.extend()
    function_roles.extend()
    return Installed(sagemaker, scaling, runtime, Registry(images), builds, pipelines, cloud)


def start_evaluating_alarms() -> None:
    """Evaluate alarms in a thread of their own, for as long as the process lives."""
    threading.Thread(target=alarms.keep_evaluating, daemon=True).start()


def _serve_services(sagemaker: SageMaker, scaling: ApplicationAutoScaling, runtime: Runtime) -> None:
    router.SERVICE_PATTERNS[iam.SAGEMAKER] = {"target_prefixes": ["SageMaker."]}
    router.SERVICE_PATTERNS[iam.SCALING] = {"target_prefixes": ["AnyScaleFrontendService."]}
    router.SERVICE_PATTERNS[iam.QUOTAS] = {"target_prefixes": ["ServiceQuotasV20190624."]}
    router.SERVICE_PATTERNS[iam.RUNTIME] = {}
    ministack.SERVICE_HANDLERS[iam.SAGEMAKER] = _passing_roles(_json_service(sagemaker.perform))
    ministack.SERVICE_HANDLERS[iam.SCALING] = _json_service(scaling.perform)
    ministack.SERVICE_HANDLERS[iam.QUOTAS] = _json_service(sagemaker.endpoints.quotas.perform)

    async def invoke(_method: str, path: str, headers: dict[str, str], body: bytes, _query: Any) -> Response:
        try:
            return await runtime.handle(path, headers, body)
        except ServiceError as error:
            return wire.refuse(error)

    ministack.SERVICE_HANDLERS[iam.RUNTIME] = invoke
    detect = ministack.detect_service

    def detect_service(method: str, path: str, headers: dict[str, str], query: Any) -> Any:
        # Both sign as "sagemaker"; only the control plane names its operation in a header.
        found = detect(method, path, headers, query)
        return iam.RUNTIME if found == iam.SAGEMAKER and path.startswith("/endpoints/") else found

    ministack.detect_service = detect_service


def _json_service(perform: Callable[[str, Parameters], Parameters]) -> _Handler:
    def work(headers: dict[str, str], body: bytes) -> Response:
        try:
            return wire.answer(perform(wire.operation(headers), wire.read(body)))
        except ServiceError as error:
            return wire.refuse(error)

    async def handle(_method: str, _path: str, headers: dict[str, str], body: bytes, _query: Any) -> Response:
        answer: Response = await run_offloop(work, headers, body)
        return answer

    return handle


def _passing_roles(handle: _Handler) -> _Handler:
    """Refuse a caller who may make a model and may not pass SageMaker its role."""

    async def handle_or_refuse(method: str, path: str, headers: dict[str, str], body: bytes, query: Any) -> Response:
        if wire.operation(headers) == "CreateModel" and (role := wire.read(body).get("ExecutionRoleArn")):
            denied: Response | None = ministack._enforce_data_plane(
                iam.SAGEMAKER,
                "iam:PassRole",
                headers,
                query,
                "",
                resource_arn=str(role),
                service_context={"iam:passedtoservice": "sagemaker.amazonaws.com"},
            )
            if denied is not None:
                return denied
        answer: Response = await handle(method, path, headers, body, query)
        return answer

    return handle_or_refuse


def _take_metric_math() -> None:
    plain = cloudwatch._put_metric_alarm

    def put(params: Any, members: Parameters, is_cbor: bool, is_json: bool = False) -> Any:
        named = members if is_cbor or is_json else {}
        if not named.get("Metrics"):
            return plain(params, members, is_cbor, is_json)
        try:
            alarms.put({key: value for key, value in members.items() if key != "Tags"})
        except ServiceError as error:
            return cloudwatch._error(error.code, error.message, 400, use_json=is_json, use_cbor=is_cbor)
        return cloudwatch._cbor_ok({}) if is_cbor else cloudwatch._json_ok({})

    cloudwatch._put_metric_alarm = put
    cloudwatch._evaluate_alarm = alarms.evaluate

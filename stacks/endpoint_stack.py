"""One endpoint, with its alarms, its scaling and the role that calls it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sns as sns

from stacks.environment_stack import TAG_ENDPOINT, TAG_RELEASE, EnvironmentStack
from stacks.network_stack import NetworkStack
from steelyard.environments.schema import Environment
from steelyard.releases.compatibility import image_of
from steelyard.releases.manifest import Release
from steelyard.releases.served import served_by
from steelyard_constructs.caller_role import CallerRole
from steelyard_constructs.chat_endpoint import ChatEndpoint, ChatFlags
from steelyard_constructs.decision_endpoint import DecisionEndpoint
from steelyard_constructs.endpoint import VARIANT_NAME, EndpointProps
from steelyard_constructs.endpoint_alarms import EndpointAlarms
from steelyard_constructs.endpoint_metrics import EndpointMetrics
from steelyard_constructs.endpoint_scaling import EndpointScaling
from steelyard_constructs.release_gate import GatedModel, GatedTypes, ReleaseGate
from steelyard_constructs.rollback_alarms import RollbackAlarms
from steelyard_constructs.server_alarms import ServerAlarms
from steelyard_constructs.thresholds import Thresholds


@dataclass(frozen=True, kw_only=True)
class Shared:
    """Resources that an environment's endpoints share.

    Attributes:
        bucket_name: Bucket of model artifacts.
        encryption_key: The environment's key; None where AWS's own keys are used.
        topic: Topic of all alarms.
        network: The network of the endpoints; None where they are in none.
    """

    bucket_name: str
    encryption_key: kms.IKey | None
    topic: sns.ITopic
    network: NetworkStack | None


class EndpointStack(EnvironmentStack):
    """One endpoint of the environment, serving what the release says.

    Args:
        environment: The environment.
        name: Name of one of its endpoints.
        release: What is deployed.
        shared: What its endpoints share.

    Attributes:
        endpoint: The endpoint.
    """

    def __init__(
        self, scope: cdk.App, environment: Environment, *, name: str, release: Release, shared: Shared
    ) -> None:
        self._declared = environment.endpoints[name]
        super().__init__(
            scope, f"Endpoint-{name}", environment=environment, description=f"{self._declared.kind} endpoint {name}"
        )
        cdk.Tags.of(self).add(TAG_RELEASE, release.id)
        cdk.Tags.of(self).add(TAG_ENDPOINT, name)
        endpoint_name = environment.endpoint_name(name)
        self.endpoint = self._endpoint(release, shared, self._props(endpoint_name, release, shared))
        alarms = EndpointAlarms(
            self,
            "Alarms",
            endpoint_name=endpoint_name,
            variant_name=VARIANT_NAME,
            topic=shared.topic,
            thresholds=Thresholds(latency_alarm_ms=self._declared.latency_alarm_ms),
        )
        # Made before it, the alarm of its health would go off while SageMaker makes the first instances.
        alarms.node.add_dependency(self.endpoint.endpoint)
        if self._declared.kind == "decision":
            own = ServerAlarms(self, "ServerAlarms", endpoint_name=endpoint_name, topic=shared.topic)
            own.node.add_dependency(self.endpoint.endpoint)
        self._scale()
        caller = self._caller()
        self._gate(release, shared)
        self.output("EndpointName", endpoint_name, "What callers pass as EndpointName")
        self.output("EndpointArn", self.endpoint.endpoint_arn, "ARN of the endpoint")
        self.output("Kind", self._declared.kind, "chat or decision")
        self.output("Release", release.id, "What is deployed")
        self.output("LogGroup", self.endpoint.log_group.log_group_name, "Log of the containers")
        if caller is not None:
            self.output("CallerRoleArn", caller.role.role_arn, "Role that may call the endpoint, and only that")

    def _gate(self, release: Release, shared: Shared) -> None:
        """Let everything else of the stack wait until what the release names has been found."""
        everything = list(self.node.children)
        declared = self._declared
        image = image_of(self.settings, declared, release)
        model = None
        if declared.hub is None:
            served = served_by(release, declared)
            model = GatedModel(
                bucket=shared.bucket_name,
                prefix=served.key,
                manifest_sha256=served.model.manifest_sha256,
                objects=served.objects(),
            )
        gate = ReleaseGate(
            self,
            "Gate",
            # A sample's published container is a placeholder, so it is in no registry.
            image=None if release.sample and image.published else image,
            model=model,
            endpoint=GatedTypes(
                name=self.endpoint.endpoint_name, instance_types=[each.name for each in self.endpoint.instance_types]
            ),
            local_only=release.sample,
            encryption_key=shared.encryption_key,
            log_retention=self.log_retention,
            removal_policy=self.removal_policy,
        )
        gate.guard(*everything)

    def _props(self, endpoint_name: str, release: Release, shared: Shared) -> EndpointProps:
        declared = self._declared
        network = shared.network
        return EndpointProps(
            endpoint_name=endpoint_name,
            image=image_of(self.settings, declared, release),
            vpc=network.vpc if network else None,
            subnets=network.subnets if network else None,
            security_group=network.security_group if network else None,
            encryption_key=shared.encryption_key,
            log_retention=self.log_retention,
            removal_policy=self.removal_policy,
            rollback_alarms=self._rollback_alarms,
            **declared.declared(),
        )

    def _rollback_alarms(self, metrics: EndpointMetrics) -> Sequence[cloudwatch.IAlarm]:
        return RollbackAlarms(
            self, "Rollback", metrics=metrics, thresholds=Thresholds(latency_alarm_ms=self._declared.latency_alarm_ms)
        ).all

    def _endpoint(self, release: Release, shared: Shared, props: EndpointProps) -> DecisionEndpoint | ChatEndpoint:
        declared = self._declared
        if (hub := declared.hub) is not None:
            return ChatEndpoint(self, "Endpoint", model=hub, props=props)
        served = served_by(release, declared)
        artifact, name = served.artifact(bucket=shared.bucket_name), served.model.name
        if declared.kind == "chat":
            return ChatEndpoint(self, "Endpoint", model=artifact, props=props, flags=ChatFlags(alias=name))
        named = {"STEELYARD_MODEL_ID": name, **declared.environment, **served.variables}
        return DecisionEndpoint(self, "Endpoint", model=artifact, props=replace(props, environment=named))

    def _scale(self) -> None:
        if (scaling := self._declared.scaling) is None:
            return
        EndpointScaling(
            self,
            "Scaling",
            endpoint_name=self.endpoint.endpoint.attr_endpoint_name,
            variant_name=self.endpoint.variant_name,
            scaling=scaling,
        )

    def _caller(self) -> CallerRole | None:
        allowed = self._declared.caller
        if not allowed.trusts_someone:
            return None
        principals = [iam.ArnPrincipal(arn) for arn in allowed.principals]
        return CallerRole(
            self,
            "Caller",
            assumed_by=iam.AccountRootPrincipal() if allowed.whole_account else iam.CompositePrincipal(*principals),
            endpoints=[self.endpoint.endpoint_arn],
            bearer_token=allowed.bearer_token,
        )

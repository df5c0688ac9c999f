"""The record of one endpoint, as SageMaker describes it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from steelyard_localcloud.sagemaker.fleet import Fleet
from steelyard_localcloud.sagemaker.router import Router
from steelyard_localcloud.wire import Parameters


@dataclass(kw_only=True)
class Endpoint:
    """One endpoint.

    Attributes:
        name: Its name.
        arn: Its ARN.
        config_name: The configuration that serves.
        status: ``EndpointStatus``.
        instances: Instances of the variant, wanted and running.
        weight: Weight of the variant.
        arriving: Instance type and count of a fleet that is being deployed; both fleets count against the quota.
        failure: Why the last deployment failed; None when it did not.
        router: The fleets that answer, and their shares.
        deployment_config: Policy of the last deployment.
    """

    name: str
    arn: str
    config_name: str
    status: str = "Creating"
    instances: int = 1
    weight: float = 1.0
    arriving: tuple[str, int] | None = None
    failure: str | None = None
    router: Router = field(default_factory=Router)
    deployment_config: Parameters | None = None
    created_at: float = field(default_factory=time.time)
    modified_at: float = field(default_factory=time.time)

    @property
    def instance_types(self) -> tuple[str, ...]:
        """Its instance types; none before the first deployment."""
        return self.router.main.instance_types if self.router.main else ()

    def finish(self, status: str, failure: str | None = None) -> None:
        """End a change with this status."""
        self.status, self.failure, self.modified_at, self.arriving = status, failure, time.time(), None

    def held(self, instance_type: str) -> int:
        """Instances of a type that it has, or is being given."""
        kept = self.instances if self.router.main and self.router.main.placed == instance_type else 0
        return kept + (self.arriving[1] if self.arriving and self.arriving[0] == instance_type else 0)

    def summary(self) -> Parameters:
        """As ``ListEndpoints`` shows it."""
        return {
            "EndpointName": self.name,
            "EndpointArn": self.arn,
            "CreationTime": self.created_at,
            "LastModifiedTime": self.modified_at,
            "EndpointStatus": self.status,
        }

    def description(self) -> Parameters:
        """As ``DescribeEndpoint`` shows it."""
        described = {**self.summary(), "EndpointConfigName": self.config_name}
        if self.failure:
            described["FailureReason"] = self.failure
        if self.deployment_config:
            described["LastDeploymentConfig"] = self.deployment_config
        if fleet := self.router.main:
            described["ProductionVariants"] = [self._variant(fleet)]
        return described

    def _variant(self, fleet: Fleet) -> Parameters:
        described: Parameters = {
            "VariantName": fleet.name,
            "DeployedImages": fleet.deployed_images(),
            "CurrentWeight": self.weight,
            "DesiredWeight": self.weight,
            "CurrentInstanceCount": self.instances,
            "DesiredInstanceCount": self.instances,
        }
        if "RoutingConfig" in fleet.variant:
            described["RoutingConfig"] = fleet.variant["RoutingConfig"]
        if pools := fleet.variant.get("InstancePools"):
            counts = {fleet.placed: self.instances}
            described["InstancePools"] = [
                {"InstanceType": pool["InstanceType"], "CurrentInstanceCount": counts.get(pool["InstanceType"], 0)}
                for pool in pools
            ]
        return described

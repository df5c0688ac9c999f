"""The VPC of the environment's endpoints, where the environment asks for one."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_kms as kms

from stacks.environment_stack import EnvironmentStack
from steelyard.environments.schema import CreatedNetwork, Environment
from steelyard_constructs.isolated_network import IsolatedNetwork


class NetworkStack(EnvironmentStack):
    """A VPC without any way out.

    Attributes:
        network: The network.
    """

    def __init__(
        self, scope: cdk.App, environment: Environment, *, network: CreatedNetwork, encryption_key: kms.IKey | None
    ) -> None:
        """Make the stack.

        Args:
            scope: The app.
            environment: The environment.
            network: What it says about its network.
            encryption_key: Its key, for the log of flows.
        """
        self._zones = network.zones
        super().__init__(scope, "Network", environment=environment, description="the VPC of the endpoints")
        self.network = IsolatedNetwork(
            self,
            "Network",
            removal_policy=self.removal_policy,
            cidr=network.cidr,
            zones=network.zones,
            encryption_key=encryption_key,
            log_retention=self.log_retention,
        )

    @property
    def availability_zones(self) -> list[str]:
        """The region's first zones, named at deployment: by default the CDK would ask AWS for them at synth."""
        return [cdk.Fn.select(number, cdk.Fn.get_azs()) for number in range(self._zones)]

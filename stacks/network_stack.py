"""The network that endpoints in a VPC share: the VPC, where the environment asks for one, and their security group."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_kms as kms

from stacks.environment_stack import EnvironmentStack
from steelyard.environments.schema import CreatedNetwork, Environment, ExistingNetwork
from steelyard_constructs.endpoint_security_group import EndpointSecurityGroup
from steelyard_constructs.isolated_network import IsolatedNetwork

SECURITY_GROUP_OUTPUT = "SecurityGroupId"
"""The output with the endpoints' security group."""


class NetworkStack(EnvironmentStack):
    """A VPC without any way out, or one that exists; and in it a security group that outlives the endpoints.

    Args:
        environment: The environment.
        network: What it says about its network.
        encryption_key: Its key, for the log of flows.

    Attributes:
        vpc: The VPC.
        subnets: The subnets of the endpoints.
        security_group: The security group of their containers.
    """

    def __init__(
        self,
        scope: cdk.App,
        environment: Environment,
        *,
        network: CreatedNetwork | ExistingNetwork,
        encryption_key: kms.IKey | None,
    ) -> None:
        self._zones = network.zones if isinstance(network, CreatedNetwork) else len(network.subnets)
        super().__init__(scope, "Network", environment=environment, description="the network of the endpoints")
        self.vpc = self._vpc(network, encryption_key)
        self.subnets = ec2.SubnetSelection(subnet_type=ec2.SubnetType.PRIVATE_ISOLATED)
        self.security_group = EndpointSecurityGroup(self, "Endpoints", vpc=self.vpc).group
        self.output(
            SECURITY_GROUP_OUTPUT, self.security_group.security_group_id, "Security group of the endpoints' containers"
        )

    def _vpc(self, network: CreatedNetwork | ExistingNetwork, encryption_key: kms.IKey | None) -> ec2.IVpc:
        if isinstance(network, CreatedNetwork):
            return IsolatedNetwork(
                self,
                "Network",
                removal_policy=self.removal_policy,
                cidr=network.cidr,
                zones=network.zones,
                encryption_key=encryption_key,
                log_retention=self.log_retention,
            ).vpc
        zones, identifiers = list(network.subnets), list(network.subnets.values())
        vpc = ec2.Vpc.from_vpc_attributes(
            self, "Vpc", vpc_id=network.vpc_id, availability_zones=zones, isolated_subnet_ids=identifiers
        )
        cdk.Annotations.of(vpc).acknowledge_warning(
            "@aws-cdk/aws-ec2:noSubnetRouteTableId", "Nothing here changes routes."
        )
        return vpc

    @property
    def availability_zones(self) -> list[str]:
        """The region's first zones, named at deployment: by default the CDK would ask AWS for them at synth."""
        return [cdk.Fn.select(number, cdk.Fn.get_azs()) for number in range(self._zones)]

"""The security group of endpoints' containers, which outlives every endpoint that uses it."""

from __future__ import annotations

from aws_cdk import aws_ec2 as ec2
from constructs import Construct


class EndpointSecurityGroup(Construct):
    """Nothing in, HTTPS out.

    Make it in a stack that is not the endpoint's. SageMaker's network interfaces are in the group, and stay for minutes
    after their endpoint is gone; CloudFormation does not wait for them, and fails to delete a group that is in use.

    Args:
        vpc: The VPC of the endpoints.

    Example:
        >>> import aws_cdk as cdk
        >>> from steelyard_constructs.endpoint_security_group import EndpointSecurityGroup
        >>> from steelyard_constructs.isolated_network import IsolatedNetwork
        >>> app = cdk.App()
        >>> stack = cdk.Stack(app, "Example")
        >>> network = IsolatedNetwork(stack, "Network", removal_policy=cdk.RemovalPolicy.DESTROY)
        >>> group = EndpointSecurityGroup(stack, "Endpoints", vpc=network.vpc).group
        >>> template = app.synth().get_stack_by_name("Example").template

    Attributes:
        group: The group.
    """

    def __init__(self, scope: Construct, id: str, *, vpc: ec2.IVpc) -> None:
        super().__init__(scope, id)
        self.group = ec2.SecurityGroup(
            self,
            "Group",
            vpc=vpc,
            description="Containers of SageMaker endpoints: nothing in, HTTPS out.",
            allow_all_outbound=False,
        )
        self.group.add_egress_rule(ec2.Peer.any_ipv4(), ec2.Port.tcp(443), "The model and the image over HTTPS")

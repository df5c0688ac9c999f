"""A VPC without any way out, for endpoints that must be in one."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs
from constructs import Construct

from steelyard_constructs.numeric import check_whole
from steelyard_constructs.refusal import Refused
from steelyard_constructs.service_principal import service_principal


class IsolatedNetwork(Construct):
    """Isolated subnets, a gateway endpoint for S3, and a log of every flow.

    There is no internet gateway and no NAT. SageMaker's instances fetch their model through the gateway endpoint;
    images and logs take SageMaker's own network.

    In a stack with a concrete account the CDK looks up the names of the availability zones. A stack that must
    synthesize without AWS overrides ``availability_zones``.

    Args:
        removal_policy: What becomes of the log when the stack is deleted.
        cidr: Its addresses.
        zones: Availability zones, each with one subnet.
        encryption_key: A KMS key for the log, which CloudWatch Logs may use.
        log_retention: How long the log is kept.

    Raises:
        Refused: Fewer than 1 zone.

    Example:
        >>> import aws_cdk as cdk
        >>> from steelyard_constructs.isolated_network import IsolatedNetwork
        >>> app = cdk.App()
        >>> stack = cdk.Stack(app, "Example")
        >>> network = IsolatedNetwork(stack, "Network", removal_policy=cdk.RemovalPolicy.DESTROY)
        >>> template = app.synth().get_stack_by_name("Example").template

    Attributes:
        vpc: The VPC.
        log_group: The log of its flows.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        removal_policy: cdk.RemovalPolicy,
        cidr: str = "10.20.0.0/16",
        zones: int = 2,
        encryption_key: kms.IKey | None = None,
        log_retention: logs.RetentionDays = logs.RetentionDays.THREE_MONTHS,
    ) -> None:
        super().__init__(scope, id)
        check_whole("zones", zones)
        if zones < 1:
            raise Refused(f"zones is {zones}; a network spans 1 or more")
        self.vpc = ec2.Vpc(
            self,
            "Vpc",
            ip_addresses=ec2.IpAddresses.cidr(cidr),
            max_azs=zones,
            nat_gateways=0,
            restrict_default_security_group=False,
            subnet_configuration=[
                ec2.SubnetConfiguration(name="Isolated", subnet_type=ec2.SubnetType.PRIVATE_ISOLATED)
            ],
            gateway_endpoints={
                "S3": ec2.GatewayVpcEndpointOptions(service=ec2.GatewayVpcEndpointAwsService.S3),
            },
        )
        self.log_group = logs.LogGroup(
            self, "Flows", retention=log_retention, removal_policy=removal_policy, encryption_key=encryption_key
        )
        role = iam.Role(self, "FlowRole", assumed_by=service_principal(self, "vpc-flow-logs"))
        role.add_to_policy(
            iam.PolicyStatement(
                sid="WriteFlows",
                actions=["logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"],
                resources=[self.log_group.log_group_arn],
            )
        )
        ec2.CfnFlowLog(
            self,
            "FlowLog",
            resource_id=self.vpc.vpc_id,
            resource_type="VPC",
            traffic_type="ALL",
            log_destination_type="cloud-watch-logs",
            log_group_name=self.log_group.log_group_name,
            deliver_logs_permission_arn=role.role_arn,
        ).node.add_dependency(role.node.find_child("DefaultPolicy"))

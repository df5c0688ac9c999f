"""The role that SageMaker assumes to run an endpoint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from aws_cdk import Stack
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs
from constructs import Construct

from steelyard_constructs.model_artifact import ModelArtifact
from steelyard_constructs.nag import acknowledge_wildcard
from steelyard_constructs.service_principal import own_account, service_principal


class ExecutionRole(Construct):
    """Reads one model, pulls from one repository, writes to one log group, and nothing else.

    What belongs to a release (the model, the image) is in a policy of its own whose logical id follows its content.
    With another release CloudFormation therefore adds a policy first and removes the old one last, when the endpoint
    has moved, so that the running version can still start new instances in between.

    Args:
        repository_arn: Repository of the image.
        log_group: Where the containers' output goes.
        model: The model in S3; None for one that the container fetches from a hub.
        subnets: Subnets of the containers' network interfaces, with ``security_group``; none outside a VPC.
        security_group: Security group of those interfaces.
        encryption_key: Key of the model's bucket and of the instances' volumes.

    Attributes:
        role: The role.
        policies: Its policies, for what must wait until it may do its work.

    Example:
        >>> import aws_cdk as cdk
        >>> from aws_cdk import aws_logs as logs
        >>> from steelyard_constructs.execution_role import ExecutionRole
        >>> from steelyard_constructs.model_artifact import ModelArtifact
        >>> stack = cdk.Stack(cdk.App(), "Example")
        >>> execution = ExecutionRole(
        ...     stack,
        ...     "ExecutionRole",
        ...     model=ModelArtifact(bucket="models", key="qwen/0123/", bytes=2_700_000_000),
        ...     repository_arn="arn:aws:ecr:eu-west-1:111122223333:repository/steelyard",
        ...     log_group=logs.LogGroup(stack, "Logs"),
        ... )
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        repository_arn: str,
        log_group: logs.ILogGroup,
        model: ModelArtifact | None = None,
        subnets: Sequence[ec2.ISubnet] = (),
        security_group: ec2.ISecurityGroup | None = None,
        encryption_key: kms.IKey | None = None,
    ) -> None:
        super().__init__(scope, id)
        self.role = iam.Role(
            self,
            "Role",
            assumed_by=service_principal(self, "sagemaker", resource="*"),
            description="Runs a SageMaker endpoint: reads its model, pulls its image, writes its logs.",
        )
        lasting = iam.Policy(self, "Lasting", roles=[self.role])
        lasting.add_statements(*_logging(log_group))
        acknowledge_wildcard(
            lasting,
            "*",
            reason="The login to ECR, metrics and the listing of network interfaces have no ARN; metrics are limited "
            "to SageMaker's namespaces by a condition.",
        )
        if security_group is not None:
            lasting.add_statements(*self._networking(subnets, security_group))
            acknowledge_wildcard(
                lasting,
                self._interfaces,
                reason="The identifiers of network interfaces are made when SageMaker creates them; a condition "
                "limits them to the endpoint's subnets.",
            )
        if encryption_key is not None:
            lasting.add_statements(*_decryption(encryption_key))
        self.policies: Sequence[iam.Policy] = (lasting, self._release_policy(repository_arn, model))

    def let_read(self, alarms: Sequence[cloudwatch.IAlarm]) -> iam.Policy:
        """Let the role read the alarms that undo an update, as SageMaker demands of it.

        Developer guide, "Auto-Rollback Configuration and Monitoring": the execution role needs
        ``cloudwatch:DescribeAlarms`` on each.
        """
        statement = iam.PolicyStatement(
            sid="ReadAlarms", actions=["cloudwatch:DescribeAlarms"], resources=[alarm.alarm_arn for alarm in alarms]
        )
        return iam.Policy(self, "Alarms", roles=[self.role], statements=[statement])

    def _release_policy(self, repository_arn: str, model: ModelArtifact | None) -> iam.Policy:
        statements = [
            iam.PolicyStatement(
                sid="PullImage",
                actions=["ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"],
                resources=[repository_arn],
            )
        ]
        objects = None
        if model is not None:
            bucket_arn = Stack.of(self).format_arn(
                service="s3", region="", account="", resource=model.bucket, resource_name=None
            )
            objects = f"{bucket_arn}/{model.key}" + ("" if model.compressed else "*")
            statements += [
                iam.PolicyStatement(
                    sid="ReadModel",
                    actions=["s3:GetObject"],
                    resources=[objects],
                    conditions={"StringEquals": own_account(self)},
                ),
                iam.PolicyStatement(
                    sid="ListModel",
                    actions=["s3:ListBucket"],
                    resources=[bucket_arn],
                    conditions={
                        "StringEquals": own_account(self),
                        "StringLike": {"s3:prefix": model.key if model.compressed else f"{model.key}*"},
                    },
                ),
            ]
        content = Stack.of(self).resolve([statement.to_statement_json() for statement in statements])
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        policy = iam.Policy(self, f"Release{digest[:8]}", roles=[self.role], statements=statements)
        if objects is not None and objects.endswith("*"):
            acknowledge_wildcard(
                policy, objects, reason="The files of exactly one model: everything below its own prefix."
            )
        return policy

    @property
    def _interfaces(self) -> str:
        return Stack.of(self).format_arn(service="ec2", resource="network-interface", resource_name="*")

    def _networking(
        self, subnets: Sequence[ec2.ISubnet], security_group: ec2.ISecurityGroup
    ) -> list[iam.PolicyStatement]:
        stack = Stack.of(self)
        subnet_arns = [
            stack.format_arn(service="ec2", resource="subnet", resource_name=subnet.subnet_id) for subnet in subnets
        ]
        group_arn = stack.format_arn(
            service="ec2", resource="security-group", resource_name=security_group.security_group_id
        )
        return [
            iam.PolicyStatement(
                sid="CreateInterfaces",
                actions=["ec2:CreateNetworkInterface"],
                resources=[*subnet_arns, group_arn],
            ),
            iam.PolicyStatement(
                sid="UseInterfaces",
                actions=[
                    "ec2:CreateNetworkInterface",
                    "ec2:CreateNetworkInterfacePermission",
                    "ec2:DeleteNetworkInterface",
                ],
                resources=[self._interfaces],
                conditions={"ArnEquals": {"ec2:Subnet": subnet_arns}},
            ),
            iam.PolicyStatement(
                sid="FindInterfaces",
                actions=[
                    "ec2:DeleteNetworkInterfacePermission",
                    "ec2:DescribeDhcpOptions",
                    "ec2:DescribeNetworkInterfaces",
                    "ec2:DescribeSecurityGroups",
                    "ec2:DescribeSubnets",
                    "ec2:DescribeVpcs",
                ],
                resources=["*"],
            ),
        ]


def _logging(log_group: logs.ILogGroup) -> list[iam.PolicyStatement]:
    return [
        iam.PolicyStatement(
            sid="WriteLogs",
            # Not CreateLogGroup: the stack owns it, and SageMaker cannot bring it back after the stack is gone.
            actions=["logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"],
            resources=[log_group.log_group_arn],
        ),
        iam.PolicyStatement(sid="LogIntoRegistry", actions=["ecr:GetAuthorizationToken"], resources=["*"]),
        iam.PolicyStatement(
            sid="WriteMetrics",
            actions=["cloudwatch:PutMetricData"],
            resources=["*"],
            conditions={"StringEquals": {"cloudwatch:namespace": ["/aws/sagemaker/Endpoints", "AWS/SageMaker"]}},
        ),
    ]


def _decryption(key: kms.IKey) -> list[iam.PolicyStatement]:
    return [
        iam.PolicyStatement(
            sid="DecryptModel",
            actions=["kms:Decrypt", "kms:DescribeKey", "kms:GenerateDataKeyWithoutPlaintext"],
            resources=[key.key_arn],
        ),
        iam.PolicyStatement(
            sid="EncryptVolumes",
            actions=["kms:CreateGrant"],
            resources=[key.key_arn],
            conditions={"Bool": {"kms:GrantIsForAWSResource": "true"}},
        ),
    ]

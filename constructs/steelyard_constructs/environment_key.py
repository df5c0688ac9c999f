"""One KMS key for everything that an environment stores."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from constructs import Construct

LOG_KEY_ACTIONS = (
    "kms:Decrypt",
    "kms:DescribeKey",
    "kms:Encrypt",
    "kms:GenerateDataKey",
    "kms:GenerateDataKeyWithoutPlaintext",
    "kms:ReEncryptFrom",
    "kms:ReEncryptTo",
)
"""The actions on a key that CloudWatch Logs needs to encrypt a log group."""


class EnvironmentKey(Construct):
    """A KMS key, rotated every year, that the environment's services may use.

    Beside the account's own policies, CloudWatch Logs may use it for the account's log groups, and CloudWatch and
    Budgets may use it to publish to an encrypted topic of the account.

    Args:
        removal_policy: Whether the key goes with the stack (KMS waits 7 days before it really does). What it
            encrypted cannot be read without it.
        description: What it is for.

    Example:
        >>> import aws_cdk as cdk
        >>> from steelyard_constructs.artifact_store import ArtifactStore
        >>> from steelyard_constructs.environment_key import EnvironmentKey
        >>> app = cdk.App()
        >>> stack = cdk.Stack(app, "Example")
        >>> key = EnvironmentKey(stack, "Key", removal_policy=cdk.RemovalPolicy.DESTROY)
        >>> store = ArtifactStore(stack, "Store", removal_policy=cdk.RemovalPolicy.DESTROY, encryption_key=key.key)
        >>> template = app.synth().get_stack_by_name("Example").template

    Attributes:
        key: The key.
    """

    def __init__(
        self, scope: Construct, id: str, *, removal_policy: cdk.RemovalPolicy, description: str | None = None
    ) -> None:
        super().__init__(scope, id)
        stack = cdk.Stack.of(self)
        self.key = kms.Key(
            self,
            "Key",
            description=description,
            enable_key_rotation=True,
            removal_policy=removal_policy,
            pending_window=cdk.Duration.days(7),
        )
        log_groups = stack.format_arn(
            service="logs",
            resource="log-group",
            resource_name="*",
            arn_format=cdk.ArnFormat.COLON_RESOURCE_NAME,
        )
        self.key.add_to_resource_policy(
            iam.PolicyStatement(
                sid="EncryptLogs",
                principals=[iam.ServicePrincipal(f"logs.{stack.region}.amazonaws.com")],
                actions=list(LOG_KEY_ACTIONS),
                # In a key's own policy "*" is the key.
                resources=["*"],
                conditions={"ArnLike": {"kms:EncryptionContext:aws:logs:arn": log_groups}},
            )
        )
        self.key.add_to_resource_policy(
            iam.PolicyStatement(
                sid="PublishAlarms",
                principals=[iam.ServicePrincipal(f"{name}.amazonaws.com") for name in ("cloudwatch", "budgets")],
                actions=["kms:Decrypt", "kms:GenerateDataKey"],
                resources=["*"],
                conditions={"StringEquals": {"aws:SourceAccount": stack.account}},
            )
        )

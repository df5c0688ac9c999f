"""The topic that alarms are published to, and the addresses that hear of them."""

from __future__ import annotations

from collections.abc import Sequence

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sns as sns
from constructs import Construct


class AlarmTopic(Construct):
    """A topic reached over TLS only, to which CloudWatch and Budgets of the same account may publish.

    Each address gets a mail from AWS and hears nothing until its owner confirms.

    Args:
        emails: Addresses that alarms are mailed to.
        encryption_key: A KMS key that CloudWatch and Budgets may use (``EnvironmentKey`` is one); without one, SNS
            encrypts with its own.

    Example:
        >>> import aws_cdk as cdk
        >>> from steelyard_constructs.alarm_topic import AlarmTopic
        >>> app = cdk.App()
        >>> stack = cdk.Stack(app, "Example")
        >>> alarms = AlarmTopic(stack, "Alarms", emails=["oncall@example.com"])
        >>> template = app.synth().get_stack_by_name("Example").template

    Attributes:
        topic: The topic.
    """

    def __init__(
        self, scope: Construct, id: str, *, emails: Sequence[str] = (), encryption_key: kms.IKey | None = None
    ) -> None:
        super().__init__(scope, id)
        self.topic = sns.Topic(self, "Topic", enforce_ssl=True, master_key=encryption_key)
        self.topic.add_to_resource_policy(
            iam.PolicyStatement(
                sid="PublishAlarms",
                principals=[iam.ServicePrincipal(f"{name}.amazonaws.com") for name in ("cloudwatch", "budgets")],
                actions=["sns:Publish"],
                resources=[self.topic.topic_arn],
                conditions={"StringEquals": {"aws:SourceAccount": cdk.Stack.of(self).account}},
            )
        )
        for number, email in enumerate(emails, start=1):
            sns.CfnSubscription(
                self, f"Email{number}", topic_arn=self.topic.topic_arn, protocol="email", endpoint=email
            )

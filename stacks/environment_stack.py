"""The base of an environment's stacks: where they go and how they are tagged."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_logs as logs

from steelyard.environments.fixed import OUTPUT as FIXED
from steelyard.environments.fixed import output_value
from steelyard.environments.schema import Environment
from steelyard_constructs.log_retention import LOG_RETENTION_DAYS

TAG_ENVIRONMENT = "steelyard:environment"
TAG_RELEASE = "steelyard:release"
TAG_ENDPOINT = "steelyard:endpoint"

RETENTION = dict(zip(LOG_RETENTION_DAYS, logs.RetentionDays, strict=False))
"""The CDK's names of the periods that logs are kept, in the order of their days; after them comes ``INFINITE``."""


class EnvironmentStack(cdk.Stack):
    """A stack of one environment: its name, account, region and tag follow from it.

    Args:
        part: What part of the environment it is, such as ``Artifacts``.
        environment: The environment.
        description: What it holds, for the console.
    """

    def __init__(self, scope: cdk.App, part: str, *, environment: Environment, description: str) -> None:
        super().__init__(
            scope,
            environment.stack_name(part),
            env=cdk.Environment(account=environment.account, region=environment.region),
            synthesizer=cdk.DefaultStackSynthesizer(qualifier=environment.bootstrap.qualifier),
            description=f"Steelyard, environment {environment.name}: {description}",
            termination_protection=environment.removal_policy == "retain",
        )
        self.settings = environment
        cdk.Tags.of(self).add(TAG_ENVIRONMENT, environment.name)
        if (fixed := output_value(environment, part)) is not None:
            self.output(FIXED, fixed, "Values of the environment file that cannot change in place")

    @property
    def removal_policy(self) -> cdk.RemovalPolicy:
        """Fate of what the environment stores when a stack is deleted."""
        if self.settings.removal_policy == "destroy":
            return cdk.RemovalPolicy.DESTROY
        # Not RETAIN: what a failed first deployment left behind would be in the way of the second one.
        return cdk.RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE

    @property
    def log_retention(self) -> logs.RetentionDays:
        """Period for which logs are kept."""
        return RETENTION[self.settings.log_retention_days]

    def output(self, name: str, value: str, description: str) -> None:
        """Declare an output that programs read by its name."""
        cdk.CfnOutput(self, name, value=value, description=description)

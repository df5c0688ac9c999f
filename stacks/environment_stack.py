"""What the stacks of an environment have in common: where they go and how they are tagged."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_logs as logs

from steelyard.environments.schema import Environment

TAG_ENVIRONMENT = "steelyard:environment"
TAG_RELEASE = "steelyard:release"
TAG_ENDPOINT = "steelyard:endpoint"

RETENTION = {
    1: logs.RetentionDays.ONE_DAY,
    3: logs.RetentionDays.THREE_DAYS,
    5: logs.RetentionDays.FIVE_DAYS,
    7: logs.RetentionDays.ONE_WEEK,
    14: logs.RetentionDays.TWO_WEEKS,
    30: logs.RetentionDays.ONE_MONTH,
    60: logs.RetentionDays.TWO_MONTHS,
    90: logs.RetentionDays.THREE_MONTHS,
    120: logs.RetentionDays.FOUR_MONTHS,
    150: logs.RetentionDays.FIVE_MONTHS,
    180: logs.RetentionDays.SIX_MONTHS,
    365: logs.RetentionDays.ONE_YEAR,
    400: logs.RetentionDays.THIRTEEN_MONTHS,
    545: logs.RetentionDays.EIGHTEEN_MONTHS,
    731: logs.RetentionDays.TWO_YEARS,
    1096: logs.RetentionDays.THREE_YEARS,
    1827: logs.RetentionDays.FIVE_YEARS,
    2192: logs.RetentionDays.SIX_YEARS,
    2557: logs.RetentionDays.SEVEN_YEARS,
    2922: logs.RetentionDays.EIGHT_YEARS,
    3288: logs.RetentionDays.NINE_YEARS,
    3653: logs.RetentionDays.TEN_YEARS,
}


class EnvironmentStack(cdk.Stack):
    """A stack of one environment: its name, account, region and tag follow from it."""

    def __init__(self, scope: cdk.App, part: str, *, environment: Environment, description: str) -> None:
        """Make the stack.

        Args:
            scope: The app.
            part: What part of the environment it is, such as ``Artifacts``.
            environment: The environment.
            description: What it holds, for the console.
        """
        super().__init__(
            scope,
            environment.stack_name(part),
            env=cdk.Environment(account=environment.account, region=environment.region),
            description=f"Steelyard, environment {environment.name}: {description}",
            termination_protection=environment.removal_policy == "retain",
        )
        self.settings = environment
        cdk.Tags.of(self).add(TAG_ENVIRONMENT, environment.name)

    @property
    def removal_policy(self) -> cdk.RemovalPolicy:
        """What becomes of what the environment stores when a stack is deleted."""
        if self.settings.removal_policy == "destroy":
            return cdk.RemovalPolicy.DESTROY
        # Not RETAIN: what a failed first deployment left behind would be in the way of the second one.
        return cdk.RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE

    @property
    def log_retention(self) -> logs.RetentionDays:
        """How long logs are kept."""
        return RETENTION[self.settings.log_retention_days]

    def output(self, name: str, value: str, description: str) -> None:
        """Declare an output that programs read by its name."""
        cdk.CfnOutput(self, name, value=value, description=description)

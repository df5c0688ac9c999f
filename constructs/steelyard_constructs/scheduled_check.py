"""A pipeline that runs on a schedule, and the alarm on its failures."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_events as events
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sns as sns
from constructs import Construct

from steelyard_constructs.refusal import Refused
from steelyard_constructs.release_pipeline import ReleasePipeline
from steelyard_constructs.service_principal import service_principal


class ScheduledCheck(Construct):
    """Starts a pipeline every so many hours, and has an alarm for each of its stages whose build fails.

    Args:
        pipeline: The pipeline.
        every_hours: Time from one start to the next, in hours.
        meaning: The meaning of a failure, for the person who gets the mail, and where to read on.
        topic: Notified when an alarm goes off and when it is over.

    Raises:
        Refused: The time is less than an hour.

    Example:
        >>> from pathlib import Path
        >>> import aws_cdk as cdk
        >>> from steelyard_constructs.artifact_store import ArtifactStore
        >>> from steelyard_constructs.build_project import BuildProps
        >>> from steelyard_constructs.environment_key import EnvironmentKey
        >>> from steelyard_constructs.release_pipeline import Origin, PipelineStage, ReleasePipeline
        >>> from steelyard_constructs.scheduled_check import ScheduledCheck
        >>> stack = cdk.Stack(cdk.App(), "Pipeline")
        >>> key = EnvironmentKey(stack, "Key", removal_policy=cdk.RemovalPolicy.DESTROY).key
        >>> store = ArtifactStore(stack, "Store", removal_policy=cdk.RemovalPolicy.DESTROY, encryption_key=key)
        >>> connection = "arn:aws:codeconnections:us-east-1:555566667777:connection/00000000"
        >>> pipeline = ReleasePipeline(
        ...     stack,
        ...     "Drift",
        ...     origin=Origin(connection_arn=connection, repository="example/decisions", branch="main", starts=False),
        ...     stages=[PipelineStage(name="staging", variables={"STEPS": "drift"})],
        ...     artifacts=store.bucket,
        ...     encryption_key=key,
        ...     props=BuildProps(source=None, buildspec=Path("pipelines/aws/stage.buildspec.yml"), encryption_key=key),
        ... )
        >>> check = ScheduledCheck(stack, "Check", pipeline=pipeline, every_hours=24, meaning="it drifted")

    Attributes:
        alarms: The alarm of each stage, by its name.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        pipeline: ReleasePipeline,
        every_hours: int,
        meaning: str,
        topic: sns.ITopic | None = None,
    ) -> None:
        super().__init__(scope, id)
        if every_hours < 1:
            raise Refused(f"every_hours is {every_hours}; a check runs every hour at the most: give 1 or more")
        stack = cdk.Stack.of(self)
        arn = stack.format_arn(service="codepipeline", resource=pipeline.pipeline.ref)
        role = iam.Role(
            self,
            "Role",
            assumed_by=service_principal(self, "events", resource="rule/*"),
            description="Starts the scheduled pipeline",
        )
        role.add_to_policy(
            iam.PolicyStatement(sid="Start", actions=["codepipeline:StartPipelineExecution"], resources=[arn])
        )
        events.CfnRule(
            self,
            "Schedule",
            description="Starts the scheduled pipeline",
            schedule_expression=f"rate({every_hours} hour{'' if every_hours == 1 else 's'})",
            targets=[events.CfnRule.TargetProperty(id="pipeline", arn=arn, role_arn=role.role_arn)],
        )
        self.alarms: dict[str, cloudwatch.IAlarm] = {}
        for name, project in pipeline.projects.items():
            failed = cloudwatch.Metric(
                namespace="AWS/CodeBuild",
                metric_name="FailedBuilds",
                dimensions_map={"ProjectName": project.project_name},
                statistic=cloudwatch.Stats.SUM,
                period=cdk.Duration.minutes(1),
            )
            alarm = cloudwatch.Alarm(
                self,
                f"Failed-{name}",
                metric=failed,
                threshold=0,
                comparison_operator=cloudwatch.ComparisonOperator.GREATER_THAN_THRESHOLD,
                evaluation_periods=1,
                treat_missing_data=cloudwatch.TreatMissingData.NOT_BREACHING,
                alarm_description=f"{name}: {meaning}",
            )
            if topic is not None:
                alarm.add_alarm_action(actions.SnsAction(topic))
                alarm.add_ok_action(actions.SnsAction(topic))
            self.alarms[name] = alarm

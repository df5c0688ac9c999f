"""The instance count of an endpoint follows its load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from aws_cdk import aws_applicationautoscaling as autoscaling
from constructs import Construct

from steelyard_constructs.numeric import check_finite, check_whole
from steelyard_constructs.refusal import Refused


@dataclass(frozen=True)
class Schedule:
    """From a point in time on, other limits.

    Attributes:
        name: Unique within the endpoint.
        expression: When: ``cron(0 7 ? * MON-FRI *)``, ``rate(1 day)`` or ``at(2030-01-01T00:00:00)``.
        min_capacity: Instances, at least.
        max_capacity: Instances, at most.
        time_zone: Whose clock the expression goes by, such as ``Europe/Amsterdam``.
    """

    name: str
    expression: str
    min_capacity: int
    max_capacity: int
    time_zone: str = "Etc/UTC"


class EndpointScaling(Construct):
    """Keeps the requests in progress on each instance near a target.

    The metric, ``ConcurrentRequestsPerModel``, is sampled every 10 seconds and counts requests that wait, so instances
    are added before latency has suffered; invocations per minute say nothing about work that takes seconds.

    Attributes:
        target: What is scaled.
        policy: How.

    Example:
        >>> import aws_cdk as cdk
        >>> from steelyard_constructs.endpoint_scaling import EndpointScaling, Schedule
        >>> app = cdk.App()
        >>> stack = cdk.Stack(app, "Example")
        >>> scaling = EndpointScaling(
        ...     stack,
        ...     "Scaling",
        ...     endpoint_name="support-decisions",  # DecisionEndpoint: decisions.endpoint.attr_endpoint_name
        ...     variant_name="primary",
        ...     min_capacity=1,
        ...     max_capacity=4,
        ...     target_concurrency=3,
        ...     schedules=[Schedule("office-hours", "cron(0 7 ? * MON-FRI *)", 2, 4, "Europe/Amsterdam")],
        ... )
        >>> template = app.synth().get_stack_by_name("Example").template
    """

    METRIC: ClassVar[str] = "SageMakerVariantConcurrentRequestsPerModelHighResolution"

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        endpoint_name: str,
        variant_name: str,
        min_capacity: int,
        max_capacity: int,
        target_concurrency: float,
        schedules: Sequence[Schedule] = (),
        scale_in_cooldown_s: int = 300,
        scale_out_cooldown_s: int = 60,
    ) -> None:
        """Make the scaling.

        Args:
            scope: Parent.
            id: Name within it.
            endpoint_name: The endpoint. For one of the same stack take ``endpoint.attr_endpoint_name``, not the plain
                name: then CloudFormation makes the endpoint first.
            variant_name: Its variant.
            min_capacity: Instances, at least; 1 or more.
            max_capacity: Instances, at most.
            target_concurrency: Requests in progress per instance that scaling aims at.
            schedules: Other limits at other times.
            scale_in_cooldown_s: Pause after instances were removed, in seconds.
            scale_out_cooldown_s: Pause after instances were added, in seconds.

        Raises:
            Refused: Limits that contradict each other, zero instances, or a target that is not positive and finite.
        """
        super().__init__(scope, id)
        _check_limits("scaling", min_capacity, max_capacity)
        check_finite("target_concurrency", target_concurrency)
        if not target_concurrency > 0:
            raise Refused(f"target_concurrency is {target_concurrency}; aim at more than 0 requests per instance")
        for name, seconds in (
            ("scale_in_cooldown_s", scale_in_cooldown_s),
            ("scale_out_cooldown_s", scale_out_cooldown_s),
        ):
            check_whole(name, seconds)
            if not 0 <= seconds <= 3600:
                raise Refused(f"{name} is {seconds}; Application Auto Scaling takes 0 to 3600 s")
        _check_schedules(schedules)

        self.target = autoscaling.CfnScalableTarget(
            self,
            "Target",
            service_namespace="sagemaker",
            scalable_dimension="sagemaker:variant:DesiredInstanceCount",
            resource_id=f"endpoint/{endpoint_name}/variant/{variant_name}",
            min_capacity=min_capacity,
            max_capacity=max_capacity,
            scheduled_actions=[_scheduled_action(schedule) for schedule in schedules] or None,
        )
        self.policy = autoscaling.CfnScalingPolicy(
            self,
            "Policy",
            policy_name=f"{self.node.path.replace('/', '-')}-concurrency",
            policy_type="TargetTrackingScaling",
            scaling_target_id=self.target.ref,
            target_tracking_scaling_policy_configuration=autoscaling.CfnScalingPolicy.TargetTrackingScalingPolicyConfigurationProperty(
                predefined_metric_specification=autoscaling.CfnScalingPolicy.PredefinedMetricSpecificationProperty(
                    predefined_metric_type=self.METRIC
                ),
                target_value=target_concurrency,
                scale_in_cooldown=scale_in_cooldown_s,
                scale_out_cooldown=scale_out_cooldown_s,
            ),
        )


def _scheduled_action(schedule: Schedule) -> autoscaling.CfnScalableTarget.ScheduledActionProperty:
    return autoscaling.CfnScalableTarget.ScheduledActionProperty(
        scheduled_action_name=schedule.name,
        schedule=schedule.expression,
        timezone=schedule.time_zone,
        scalable_target_action=autoscaling.CfnScalableTarget.ScalableTargetActionProperty(
            min_capacity=schedule.min_capacity, max_capacity=schedule.max_capacity
        ),
    )


def _check_limits(what: str, least: int, most: int) -> None:
    check_whole(f"min_capacity of {what}", least)
    check_whole(f"max_capacity of {what}", most)
    if least < 1:
        raise Refused(
            f"{what} has min_capacity {least}: an endpoint without inference components cannot scale to zero; set 1 or "
            "more, or destroy its stack while it is not needed"
        )
    if least > most:
        raise Refused(f"{what} has min_capacity {least} above max_capacity {most}; swap or change them")


def _check_schedules(schedules: Sequence[Schedule]) -> None:
    names = [schedule.name for schedule in schedules]
    for position, schedule in enumerate(schedules):
        if schedule.name in names[:position]:
            raise Refused(f"the schedule name {schedule.name!r} is given twice; give each schedule its own")
        kind, _, rest = schedule.expression.partition("(")
        if kind not in ("at", "cron", "rate") or not rest.endswith(")"):
            raise Refused(
                f"schedule {schedule.name!r} has the expression {schedule.expression!r}; write at(...), cron(...) or "
                "rate(...)"
            )
        _check_limits(f"schedule {schedule.name!r}", schedule.min_capacity, schedule.max_capacity)

"""The instance count of an endpoint follows its load."""

from __future__ import annotations

from typing import ClassVar

from aws_cdk import aws_applicationautoscaling as autoscaling
from constructs import Construct

from steelyard_constructs.declared_endpoint import Scaling, Schedule, check_scaling
from steelyard_constructs.numeric import check_whole
from steelyard_constructs.refusal import Refused


class EndpointScaling(Construct):
    """Keeps the requests in progress on each instance near a target.

    The metric, ``ConcurrentRequestsPerModel``, is sampled every 10 seconds and counts requests that wait, so instances
    are added before latency has suffered; invocations per minute say nothing about work that takes seconds.

    Args:
        endpoint_name: The endpoint. For one of the same stack take ``endpoint.attr_endpoint_name``, not the plain
            name: then CloudFormation makes the endpoint first.
        variant_name: Its variant.
        scaling: The limits, the target, and the schedules.
        scale_in_cooldown_s: Pause after instances were removed, in seconds.
        scale_out_cooldown_s: Pause after instances were added, in seconds.

    Raises:
        Refused: Limits that contradict each other, zero instances, or a target that is not positive and finite.

    Attributes:
        target: What is scaled.
        policy: How.

    Example:
        >>> import aws_cdk as cdk
        >>> from steelyard_constructs.declared_endpoint import Scaling, Schedule
        >>> from steelyard_constructs.endpoint_scaling import EndpointScaling
        >>> app = cdk.App()
        >>> stack = cdk.Stack(app, "Example")
        >>> scaling = EndpointScaling(
        ...     stack,
        ...     "Scaling",
        ...     endpoint_name="support-decisions",  # DecisionEndpoint: decisions.endpoint.attr_endpoint_name
        ...     variant_name="primary",
        ...     scaling=Scaling(
        ...         min_instances=1,
        ...         max_instances=4,
        ...         target_concurrency=3,
        ...         schedules=(Schedule("office-hours", "cron(0 7 ? * MON-FRI *)", 2, 4, "Europe/Amsterdam"),),
        ...     ),
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
        scaling: Scaling,
        scale_in_cooldown_s: int = 300,
        scale_out_cooldown_s: int = 60,
    ) -> None:
        super().__init__(scope, id)
        check_scaling(scaling)
        for name, seconds in (
            ("scale_in_cooldown_s", scale_in_cooldown_s),
            ("scale_out_cooldown_s", scale_out_cooldown_s),
        ):
            check_whole(name, seconds)
            if not 0 <= seconds <= 3600:
                raise Refused(f"{name} is {seconds}; Application Auto Scaling takes 0 to 3600 s")

        self.target = autoscaling.CfnScalableTarget(
            self,
            "Target",
            service_namespace="sagemaker",
            scalable_dimension="sagemaker:variant:DesiredInstanceCount",
            resource_id=f"endpoint/{endpoint_name}/variant/{variant_name}",
            min_capacity=scaling.min_instances,
            max_capacity=scaling.max_instances,
            scheduled_actions=[_scheduled_action(schedule) for schedule in scaling.schedules] or None,
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
                target_value=scaling.target_concurrency,
                scale_in_cooldown=scale_in_cooldown_s,
                scale_out_cooldown=scale_out_cooldown_s,
            ),
        )


def _scheduled_action(schedule: Schedule) -> autoscaling.CfnScalableTarget.ScheduledActionProperty:
    return autoscaling.CfnScalableTarget.ScheduledActionProperty(
        scheduled_action_name=schedule.name,
        schedule=schedule.cron,
        timezone=schedule.time_zone,
        scalable_target_action=autoscaling.CfnScalableTarget.ScalableTargetActionProperty(
            min_capacity=schedule.min_instances, max_capacity=schedule.max_instances
        ),
    )

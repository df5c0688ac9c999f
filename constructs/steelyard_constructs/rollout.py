"""Rollout of an endpoint's update, and what undoes it."""

from __future__ import annotations

from collections.abc import Sequence

from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_sagemaker as sagemaker

from steelyard_constructs.declared_endpoint import Canary, Rolling, check_canary, check_rolling
from steelyard_constructs.numeric import check_whole
from steelyard_constructs.refusal import Refused

#: How long all-at-once updates are watched, in seconds, when there are alarms to watch.
ALL_AT_ONCE_WATCH_S = 300

_MAX_ALARMS = 10


def deployment_config(
    *,
    alarms: Sequence[cloudwatch.IAlarm],
    canary: Canary | None,
    drain_s: int,
    instances: int,
    rolling: Rolling | None = None,
) -> sagemaker.CfnEndpoint.DeploymentConfigProperty:
    """Blue/green, with the old instances kept until the new ones have served without an alarm; or a rolling update.

    Args:
        alarms: Alarms that bring the old instances back.
        canary: The share of instances that goes first; None for all at once.
        drain_s: How long the old instances live on after the traffic has moved, in seconds; not with ``rolling``.
        instances: Instances that the endpoint is declared with.
        rolling: The share that is replaced at a time; None for blue/green.

    Raises:
        Refused: SageMaker would refuse it, or it would not protect anything.
    """
    if len(alarms) > _MAX_ALARMS:
        raise Refused(f"{len(alarms)} rollback_alarms are given; SageMaker watches at most {_MAX_ALARMS}: choose those")
    check_whole("drain_s", drain_s)
    if not 0 <= drain_s <= 3600:
        raise Refused(f"drain_s is {drain_s}; SageMaker waits 0 to 3600 s before it stops the old instances")
    rollback = (
        sagemaker.CfnEndpoint.AutoRollbackConfigProperty(
            alarms=[sagemaker.CfnEndpoint.AlarmProperty(alarm_name=alarm.alarm_name) for alarm in alarms]
        )
        if alarms
        else None
    )
    if rolling is not None:
        return sagemaker.CfnEndpoint.DeploymentConfigProperty(
            rolling_update_policy=_rolling_policy(rolling, alarms, instances, canary),
            auto_rollback_configuration=rollback,
        )
    if canary is None:
        routing = sagemaker.CfnEndpoint.TrafficRoutingConfigProperty(
            type="ALL_AT_ONCE", wait_interval_in_seconds=ALL_AT_ONCE_WATCH_S if alarms else 0
        )
    else:
        routing = _canary_routing(canary, alarms, instances)
    return sagemaker.CfnEndpoint.DeploymentConfigProperty(
        blue_green_update_policy=sagemaker.CfnEndpoint.BlueGreenUpdatePolicyProperty(
            traffic_routing_configuration=routing, termination_wait_in_seconds=drain_s
        ),
        auto_rollback_configuration=rollback,
    )


def _rolling_policy(
    rolling: Rolling, alarms: Sequence[cloudwatch.IAlarm], instances: int, canary: Canary | None
) -> sagemaker.CfnEndpoint.RollingUpdatePolicyProperty:
    check_rolling(rolling, instances, canary=canary)
    if not alarms:
        raise Refused(
            "a rolling update without rollback_alarms continues whatever the new instances do; give the alarms, or "
            "leave out rolling"
        )
    share = sagemaker.CfnEndpoint.CapacitySizeProperty(type="CAPACITY_PERCENT", value=rolling.percent)
    return sagemaker.CfnEndpoint.RollingUpdatePolicyProperty(
        maximum_batch_size=share, wait_interval_in_seconds=rolling.wait_s
    )


def _canary_routing(
    canary: Canary, alarms: Sequence[cloudwatch.IAlarm], instances: int
) -> sagemaker.CfnEndpoint.TrafficRoutingConfigProperty:
    check_canary(canary, instances)
    if not alarms:
        raise Refused(
            "a canary without rollback_alarms proves nothing: no alarm would stop the update; give the alarms, or "
            "leave out the canary"
        )
    return sagemaker.CfnEndpoint.TrafficRoutingConfigProperty(
        type="CANARY",
        canary_size=sagemaker.CfnEndpoint.CapacitySizeProperty(type="CAPACITY_PERCENT", value=canary.percent),
        wait_interval_in_seconds=canary.wait_s,
    )

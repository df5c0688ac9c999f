"""Application Auto Scaling: targets bound the instance count, and updates keep it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from endpoint_template import reasons

from conftest import Furnished

DIMENSION = "sagemaker:variant:DesiredInstanceCount"


def scaling_resources(name: str, *, low: int = 1, high: int = 4, target: float = 5.0) -> dict[str, Any]:
    return {
        "Target": {
            "Type": "AWS::ApplicationAutoScaling::ScalableTarget",
            "DependsOn": "Endpoint",
            "Properties": {
                "MinCapacity": low,
                "MaxCapacity": high,
                "ResourceId": f"endpoint/{name}/variant/primary",
                "ScalableDimension": DIMENSION,
                "ServiceNamespace": "sagemaker",
                "Tags": [{"Key": "team", "Value": "a"}],
                "ScheduledActions": [
                    {
                        "ScheduledActionName": "morning",
                        "Schedule": "cron(0 8 * * ? *)",
                        "ScalableTargetAction": {"MinCapacity": "2"},
                    }
                ],
            },
        },
        "Policy": {
            "Type": "AWS::ApplicationAutoScaling::ScalingPolicy",
            "Properties": {
                "PolicyName": "concurrency",
                "PolicyType": "TargetTrackingScaling",
                "ScalingTargetId": {"Ref": "Target"},
                "TargetTrackingScalingPolicyConfiguration": {
                    "TargetValue": target,
                    "PredefinedMetricSpecification": {
                        "PredefinedMetricType": "SageMakerVariantConcurrentRequestsPerModelHighResolution"
                    },
                },
            },
        },
    }


def counts(furnished: Furnished, name: str) -> tuple[int, int]:
    (variant,) = furnished.sagemaker.describe_endpoint(EndpointName=name)["ProductionVariants"]
    return variant["DesiredInstanceCount"], variant["CurrentInstanceCount"]


def scale_to(furnished: Furnished, name: str, count: int) -> None:
    furnished.sagemaker.update_endpoint_weights_and_capacities(
        EndpointName=name, DesiredWeightsAndCapacities=[{"VariantName": "primary", "DesiredInstanceCount": count}]
    )


def described(furnished: Furnished, kind: str, name: str) -> list[dict[str, Any]]:
    client = furnished.cloud.client("application-autoscaling")
    parameters = {"ServiceNamespace": "sagemaker"}
    found = {
        "targets": lambda: client.describe_scalable_targets(**parameters)["ScalableTargets"],
        "policies": lambda: client.describe_scaling_policies(**parameters)["ScalingPolicies"],
        "schedules": lambda: client.describe_scheduled_actions(**parameters)["ScheduledActions"],
    }[kind]()
    return [each for each in found if each["ResourceId"] == f"endpoint/{name}/variant/primary"]


def test_scaling_is_created_changed_and_removed(furnished: Furnished, stack: Callable[..., str], name: str) -> None:
    assert stack(more=scaling_resources(name)) == "CREATE_COMPLETE"
    (target,) = described(furnished, "targets", name)
    (policy,) = described(furnished, "policies", name)
    (schedule,) = described(furnished, "schedules", name)
    assert (target["MinCapacity"], target["MaxCapacity"]) == (1, 4)
    assert policy["TargetTrackingScalingPolicyConfiguration"]["TargetValue"] == 5.0
    assert schedule["ScheduledActionName"] == "morning"
    client = furnished.cloud.client("application-autoscaling")
    assert client.list_tags_for_resource(ResourceARN=target["ScalableTargetARN"])["Tags"] == {"team": "a"}
    changed = scaling_resources(name, high=6, target=8.0)
    changed["Target"]["Properties"] |= {"ScheduledActions": [], "Tags": [{"Key": "release", "Value": "2"}]}
    assert stack(more=changed) == "UPDATE_COMPLETE"
    assert described(furnished, "targets", name)[0]["MaxCapacity"] == 6
    assert client.list_tags_for_resource(ResourceARN=target["ScalableTargetARN"])["Tags"] == {"release": "2"}
    assert described(furnished, "policies", name)[0]["TargetTrackingScalingPolicyConfiguration"]["TargetValue"] == 8.0
    assert described(furnished, "schedules", name) == []
    assert stack() == "UPDATE_COMPLETE"
    assert described(furnished, "targets", name) == described(furnished, "policies", name) == []


def test_registering_brings_the_count_within_bounds(furnished: Furnished, stack: Callable[..., str], name: str) -> None:
    assert stack(more=scaling_resources(name, low=2)) == "CREATE_COMPLETE"
    assert counts(furnished, name) == (2, 2)
    scale_to(furnished, name, 4)
    assert stack(more=scaling_resources(name, low=2, high=3)) == "UPDATE_COMPLETE"
    assert counts(furnished, name) == (3, 3)


def test_update_keeps_the_scaled_count(furnished: Furnished, stack: Callable[..., str], name: str) -> None:
    assert stack(more=scaling_resources(name)) == "CREATE_COMPLETE"
    scale_to(furnished, name, 3)
    assert stack(more=scaling_resources(name), environment={"VERSION": "2"}) == "UPDATE_COMPLETE"
    assert furnished.invoke(name)["version"] == "2"
    assert counts(furnished, name) == (3, 3)


def test_update_without_retaining_resets_the_count(furnished: Furnished, stack: Callable[..., str], name: str) -> None:
    """What RetainAllVariantProperties is for."""
    resets = {"RetainAllVariantProperties": False}
    assert stack(endpoint=resets) == "CREATE_COMPLETE"
    scale_to(furnished, name, 3)
    assert stack(endpoint=resets, environment={"VERSION": "2"}) == "UPDATE_COMPLETE"
    assert counts(furnished, name) == (1, 1)


def pool(*instance_types: str) -> dict[str, Any]:
    """A variant with an instance pool, first choice first."""
    pools = [{"InstanceType": each, "Priority": number} for number, each in enumerate(instance_types, start=1)]
    routing = {"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"}
    return {"InstanceType": {"Ref": "AWS::NoValue"}, "InstancePools": pools, "RoutingConfig": routing}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"InstanceType": "ml.c6i.large"}, {"InstanceType": "ml.c6i.xlarge"}),
        (pool("ml.c6i.large", "ml.c7i.large"), pool("ml.c6i.large", "ml.c6i.xlarge")),
    ],
    ids=["a type", "a pool"],
)
def test_another_instance_type_or_pool_is_refused_while_the_variant_is_scaled(
    furnished: Furnished, stack: Callable[..., str], name: str, before: dict[str, Any], after: dict[str, Any]
) -> None:
    """So it is on AWS, whatever the order of a template: two deployments are needed."""
    assert stack(more=scaling_resources(name), variant=before) == "CREATE_COMPLETE"
    assert stack(more=scaling_resources(name), variant=after) == "UPDATE_ROLLBACK_COMPLETE"
    assert "must be deregistered as scalable targets" in reasons(furnished.cloudformation, name)
    assert stack(variant=before) == "UPDATE_COMPLETE"
    assert stack(more=scaling_resources(name), variant=after) == "UPDATE_COMPLETE"


def test_burstable_instances_are_not_scaled(furnished: Furnished, stack: Callable[..., str], name: str) -> None:
    burstable = {"InstanceType": "ml.t2.medium"}
    assert stack(more=scaling_resources(name), variant=burstable) == "ROLLBACK_COMPLETE"
    assert "not supported for burstable instance types" in reasons(furnished.cloudformation, name)


def test_scaling_to_zero_is_refused(furnished: Furnished, stack: Callable[..., str], name: str) -> None:
    assert stack(more=scaling_resources(name, low=0)) == "ROLLBACK_COMPLETE"
    assert "MinCapacity is 0" in reasons(furnished.cloudformation, name)


def test_target_goes_with_its_endpoint(furnished: Furnished, stack: Callable[..., str], name: str) -> None:
    assert stack() == "CREATE_COMPLETE"
    client = furnished.cloud.client("application-autoscaling")
    where = {
        "ServiceNamespace": "sagemaker",
        "ResourceId": f"endpoint/{name}/variant/primary",
        "ScalableDimension": DIMENSION,
    }
    client.register_scalable_target(**where, MinCapacity=1, MaxCapacity=2)
    assert described(furnished, "targets", name)
    furnished.sagemaker.delete_endpoint(EndpointName=name)
    furnished.sagemaker.get_waiter("endpoint_deleted").wait(EndpointName=name, WaiterConfig={"Delay": 1})
    assert described(furnished, "targets", name) == []
    with pytest.raises(client.exceptions.ObjectNotFoundException):
        client.deregister_scalable_target(**where)


def test_other_services_are_not_emulated(furnished: Furnished) -> None:
    client = furnished.cloud.client("application-autoscaling")
    with pytest.raises(client.exceptions.ClientError, match="does not emulate scaling of ecs"):
        client.register_scalable_target(
            ServiceNamespace="ecs",
            ResourceId="service/a/b",
            ScalableDimension="ecs:service:DesiredCount",
            MinCapacity=1,
            MaxCapacity=2,
        )

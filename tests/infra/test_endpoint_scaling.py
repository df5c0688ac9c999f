"""EndpointScaling: what it registers, that it waits for the endpoint, and each refusal with its sentence."""

from __future__ import annotations

from typing import Any

import aws_cdk as cdk
import pytest
from aws_cdk.assertions import Match, Template

from steelyard_constructs.decision_endpoint import DecisionEndpoint
from steelyard_constructs.declared_endpoint import Scaling, Schedule
from steelyard_constructs.endpoint import EndpointProps
from steelyard_constructs.endpoint_scaling import EndpointScaling
from steelyard_constructs.hardware import Hardware
from steelyard_constructs.images import ImageReference
from steelyard_constructs.model_artifact import ModelArtifact
from steelyard_constructs.refusal import Refused

OFFICE_HOURS = Schedule("office-hours", "cron(0 7 ? * MON-FRI *)", 2, 4, "Europe/Amsterdam")


def scaling(stack: cdk.Stack, *schedules: Schedule, target: float = 2.5, **changes: Any) -> EndpointScaling:
    """A scaling that is accepted, with changes."""
    limits = Scaling(min_instances=1, max_instances=4, target_concurrency=target, schedules=schedules)
    props: dict[str, Any] = {"endpoint_name": "decisions", "variant_name": "primary", "scaling": limits, **changes}
    return EndpointScaling(stack, "Scaling", **props)


def test_the_instance_count_follows_the_requests_in_progress(stack):
    scaling(stack)
    template = Template.from_stack(stack)
    template.has_resource_properties(
        "AWS::ApplicationAutoScaling::ScalableTarget",
        {
            "ServiceNamespace": "sagemaker",
            "ScalableDimension": "sagemaker:variant:DesiredInstanceCount",
            "ResourceId": "endpoint/decisions/variant/primary",
            "MinCapacity": 1,
            "MaxCapacity": 4,
            "ScheduledActions": Match.absent(),
        },
    )
    ((target, _),) = template.find_resources("AWS::ApplicationAutoScaling::ScalableTarget").items()
    template.has_resource_properties(
        "AWS::ApplicationAutoScaling::ScalingPolicy",
        {
            "PolicyType": "TargetTrackingScaling",
            "ScalingTargetId": {"Ref": target},
            "TargetTrackingScalingPolicyConfiguration": {
                "PredefinedMetricSpecification": {
                    "PredefinedMetricType": "SageMakerVariantConcurrentRequestsPerModelHighResolution"
                },
                "TargetValue": 2.5,
                "ScaleInCooldown": 300,
                "ScaleOutCooldown": 60,
            },
        },
    )


def test_no_role_is_made_because_aws_brings_its_own(stack):
    scaling(stack)
    Template.from_stack(stack).resource_count_is("AWS::IAM::Role", 0)


def test_schedules(stack):
    scaling(stack, OFFICE_HOURS, Schedule("new-year", "cron(0 0 1 1 ? *)", 3, 3))
    Template.from_stack(stack).has_resource_properties(
        "AWS::ApplicationAutoScaling::ScalableTarget",
        {
            "ScheduledActions": [
                {
                    "ScheduledActionName": "office-hours",
                    "Schedule": "cron(0 7 ? * MON-FRI *)",
                    "Timezone": "Europe/Amsterdam",
                    "ScalableTargetAction": {"MinCapacity": 2, "MaxCapacity": 4},
                },
                {
                    "ScheduledActionName": "new-year",
                    "Schedule": "cron(0 0 1 1 ? *)",
                    "Timezone": "Etc/UTC",
                    "ScalableTargetAction": {"MinCapacity": 3, "MaxCapacity": 3},
                },
            ]
        },
    )


def test_it_waits_for_the_endpoint_and_has_no_finding(stack, nag_findings, lint_findings):
    decisions = DecisionEndpoint(
        stack,
        "Decisions",
        model=ModelArtifact("models", "qwen/0123/", 10**9),
        props=EndpointProps(
            endpoint_name="decisions",
            image=ImageReference("steelyard", "sha256:" + "a1" * 32),
            hardware=Hardware.CPU,
            instance_type="ml.c7i.xlarge",
        ),
    )
    scaling(
        stack,
        OFFICE_HOURS,
        endpoint_name=decisions.endpoint.attr_endpoint_name,
        variant_name=decisions.variant_name,
    )
    endpoint_id = stack.get_logical_id(decisions.endpoint)
    Template.from_stack(stack).has_resource_properties(
        "AWS::ApplicationAutoScaling::ScalableTarget",
        {
            "ResourceId": {
                "Fn::Join": [
                    "",
                    ["endpoint/", {"Fn::GetAtt": [endpoint_id, "EndpointName"]}, "/variant/primary"],
                ]
            }
        },
    )
    assert nag_findings(stack) == []
    assert lint_findings(stack) == []


REFUSED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a target that is no number": ({"target": float("nan")}, ["target_concurrency is nan"]),
    "a cooldown that is too long": ({"scale_in_cooldown_s": 3601}, ["scale_in_cooldown_s is 3601", "0 to 3600 s"]),
    "a cooldown below nothing": ({"scale_out_cooldown_s": -1}, ["scale_out_cooldown_s is -1"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_with_the_value_and_what_to_do(case, stack):
    changes, sentence = REFUSED[case]
    with pytest.raises(Refused) as refusal:
        scaling(stack, **changes)
    for part in sentence:
        assert part in str(refusal.value)

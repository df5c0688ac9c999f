"""EndpointAlarms and EndpointDashboard: one alarm per failure class, which of them undo an update, who is told."""

from __future__ import annotations

import json
from typing import Any

import aws_cdk as cdk
import pytest
from aws_cdk import aws_sns as sns
from aws_cdk.assertions import Template

from steelyard_constructs.decision_endpoint import DecisionEndpoint
from steelyard_constructs.endpoint import EndpointProps
from steelyard_constructs.endpoint_alarms import EndpointAlarms
from steelyard_constructs.endpoint_dashboard import EndpointDashboard, Shown
from steelyard_constructs.hardware import Hardware
from steelyard_constructs.images import ImageReference
from steelyard_constructs.model_artifact import ModelArtifact
from steelyard_constructs.refusal import Refused
from steelyard_constructs.rollback_alarms import RollbackAlarms
from steelyard_constructs.thresholds import Thresholds

SERVICE, INSTANCES, ABOVE = "AWS/SageMaker", "/aws/sagemaker/Endpoints", "GreaterThanThreshold"
AT_LEAST = "GreaterThanOrEqualToThreshold"
DIMENSIONS = [{"Name": "EndpointName", "Value": "decisions"}, {"Name": "VariantName", "Value": "primary"}]


def alarms(stack: cdk.Stack, **changes: Any) -> EndpointAlarms:
    return EndpointAlarms(stack, "Alarms", endpoint_name="decisions", variant_name="primary", **changes)


def by_id(stack: cdk.Stack) -> dict[str, dict[str, Any]]:
    """Properties of the alarms by their construct's name."""
    found = Template.from_stack(stack).find_resources("AWS::CloudWatch::Alarm")
    return {name[len("Alarms") : -8]: resource["Properties"] for name, resource in found.items()}


def metrics(alarm: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Metrics of a metric-math alarm by id: name and statistic."""
    return {
        each["Id"]: (each["MetricStat"]["Metric"]["MetricName"], each["MetricStat"]["Stat"])
        for each in alarm["Metrics"]
        if "MetricStat" in each
    }


def expression(alarm: dict[str, Any]) -> str:
    (found,) = [each["Expression"] for each in alarm["Metrics"] if "Expression" in each]
    return found


def test_every_failure_class_has_an_alarm_of_its_own(stack):
    alarms(stack)
    assert set(by_id(stack)) == {
        "Failures",
        "ServerErrors",
        "Unanswered",
        "BrokenStreams",
        "ClientErrors",
        "Latency",
        "Health",
        "Memory",
    }


@pytest.mark.parametrize(
    ("name", "namespace", "metric", "statistic", "comparison", "threshold", "missing", "minutes"),
    [
        ("ServerErrors", SERVICE, "Invocation5XXErrors", "Sum", ABOVE, 10, "notBreaching", (2, 3)),
        ("BrokenStreams", SERVICE, "MidStreamErrors", "Sum", AT_LEAST, 1, "notBreaching", (2, 3)),
        # CloudWatch has microseconds.
        ("Latency", SERVICE, "ModelLatency", "p95", ABOVE, 30e6, "notBreaching", (2, 3)),
        # No report at all is the failure, so what is missing breaches.
        ("Health", INSTANCES, "CPUUtilization", "SampleCount", "LessThanThreshold", 1, "breaching", (5, 5)),
        ("Memory", INSTANCES, "MemoryUtilization", "Maximum", ABOVE, 95, "notBreaching", (2, 3)),
    ],
)
def test_alarms_on_one_metric(stack, name, namespace, metric, statistic, comparison, threshold, missing, minutes):
    alarms(stack)
    made = by_id(stack)[name]
    assert (made["Namespace"], made["MetricName"]) == (namespace, metric)
    assert made.get("Statistic", made.get("ExtendedStatistic")) == statistic
    assert made["Dimensions"] == DIMENSIONS
    assert (made["ComparisonOperator"], made["Threshold"]) == (comparison, threshold)
    assert made["TreatMissingData"] == missing
    assert (made["DatapointsToAlarm"], made["EvaluationPeriods"], made["Period"]) == (*minutes, 60)


def test_failures_are_a_share_that_leaves_out_what_callers_did_wrong(stack):
    alarms(stack)
    made = by_id(stack)["Failures"]
    assert metrics(made) == {
        "unsuccessful": ("InvocationModelErrors", "Sum"),
        "client": ("Invocation4XXErrors", "Sum"),
        "requests": ("Invocations", "Sum"),
    }
    assert expression(made) == "IF(requests > 0, 100 * (FILL(unsuccessful, 0) - FILL(client, 0)) / requests, 0)"
    assert (made["ComparisonOperator"], made["Threshold"]) == ("GreaterThanThreshold", 5)


def test_client_errors_are_a_share_of_their_own(stack):
    alarms(stack)
    made = by_id(stack)["ClientErrors"]
    assert metrics(made) == {"client": ("Invocation4XXErrors", "Sum"), "requests": ("Invocations", "Sum")}
    assert expression(made) == "IF(requests > 0, 100 * FILL(client, 0) / requests, 0)"


def test_unanswered_is_what_failed_without_a_status_of_the_container(stack):
    alarms(stack)
    made = by_id(stack)["Unanswered"]
    assert metrics(made) == {
        "unsuccessful": ("InvocationModelErrors", "Sum"),
        "client": ("Invocation4XXErrors", "Sum"),
        "server": ("Invocation5XXErrors", "Sum"),
    }
    assert expression(made) == "FILL(unsuccessful, 0) - FILL(client, 0) - FILL(server, 0)"
    assert (made["ComparisonOperator"], made["Threshold"]) == ("GreaterThanOrEqualToThreshold", 1)


def test_thresholds_can_be_set(stack):
    alarms(stack, thresholds=Thresholds(failure_percent=1, latency_alarm_ms=250, server_errors=3))
    made = by_id(stack)
    assert made["Failures"]["Threshold"] == 1
    assert made["Latency"]["Threshold"] == 250_000
    assert made["ServerErrors"]["Threshold"] == 3
    assert "more than 250 ms" in made["Latency"]["AlarmDescription"]


def test_every_alarm_says_of_which_endpoint_it_is(stack):
    alarms(stack)
    assert all(made["AlarmDescription"].startswith("Endpoint decisions: ") for made in by_id(stack).values())


def test_the_topic_hears_when_an_alarm_begins_and_when_it_is_over(stack):
    topic = sns.Topic.from_topic_arn(stack, "Topic", "arn:aws:sns:eu-west-1:111122223333:alarms")
    alarms(stack, topic=topic)
    for made in by_id(stack).values():
        assert made["AlarmActions"] == made["OKActions"] == ["arn:aws:sns:eu-west-1:111122223333:alarms"]


def test_without_a_topic_nobody_is_told(stack):
    alarms(stack)
    assert not any("AlarmActions" in made for made in by_id(stack).values())


def test_an_update_is_undone_by_what_the_new_instances_do_and_by_nothing_else(stack):
    """An alarm of the whole endpoint would be set off by the old ones, and stop the update that mends them."""
    DecisionEndpoint(
        stack,
        "Decisions",
        model=ModelArtifact("models", "qwen/0123/", 10**9),
        props=EndpointProps(
            endpoint_name="decisions",
            image=ImageReference("steelyard", "sha256:" + "a1" * 32),
            hardware=Hardware.CPU,
            instance_type="ml.c7i.xlarge",
            rollback_alarms=lambda metrics: RollbackAlarms(stack, "Rollback", metrics=metrics).all,
        ),
    )
    template = Template.from_stack(stack)
    (made,) = template.find_resources("AWS::SageMaker::Endpoint").values()
    watched = made["Properties"]["DeploymentConfig"]["AutoRollbackConfiguration"]["Alarms"]
    assert [each["AlarmName"]["Ref"][len("Rollback") : -8] for each in watched] == [
        "Failures",
        "Unanswered",
        "BrokenStreams",
        "Latency",
    ]
    (config,) = template.find_resources("AWS::SageMaker::EndpointConfig")
    new = {"Name": "EndpointConfigName", "Value": {"Fn::GetAtt": [config, "EndpointConfigName"]}}
    for each in watched:
        alarm = template.find_resources("AWS::CloudWatch::Alarm")[each["AlarmName"]["Ref"]]["Properties"]
        queries = [one["MetricStat"]["Metric"] for one in alarm.get("Metrics", [alarm]) if "MetricStat" in one]
        for metric in queries or [alarm]:
            assert new in metric["Dimensions"]
            assert metric["MetricName"] != "Invocation5XXErrors" or "Metrics" in alarm  # never their mere number


def test_no_finding_of_cdk_nag_or_cfn_lint(stack, nag_findings, lint_findings):
    watch = alarms(stack)
    EndpointDashboard(
        stack,
        "Dashboard",
        endpoints=[Shown("decisions", "primary", alarms=watch.all), Shown("chat", "primary", gpu=True)],
    )
    assert nag_findings(stack) == []
    assert lint_findings(stack) == []


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"failure_percent": 0}, "the threshold failure_percent is 0; set more than 0 and at most 100 percent"),
        ({"client_error_percent": 101}, "the threshold client_error_percent is 101; set more than 0 and at most 100"),
        ({"memory_percent": -1}, "the threshold memory_percent is -1; set more than 0"),
        ({"server_errors": 0}, "the threshold server_errors is 0; set more than 0"),
        ({"broken_streams": 0}, "the threshold broken_streams is 0; set more than 0"),
        ({"unanswered": 0}, "the threshold unanswered is 0; set more than 0"),
        ({"latency_alarm_ms": float("nan")}, "the threshold latency_alarm_ms is nan; give a finite number"),
    ],
)
def test_a_threshold_that_means_nothing_is_refused(stack, changes, sentence):
    with pytest.raises(Refused, match=sentence):
        alarms(stack, thresholds=Thresholds(**changes))


def body(stack: cdk.Stack) -> list[dict[str, Any]]:
    """Widgets of the stack's dashboard."""
    (made,) = Template.from_stack(stack).find_resources("AWS::CloudWatch::Dashboard").values()
    text = made["Properties"]["DashboardBody"]
    joined = text if isinstance(text, str) else "".join(p if isinstance(p, str) else "x" for p in text["Fn::Join"][1])
    widgets: list[dict[str, Any]] = json.loads(joined)["widgets"]
    return widgets


def test_the_dashboard_shows_each_endpoint_under_its_name(stack):
    EndpointDashboard(
        stack, "Dashboard", endpoints=[Shown("decisions", "primary"), Shown("chat", "primary")], dashboard_name="all"
    )
    widgets = body(stack)
    assert [each["properties"]["markdown"] for each in widgets if each["type"] == "text"] == ["## decisions", "## chat"]
    shown = json.dumps(widgets)
    for metric in ("Invocations", "Invocation4XXErrors", "Invocation5XXErrors", "ModelLatency", "MemoryUtilization"):
        assert metric in shown


def test_gpus_are_shown_where_there_are_some(stack):
    EndpointDashboard(stack, "Dashboard", endpoints=[Shown("decisions", "primary")])
    assert "GPUUtilization" not in json.dumps(body(stack))
    other = cdk.Stack(cdk.App(), "Other")
    EndpointDashboard(other, "Dashboard", endpoints=[Shown("decisions", "primary", gpu=True)])
    assert "GPUUtilization" in json.dumps(body(other))


def test_the_state_of_the_alarms_heads_an_endpoint(stack):
    EndpointDashboard(stack, "Dashboard", endpoints=[Shown("decisions", "primary", alarms=alarms(stack).all)])
    (widget,) = [each for each in body(stack) if each["type"] == "alarm"]
    assert len(widget["properties"]["alarms"]) == 8


def test_a_dashboard_of_nothing_is_refused(stack):
    with pytest.raises(Refused, match="the dashboard has no endpoints to show; give it one or more"):
        EndpointDashboard(stack, "Dashboard", endpoints=[])

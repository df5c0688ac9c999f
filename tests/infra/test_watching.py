"""Dashboards and alarms beside a real server: what they show is emitted, and what happens is told."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aws_cdk as cdk
import pytest
from aws_cdk.assertions import Template
from ministack.core.responses import request_scope
from ministack.services import cloudwatch

from steelyard_constructs.endpoint_alarms import RUNBOOK, EndpointAlarms
from steelyard_constructs.endpoint_dashboard import EndpointDashboard, Shown
from steelyard_constructs.endpoint_metrics import EndpointMetrics
from steelyard_constructs.rollback_alarms import RollbackAlarms
from steelyard_constructs.server_alarms import ServerAlarms
from steelyard_localcloud.cloudwatch import alarms, embedded
from steelyard_localcloud.sagemaker import metrics as sagemaker
from steelyard_runtime.metrics_table import NAMESPACE, SERIES
from watched_server import ENDPOINT, FAULTS, Lines, make, watched

ROOT = Path(__file__).resolve().parents[2]
ALERTING = [name for name, series in SERIES.items() if series.alert]
DOCUMENTED = {"DiskUtilization", "GPUUtilization", "GPUMemoryUtilization"}
"""Of SageMaker's instances; the local cloud has none (developer guide, "Amazon SageMaker AI metrics in CloudWatch")."""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Lines]:
    """What the log has of each fault, made on a real server."""
    with watched(tmp_path_factory.mktemp("watched")) as server:
        return {fault: make(fault, server) for fault in FAULTS}


@pytest.fixture(scope="module")
def template() -> dict[str, Any]:
    """Every alarm and the dashboard of one endpoint."""
    stack = cdk.Stack(cdk.App(), "Stack")
    EndpointAlarms(stack, "Alarms", endpoint_name=ENDPOINT, variant_name="primary")
    ServerAlarms(stack, "ServerAlarms", endpoint_name=ENDPOINT)
    RollbackAlarms(stack, "Rollback", metrics=EndpointMetrics(ENDPOINT, "primary", "new"))
    EndpointDashboard(stack, "Dashboard", endpoints=[Shown(ENDPOINT, "primary", gpu=True, ours=True)])
    found: dict[str, Any] = Template.from_stack(stack).to_json()["Resources"]
    return found


def alarms_of(template: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Properties of alarms, by the construct's path."""
    return {
        name[:-8]: resource["Properties"]
        for name, resource in template.items()
        if resource["Type"] == "AWS::CloudWatch::Alarm"
    }


def shown(template: dict[str, Any]) -> set[tuple[str, str]]:
    """Namespace and name of every metric on the dashboard or in an alarm."""
    (dashboard,) = [each for each in template.values() if each["Type"] == "AWS::CloudWatch::Dashboard"]
    text = dashboard["Properties"]["DashboardBody"]
    body = (
        text
        if isinstance(text, str)
        else "".join(part if isinstance(part, str) else "x" for part in text["Fn::Join"][1])
    )
    found = set()
    for widget in json.loads(body)["widgets"]:
        for metric in widget["properties"].get("metrics", []):
            if isinstance(metric[0], str):
                found.add((metric[0], metric[1]))
    for alarm in alarms_of(template).values():
        stats = [each["MetricStat"]["Metric"] for each in alarm.get("Metrics", []) if "MetricStat" in each]
        found |= {(each["Namespace"], each["MetricName"]) for each in stats or [alarm]}
    return found


def emitted(lines: Lines) -> set[str]:
    return {point.name for line in lines for point in embedded.points(json.dumps(line)) if point.value > 0}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_counted_under_its_name(fault: str, told: dict[str, Lines]) -> None:
    assert fault in emitted(told[fault])


def test_every_metric_of_the_table_is_emitted(told: dict[str, Lines]) -> None:
    names = {metric["Name"] for lines in told.values() for line in lines for metric in _metrics(line)}
    assert names == SERIES.keys()


def _metrics(line: dict[str, Any]) -> list[dict[str, str]]:
    (directive,) = line["_aws"]["CloudWatchMetrics"]
    metrics: list[dict[str, str]] = directive["Metrics"]
    return metrics


def test_nothing_is_shown_that_is_not_emitted(template: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    of_aws = set(DOCUMENTED)
    monkeypatch.setattr(cloudwatch, "record_metric", lambda _, name, *__: of_aws.add(name))
    monkeypatch.setattr(cloudwatch, "_evaluate_all_alarms", lambda: None)
    sagemaker.record("e", "v", "c", sagemaker.Outcome(200, 0.1, 1))
    sagemaker.record_usage("e", "v", cpu_percent=1, memory_percent=1)
    for namespace, name in shown(template):
        assert name in (SERIES if namespace == NAMESPACE else of_aws), (namespace, name)
    assert {name for namespace, name in shown(template) if namespace == NAMESPACE} == SERIES.keys()


@pytest.fixture
def account() -> Iterator[None]:
    """An account of the local cloud that nobody else has."""
    with request_scope("999900001111", "eu-west-1"):
        yield
        for name in list(cloudwatch._alarms):
            cloudwatch._alarms.pop(name)
        cloudwatch._metrics.clear()


def state_after(alarm: dict[str, Any], lines: Lines) -> str:
    """The state of an alarm after three minutes that were all as in ``lines``."""
    alarms.put({**alarm, "AlarmName": "one"})
    for line in lines:
        for back in range(3):
            stamp = line["_aws"]["Timestamp"] - 60_000 * back
            embedded.publish(json.dumps({**line, "_aws": {**line["_aws"], "Timestamp": stamp}}))
    alarms.evaluate(cloudwatch._alarms["one"])
    state: str = cloudwatch._alarms["one"]["StateValue"]
    return state


@pytest.mark.usefixtures("account")
@pytest.mark.parametrize("name", ALERTING)
def test_an_alarm_goes_off_when_its_fault_happens(name: str, told: dict[str, Lines], template: dict[str, Any]) -> None:
    assert state_after(alarms_of(template)[f"ServerAlarms{name}"], told[name]) == "ALARM"


@pytest.mark.usefixtures("account")
@pytest.mark.parametrize("name", ALERTING)
def test_an_alarm_is_silent_while_all_is_well(name: str, told: dict[str, Lines], template: dict[str, Any]) -> None:
    assert state_after(alarms_of(template)[f"ServerAlarms{name}"], told["Automated"]) == "OK"


def test_every_alarm_leads_to_its_section_of_the_runbook(template: dict[str, Any]) -> None:
    headings = re.findall(r"^## (\w+)$", (ROOT / RUNBOOK).read_text(), re.MULTILINE)
    linked = set()
    for path, alarm in alarms_of(template).items():
        page, _, anchor = alarm["AlarmDescription"].rpartition("What to do: ")[2].partition("#")
        assert page == RUNBOOK
        assert path.lower().endswith(anchor)
        linked.add(anchor)
    assert sorted(linked) == sorted(heading.lower() for heading in headings)

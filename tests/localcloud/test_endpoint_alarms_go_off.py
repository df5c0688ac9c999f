"""The alarms on SageMaker's own metrics go off when their faults happen to a real endpoint of the local cloud.

They want their fault in several minutes; what the endpoint reported of one is repeated for them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import aws_cdk as cdk
import pytest
from aws_cdk.assertions import Template
from botocore.exceptions import ClientError, EventStreamError
from ministack.core.responses import request_scope
from ministack.services import cloudwatch

from conftest import Furnished, wait_until
from steelyard_constructs.endpoint_alarms import EndpointAlarms
from steelyard_constructs.endpoint_metrics import EndpointMetrics
from steelyard_constructs.rollback_alarms import RollbackAlarms
from steelyard_constructs.thresholds import Thresholds
from steelyard_localcloud.cloudwatch import alarms

SLOW_MS = 400.0
LIMITS = Thresholds(latency_alarm_ms=SLOW_MS, server_errors=2, memory_percent=1e-6)
MINUTES = 5
ENDPOINT, CONFIG = "the-endpoint", "the-configuration"
"""In the alarms; those of the real one are replaced by them."""

Reported = dict[tuple[str, str, bool], float]
"""A minute's value of each metric, by namespace and name, and whether it is of the configuration alone."""


def ask(furnished: Furnished, endpoint: str, **order: Any) -> None:
    with suppress(ClientError):
        furnished.invoke(endpoint, order)


def break_stream(furnished: Furnished, endpoint: str) -> None:
    body = json.dumps({"chunks": ["one"], "breaks": True})
    answer = furnished.runtime.invoke_endpoint_with_response_stream(EndpointName=endpoint, Body=body)
    with suppress(EventStreamError):
        list(answer["Body"])


FAULTS: dict[str, tuple[Callable[[Furnished, str], None], set[str]]] = {
    "well": (lambda furnished, endpoint: ask(furnished, endpoint), set()),
    "wrong requests": (lambda furnished, endpoint: ask(furnished, endpoint, status=400), {"ClientErrors"}),
    "server errors": (
        lambda furnished, endpoint: [ask(furnished, endpoint, status=500) for _ in range(3)] and None,
        {"ServerErrors", "Failures"},
    ),
    "slow": (lambda furnished, endpoint: ask(furnished, endpoint, sleep_s=0.6), {"Latency"}),
    "broken streams": (break_stream, {"BrokenStreams"}),
    "crash": (lambda furnished, endpoint: ask(furnished, endpoint, crash=True), {"Unanswered", "Failures"}),
}
"""Faults, with the alarms that they set off. The crash is the last: it ends the container."""


@cache
def declared() -> dict[str, dict[str, Any]]:
    """Properties of all alarms of an endpoint, by the name of their construct."""
    stack = cdk.Stack(cdk.App(), "Stack")
    EndpointAlarms(stack, "Alarms", endpoint_name=ENDPOINT, variant_name="primary", thresholds=LIMITS)
    RollbackAlarms(stack, "Rollback", metrics=EndpointMetrics(ENDPOINT, "primary", CONFIG), thresholds=LIMITS)
    found = Template.from_stack(stack).to_json()["Resources"]
    return {name[:-8]: each["Properties"] for name, each in found.items() if each["Type"] == "AWS::CloudWatch::Alarm"}


def metrics() -> set[tuple[str, str, bool]]:
    """Every metric that an alarm looks at."""
    found = set()
    for alarm in declared().values():
        stats = [each["MetricStat"]["Metric"] for each in alarm.get("Metrics", []) if "MetricStat" in each] or [alarm]
        for each in stats:
            of_config = "EndpointConfigName" in {one["Name"] for one in each["Dimensions"]}
            found.add((each["Namespace"], each["MetricName"], of_config))
    return found


def dimensions(endpoint: str, config: str, *, of_config: bool) -> dict[str, str]:
    own = {"EndpointName": endpoint, "VariantName": "primary"}
    return {**own, "EndpointConfigName": config} if of_config else own


def reported(furnished: Furnished, endpoint: str, config: str) -> Reported:
    """What an endpoint has reported in the last minutes: sums of counts, and the largest of the rest."""
    client, now = furnished.cloud.client("cloudwatch"), datetime.now(UTC)
    found = {}
    for namespace, name, of_config in metrics():
        named = dimensions(endpoint, config, of_config=of_config)
        points = client.get_metric_statistics(
            Namespace=namespace,
            MetricName=name,
            Dimensions=[{"Name": key, "Value": value} for key, value in named.items()],
            StartTime=now - timedelta(minutes=30),
            EndTime=now + timedelta(minutes=1),
            Period=60,
            Statistics=["Sum", "Maximum"],
        )["Datapoints"]
        if points:
            largest = name.endswith(("Latency", "Utilization"))
            values = [each["Maximum" if largest else "Sum"] for each in points]
            found[namespace, name, of_config] = max(values) if largest else sum(values)
    return found


@pytest.fixture(scope="module")
def told(furnished: Furnished, echo: str) -> dict[str, Reported]:
    """What a minute with each fault has of each metric."""
    config = str(furnished.sagemaker.describe_endpoint(EndpointName=echo)["EndpointConfigName"])
    before: Reported = {}
    minutes = {}
    for fault, (make, _) in FAULTS.items():
        asked = before.get(("AWS/SageMaker", "Invocations", False), 0)
        make(furnished, echo)
        wait_until(lambda: reported(furnished, echo, config).get(("AWS/SageMaker", "Invocations", False), 0) > asked)  # noqa: B023
        after = reported(furnished, echo, config)
        # Counts are of this fault alone. Largest values stay, and only the slow request and those after it are slow.
        minutes[fault] = {
            key: value if key[1].endswith(("Latency", "Utilization")) else value - before.get(key, 0)
            for key, value in after.items()
        }
        before = after
    return minutes


def states(minute: Reported) -> dict[str, str]:
    """The state of every alarm after minutes that were all the same, in an account of its own."""
    with request_scope("999900002222", "eu-west-1"):
        try:
            for back in range(MINUTES):
                for (namespace, name, of_config), value in minute.items():
                    named = dimensions(ENDPOINT, CONFIG, of_config=of_config)
                    cloudwatch._metric_bucket((namespace, name, cloudwatch._dims_key(named))).append(
                        {"Timestamp": time.time() - 60 * back, "Value": value, "Unit": "None", "Dimensions": named}
                    )
            for name, alarm in declared().items():
                alarms.put({**alarm, "AlarmName": name})
                alarms.evaluate(cloudwatch._alarms[name])
            return {name: str(cloudwatch._alarms[name]["StateValue"]) for name in declared()}
        finally:
            for name in list(cloudwatch._alarms):
                cloudwatch._alarms.pop(name)
            cloudwatch._metrics.clear()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_sets_off_its_alarms_and_no_others(fault: str, told: dict[str, Reported]) -> None:
    found = states(told[fault])
    off = {name for name, state in found.items() if state == "ALARM"} - {"AlarmsMemory"}
    wanted = FAULTS[fault][1]
    rollback = wanted - {"ClientErrors", "ServerErrors"}  # those may be the callers', or grow with the load
    if list(FAULTS).index(fault) > list(FAULTS).index("slow"):
        off -= {"AlarmsLatency", "RollbackLatency"}
    assert off == {f"Alarms{each}" for each in wanted} | {f"Rollback{each}" for each in rollback}


def test_memory_in_use_and_an_endpoint_that_is_gone_set_off_theirs(told: dict[str, Reported]) -> None:
    assert states(told["well"])["AlarmsMemory"] == "ALARM"  # its limit here is next to nothing
    assert states(told["well"])["AlarmsHealth"] == "OK"
    gone = states({})
    assert gone["AlarmsHealth"] == "ALARM"
    assert gone["AlarmsMemory"] == "OK"


def test_each_alarm_has_its_fault() -> None:
    wanted = set().union(*(each for _, each in FAULTS.values()))
    assert {name.removeprefix("Alarms") for name in declared() if name.startswith("Alarms")} == {
        *wanted,
        *("Memory", "Health"),
    }

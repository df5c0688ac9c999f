"""Alarms over metric math, the metrics that invocations leave, and the rollback that an alarm causes."""

from __future__ import annotations

import ast
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from endpoint_template import reasons, settled
from test_cloud_endpoints import traffic

from conftest import Furnished, wait_until
from steelyard_localcloud.cloudwatch import expressions
from steelyard_localcloud.errors import ServiceError


def error_rate(name: str) -> list[dict[str, Any]]:
    """Share of failed requests, in percent."""
    dimensions = [{"Name": "EndpointName", "Value": name}, {"Name": "VariantName", "Value": "primary"}]

    def metric(identifier: str, metric_name: str) -> dict[str, Any]:
        where = {"Namespace": "AWS/SageMaker", "MetricName": metric_name, "Dimensions": dimensions}
        return {
            "Id": identifier,
            "MetricStat": {"Metric": where, "Period": 60, "Stat": "Sum"},
            "ReturnData": False,
        }

    rate = {"Id": "rate", "Expression": "IF(all > 0, 100 * FILL(failed, 0) / all, 0)", "Label": "Failed"}
    return [rate, metric("failed", "Invocation5XXErrors"), metric("all", "Invocations")]


def alarm(name: str, **properties: Any) -> dict[str, Any]:
    return {
        "Alarm": {
            "Type": "AWS::CloudWatch::Alarm",
            "Properties": {
                "AlarmName": f"{name}-errors",
                "Metrics": error_rate(name),
                "Threshold": 20,
                "ComparisonOperator": "GreaterThanThreshold",
                "EvaluationPeriods": 1,
                "TreatMissingData": "notBreaching",
                **properties,
            },
        }
    }


def state(furnished: Furnished, name: str) -> str:
    (found,) = furnished.cloud.client("cloudwatch").describe_alarms(AlarmNames=[f"{name}-errors"])["MetricAlarms"]
    return str(found["StateValue"])


def test_metric_math_alarm_goes_off_and_shows_its_metrics(
    furnished: Furnished, stack: Callable[..., str], name: str
) -> None:
    assert stack(more=alarm(name)) == "CREATE_COMPLETE"
    (found,) = furnished.cloud.client("cloudwatch").describe_alarms(AlarmNames=[f"{name}-errors"])["MetricAlarms"]
    assert [query["Id"] for query in found["Metrics"]] == ["rate", "failed", "all"]
    furnished.invoke(name)
    wait_until(lambda: state(furnished, name) == "OK")
    with pytest.raises(furnished.runtime.exceptions.ModelError):
        furnished.invoke(name, {"status": 500})
    assert state(furnished, name) == "ALARM"
    # Another endpoint's errors are another alarm's.
    assert stack(more=alarm(name, Threshold=90)) == "UPDATE_COMPLETE"
    wait_until(lambda: state(furnished, name) == "OK")
    assert stack() == "UPDATE_COMPLETE"
    assert furnished.cloud.client("cloudwatch").describe_alarms(AlarmNames=[f"{name}-errors"])["MetricAlarms"] == []


def test_alarm_with_one_metric_looks_at_its_dimensions(
    furnished: Furnished, stack: Callable[..., str], name: str, echo: str
) -> None:
    of_another = {
        "Metrics": {"Ref": "AWS::NoValue"},
        "Namespace": "AWS/SageMaker",
        "MetricName": "Invocation4XXErrors",
        "Statistic": "Sum",
        "Period": 60,
        "Dimensions": [{"Name": "EndpointName", "Value": name}, {"Name": "VariantName", "Value": "primary"}],
        "Threshold": 0,
    }
    assert stack(more=alarm(name, **of_another)) == "CREATE_COMPLETE"
    with pytest.raises(furnished.runtime.exceptions.ModelError):
        furnished.invoke(echo, {"status": 400})
    furnished.invoke(name)
    wait_until(lambda: state(furnished, name) == "OK")
    with pytest.raises(furnished.runtime.exceptions.ModelError):
        furnished.invoke(name, {"status": 400})
    assert state(furnished, name) == "ALARM"


def test_alarm_put_with_boto3_takes_metric_math(furnished: Furnished, name: str) -> None:
    cloudwatch = furnished.cloud.client("cloudwatch")
    given = {"ComparisonOperator": "GreaterThanThreshold", "EvaluationPeriods": 1, "Threshold": 1.0}
    cloudwatch.put_metric_alarm(AlarmName=f"{name}-errors", Metrics=error_rate(name), **given)
    assert state(furnished, name) in ("INSUFFICIENT_DATA", "OK")
    anomaly = [{"Id": "a", "Expression": "ANOMALY_DETECTION_BAND(failed, 2)"}, *error_rate(name)[1:]]
    with pytest.raises(cloudwatch.exceptions.ClientError, match="does not emulate ANOMALY_DETECTION_BAND"):
        cloudwatch.put_metric_alarm(AlarmName=f"{name}-odd", Metrics=anomaly, **given)
    cloudwatch.delete_alarms(AlarmNames=[f"{name}-errors"])


def test_missing_data_breaches_only_when_told(furnished: Furnished, name: str) -> None:
    cloudwatch = furnished.cloud.client("cloudwatch")
    given = {"ComparisonOperator": "LessThanThreshold", "EvaluationPeriods": 1, "Threshold": 1.0, "Period": 60}
    where = {"Namespace": "Nowhere", "MetricName": name, "Statistic": "Sum"}
    expected = {"breaching": "ALARM", "notBreaching": "OK", "missing": "INSUFFICIENT_DATA"}
    for treat in expected:
        cloudwatch.put_metric_alarm(AlarmName=f"{name}-{treat}", TreatMissingData=treat, **given, **where)

    def states() -> dict[str, str]:
        found = cloudwatch.describe_alarms(AlarmNamePrefix=name)["MetricAlarms"]
        return {each["AlarmName"].rpartition("-")[2]: each["StateValue"] for each in found}

    wait_until(lambda: states() == expected)
    cloudwatch.delete_alarms(AlarmNames=[f"{name}-{treat}" for treat in expected])


def test_alarm_during_a_canary_rolls_the_update_back(
    furnished: Furnished, stack: Callable[..., str], name: str
) -> None:
    """The new version answers; only the alarm knows that it is worse."""
    policy = {
        "BlueGreenUpdatePolicy": {
            "TrafficRoutingConfiguration": {
                "Type": "CANARY",
                "WaitIntervalInSeconds": 300,
                "CanarySize": {"Type": "CAPACITY_PERCENT", "Value": 10},
            },
            "TerminationWaitInSeconds": 60,
        },
        "AutoRollbackConfiguration": {"Alarms": [{"AlarmName": f"{name}-errors"}]},
    }
    more = alarm(name)
    given = {"endpoint": {"DeploymentConfig": policy}, "more": more}
    assert stack(environment={"VERSION": "1"}, **given) == "CREATE_COMPLETE"
    assert stack(environment={"VERSION": "2"}, **given) == "UPDATE_COMPLETE"
    cloudwatch = furnished.cloud.client("cloudwatch")
    started = time.time()
    furnished.cloudformation.update_stack(
        StackName=name, TemplateBody=_changed(furnished, name, "3"), Capabilities=["CAPABILITY_IAM"]
    )
    seen = set()
    while "3" not in seen:
        seen.add(furnished.invoke(name)["version"])
        assert time.time() < started + 30
    dimensions = [{"Name": "EndpointName", "Value": name}, {"Name": "VariantName", "Value": "primary"}]
    bad = {"MetricName": "Invocation5XXErrors", "Dimensions": dimensions, "Value": 1000.0}
    cloudwatch.put_metric_data(Namespace="AWS/SageMaker", MetricData=[bad])
    assert settled(furnished.cloudformation, name) == "UPDATE_ROLLBACK_COMPLETE"
    assert f"alarms went off during the deployment: {name}-errors" in reasons(furnished.cloudformation, name)
    assert {furnished.invoke(name)["version"] for _ in range(20)} == {"2"}


def test_a_role_that_may_not_read_the_alarms_updates_nothing(
    furnished: Furnished, stack: Callable[..., str], name: str
) -> None:
    """The developer guide demands it; the first deployment has nothing to roll back to, and does not ask."""
    policy = {"AutoRollbackConfiguration": {"Alarms": [{"AlarmName": f"{name}-errors"}]}}
    given = {"endpoint": {"DeploymentConfig": policy}, "more": alarm(name), "allowed_alarms": "another-*"}
    assert stack(environment={"VERSION": "1"}, **given) == "CREATE_COMPLETE"
    assert stack(environment={"VERSION": "2"}, **given) == "UPDATE_ROLLBACK_COMPLETE"
    told = reasons(furnished.cloudformation, name)
    assert "does not have cloudwatch:DescribeAlarms permission for the auto-rollback alarm(s)" in told
    assert furnished.invoke(name)["version"] == "1"
    assert stack(environment={"VERSION": "2"}, **{**given, "allowed_alarms": f"{name}-*"}) == "UPDATE_COMPLETE"


def test_an_invocation_is_counted_for_its_configuration_too(furnished: Furnished, echo: str) -> None:
    """What the new instances do is told apart from what the old ones do."""
    furnished.invoke(echo)
    config = furnished.sagemaker.describe_endpoint(EndpointName=echo)["EndpointConfigName"]
    found = furnished.cloud.client("cloudwatch").list_metrics(Namespace="AWS/SageMaker", MetricName="Invocations")
    sets = [{each["Name"]: each["Value"] for each in metric["Dimensions"]} for metric in found["Metrics"]]
    both = {"EndpointName": echo, "VariantName": "primary"}
    assert both in sets
    assert {**both, "EndpointConfigName": config} in sets


def test_canary_gets_its_share_of_the_traffic(furnished: Furnished, stack: Callable[..., str], name: str) -> None:
    policy = {
        "BlueGreenUpdatePolicy": {
            "TrafficRoutingConfiguration": {
                "Type": "CANARY",
                "WaitIntervalInSeconds": 600,
                "CanarySize": {"Type": "CAPACITY_PERCENT", "Value": 50},
            }
        }
    }
    given = {"endpoint": {"DeploymentConfig": policy}}
    assert stack(environment={"VERSION": "1"}, **given) == "CREATE_COMPLETE"
    with traffic(furnished, name) as answers:
        assert stack(environment={"VERSION": "2"}, **given) == "UPDATE_COMPLETE"
    versions = [answer["version"] for answer in answers]
    first = versions.index("2")
    assert "1" in versions[first:]


def _changed(furnished: Furnished, name: str, version: str) -> str:
    body = furnished.cloudformation.get_template(StackName=name)["TemplateBody"]
    described = body if isinstance(body, dict) else json.loads(body)
    described["Resources"]["Model"]["Properties"]["PrimaryContainer"]["Environment"]["VERSION"] = version
    return json.dumps(described)


def test_process_reports_what_it_uses(furnished: Furnished, echo: str) -> None:
    cloudwatch = furnished.cloud.client("cloudwatch")
    dimensions = [{"Name": "EndpointName", "Value": echo}, {"Name": "VariantName", "Value": "primary"}]

    def memory() -> list[float]:
        found = cloudwatch.get_metric_statistics(
            Namespace="/aws/sagemaker/Endpoints",
            MetricName="MemoryUtilization",
            Dimensions=dimensions,
            StartTime=time.time() - 600,
            EndTime=time.time() + 60,
            Period=60,
            Statistics=["Maximum"],
        )
        return [point["Maximum"] for point in found["Datapoints"]]

    wait_until(lambda: bool(memory()))
    assert all(0 < value < 100 for value in memory())


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("a + b * 2 - 1", 20.0),
        ("-a / b", -0.1),
        ("a / zero", None),
        ("a / missing", None),
        ("FILL(missing, 7)", 7.0),
        ("FILL(a, 7)", 1.0),
        ("IF(a > b, 1, 2)", 2.0),
        ("IF(b >= 10 AND a == 1, b, a)", 10.0),
        ("IF(zero || a, 5, 6)", 5.0),
        ("IF(missing > 1, 5, 6)", None),
        ("MAX([a, b, missing])", 10.0),
        ("MIN(a, b)", 1.0),
        ("SUM([a, b])", 11.0),
        ("AVG([a, b])", 5.5),
        ("SUM([missing])", None),
        ("ABS(-b)", 10.0),
        ("b ^ 2", 100.0),
    ],
)
def test_expressions(expression: str, value: float | None) -> None:
    values = {"a": 1.0, "b": 10.0, "zero": 0.0, "missing": None}
    assert expressions.evaluate(expressions.parse(expression), values) == value


@pytest.mark.parametrize(
    "expression",
    ["RATE(a)", "a +", "a if b else c", "'text'", "a.b", "[x for x in a]", "FILL(a)", "1 < a < 2", "~a", "True", "a()"],
)
def test_expressions_that_are_refused(expression: str) -> None:
    with pytest.raises(ServiceError, match="metric math"):
        expressions.parse(expression)


def test_names_of_an_expression() -> None:
    assert expressions.names(expressions.parse("IF(a > 0, FILL(b, 0), c)")) == {"a", "b", "c"}


def test_expressions_are_parsed_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.11's parser mixes up the depths of two threads: "AST constructor recursion depth mismatch"."""
    parse, inside, most = ast.parse, [0], [0]

    def slow(*arguments: Any, **options: Any) -> Any:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.02)
        inside[0] -= 1
        return parse(*arguments, **options)

    monkeypatch.setattr(expressions.ast, "parse", slow)
    with ThreadPoolExecutor(4) as pool:
        assert len(list(pool.map(expressions.parse, ["a + b", "a - b", "a * b", "a / b"]))) == 4
    assert most == [1]

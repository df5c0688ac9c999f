"""Alarm evaluation, in place of ministack's own, which looks neither at dimensions nor at missing data.

An alarm looks at its last ``EvaluationPeriods`` periods, counted back from now, and goes off when ``DatapointsToAlarm``
of them breach its threshold.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from ministack.core.responses import get_account_id, get_region, request_scope
from ministack.services import cloudwatch

from steelyard_localcloud.cloudwatch import expressions
from steelyard_localcloud.errors import ServiceError, not_emulated
from steelyard_localcloud.wire import Parameters

_COMPARISONS = {
    "GreaterThanOrEqualToThreshold": lambda value, threshold: value >= threshold,
    "GreaterThanThreshold": lambda value, threshold: value > threshold,
    "LessThanThreshold": lambda value, threshold: value < threshold,
    "LessThanOrEqualToThreshold": lambda value, threshold: value <= threshold,
}
_DEFAULT_PERIOD_S = 60
_EVERY_S = 1.0

log = logging.getLogger("steelyard.localcloud")


def check(alarm: Parameters) -> None:
    """Refuse an alarm that the local cloud could not evaluate.

    Raises:
        ServiceError: With what is wrong.
    """
    if alarm.get("ComparisonOperator") not in _COMPARISONS:
        raise not_emulated(f"ComparisonOperator {alarm.get('ComparisonOperator')}")
    queries = alarm.get("Metrics") or []
    known = {query["Id"] for query in queries}
    for query in queries:
        if "Expression" in query:
            if missing := expressions.names(expressions.parse(query["Expression"])) - known:
                raise ServiceError(
                    f"Expression {query['Expression']!r} refers to unknown ids: {', '.join(sorted(missing))}."
                )
        elif "MetricStat" not in query:
            raise ServiceError(f"Metric {query['Id']} has neither Expression nor MetricStat.")
    if queries and len([query for query in queries if query.get("ReturnData", True)]) != 1:
        raise ServiceError("Exactly one element of Metrics must return data.")


def evaluate(alarm: Parameters) -> None:
    """Bring an alarm's state up to date, and dispatch its actions when the state changes."""
    periods, wanted = int(alarm["EvaluationPeriods"]), int(alarm.get("DatapointsToAlarm") or alarm["EvaluationPeriods"])
    now = time.time()
    values = [_value(alarm, now, back) for back in range(periods)]
    state, reason = _state(alarm, values, wanted)
    old = alarm["StateValue"]
    if state == old:
        return
    alarm["StateValue"], alarm["StateReason"], alarm["StateUpdatedTimestamp"] = state, reason, int(now)
    cloudwatch._record_history(alarm["AlarmName"], old, state, reason)
    cloudwatch._dispatch_alarm_actions(alarm, old, state, reason)
    cloudwatch._evaluate_parent_alarms(alarm)


def put(alarm: Parameters) -> None:
    """Keep an alarm with ``Metrics``, in the shape of PutMetricAlarm; an existing one keeps its state."""
    check(alarm)
    name = alarm["AlarmName"]
    old = cloudwatch._alarms.get(name) or {}
    cloudwatch.cloudformation_put_metric_alarm(
        {
            "AlarmDescription": "",
            "ActionsEnabled": True,
            "AlarmActions": [],
            "OKActions": [],
            "InsufficientDataActions": [],
            "TreatMissingData": "missing",
            **alarm,
            "Threshold": float(alarm["Threshold"]),
            "EvaluationPeriods": int(alarm["EvaluationPeriods"]),
            "AlarmArn": f"arn:aws:cloudwatch:{get_region()}:{get_account_id()}:alarm:{name}",
            "AlarmConfigurationUpdatedTimestamp": int(time.time()),
            "StateValue": old.get("StateValue", "INSUFFICIENT_DATA"),
            "StateReason": old.get("StateReason", "Unchecked: Initial alarm creation"),
            "StateUpdatedTimestamp": old.get("StateUpdatedTimestamp", int(time.time())),
        }
    )


def keep_evaluating() -> None:
    """Evaluate every alarm of every account and region each second: data that ceases changes states too."""
    while True:
        time.sleep(_EVERY_S)
        for account, region in {(key[0], key[1]) for key in list(cloudwatch._alarms.to_dict())}:
            with request_scope(account, region):
                cloudwatch._evaluate_all_alarms()


def _state(alarm: Parameters, values: list[float | None], wanted: int) -> tuple[str, str]:
    threshold, operator = float(alarm["Threshold"]), alarm["ComparisonOperator"]
    treat = alarm.get("TreatMissingData") or "missing"
    breaches = [
        treat == "breaching" if value is None else bool(_COMPARISONS[operator](value, threshold)) for value in values
    ]
    present = [value for value in values if value is not None]
    if sum(breaches) >= wanted:
        return "ALARM", f"Threshold Crossed: {sum(breaches)} datapoints {present} were {operator} ({threshold})."
    if present or treat in ("notBreaching", "breaching"):
        return (
            "OK",
            f"Threshold not crossed: of the datapoints {present} only {sum(breaches)} were {operator} ({threshold}).",
        )
    if treat == "ignore":
        return alarm["StateValue"], alarm["StateReason"]
    return "INSUFFICIENT_DATA", "Insufficient Data: no datapoints were received."


def _value(alarm: Parameters, now: float, back: int) -> float | None:
    """The alarm's value, ``back`` periods before the last."""
    queries = alarm.get("Metrics")
    if not queries:
        statistic = alarm.get("ExtendedStatistic") or alarm.get("Statistic") or "Average"
        return _statistic(alarm, statistic, alarm.get("Dimensions") or [], float(alarm["Period"]), now, back)
    period = max((float(_period(query) or 0) for query in queries), default=0) or _DEFAULT_PERIOD_S
    values: dict[str, float | None] = {}
    pending = list(queries)
    while pending:
        query = pending.pop(0)
        if "MetricStat" in query:
            stat = query["MetricStat"]
            metric = stat["Metric"]
            values[query["Id"]] = _statistic(metric, stat["Stat"], metric.get("Dimensions") or [], period, now, back)
            continue
        tree = expressions.parse(query["Expression"])
        if expressions.names(tree) <= set(values):
            values[query["Id"]] = expressions.evaluate(tree, values)
        else:
            pending.append(query)
    result = next(query["Id"] for query in queries if query.get("ReturnData", True))
    return values[result]


def _period(query: Parameters) -> Any:
    return query.get("MetricStat", {}).get("Period") or query.get("Period")


def _statistic(
    metric: Parameters, statistic: str, dimensions: list[dict[str, str]], period: float, now: float, back: int
) -> float | None:
    key = (metric["Namespace"], metric["MetricName"], cloudwatch._dims_key(cloudwatch._dims_from_list(dimensions)))
    end = now - back * period
    points = [point for point in cloudwatch._metrics.get(key) or [] if end - period < point["Timestamp"] <= end]
    if not points:
        return None
    value: float | None = cloudwatch._stat_value(cloudwatch._calc_stats(points), statistic, points)
    return value

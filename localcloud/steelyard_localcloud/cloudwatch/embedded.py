"""Metrics that log events carry in the embedded metric format, as CloudWatch Logs makes metrics of them.

What is not of the form is a line like any other, there as here (user guide, "Specification: Embedded metric format").
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeGuard

from ministack.services import cloudwatch

_MOST_VALUES, _MOST_METRICS, _MOST_DIMENSIONS = 100, 100, 30


@dataclass(frozen=True, slots=True)
class Point:
    """One value of a metric.

    Attributes:
        namespace: The metric's namespace.
        name: Its name.
        value: The value.
        unit: CloudWatch's name of the unit.
        dimensions: Values by name.
        time_s: Unix time.
    """

    namespace: str
    name: str
    value: float
    unit: str
    dimensions: dict[str, str]
    time_s: float


def points(message: str) -> Iterator[Point]:
    """Yield the values that a log event carries; none where it is not of the form, or beyond a limit of it."""
    if not (message.startswith("{") and '"_aws"' in message):
        return
    try:
        event = json.loads(message)
    except ValueError:
        return
    metadata = event.get("_aws")
    directives = metadata.get("CloudWatchMetrics") if isinstance(metadata, dict) else None
    for directive in directives if isinstance(directives, list) else ():
        if isinstance(directive, dict):
            yield from _of_directive(event, directive)


def publish(message: str) -> None:
    """Keep the metrics of a log event, in the account and region of now."""
    for point in points(message):
        key = (point.namespace, point.name, cloudwatch._dims_key(point.dimensions))
        cloudwatch._metric_bucket(key).append(
            {
                "Timestamp": point.time_s,
                "Value": point.value,
                "Unit": point.unit,
                "Dimensions": point.dimensions,
            }
        )


def _of_directive(event: dict[str, Any], directive: dict[str, Any]) -> Iterator[Point]:
    stamp = event["_aws"].get("Timestamp")
    namespace, metrics, sets = (directive.get(name) for name in ("Namespace", "Metrics", "Dimensions"))
    if not (isinstance(stamp, int) and isinstance(namespace, str) and _objects(metrics) and _lists(sets)):
        return
    if len(metrics) > _MOST_METRICS:
        return
    for names in sets:
        dimensions = {name: value for name in names if isinstance(value := event.get(str(name)), str)}
        if len(names) > _MOST_DIMENSIONS or len(dimensions) < len(names):
            continue
        for metric in metrics:
            name, unit = str(metric.get("Name")), str(metric.get("Unit", "None"))
            for value in _values(event.get(name)):
                yield Point(namespace, name, value, unit, dimensions, stamp / 1000)


def _objects(value: Any) -> TypeGuard[list[dict[str, Any]]]:
    return isinstance(value, list) and all(isinstance(each, dict) for each in value)


def _lists(value: Any) -> TypeGuard[list[list[Any]]]:
    return isinstance(value, list) and all(isinstance(each, list) for each in value)


def _values(value: Any) -> list[float]:
    """Return a metric's values; none where one is no number, or there are too many."""
    listed = value if isinstance(value, list) else [value]
    if len(listed) > _MOST_VALUES or not all(isinstance(each, int | float) for each in listed):
        return []
    return [float(each) for each in listed]

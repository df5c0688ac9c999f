"""Thresholds of an endpoint's alarms. Nothing here needs the CDK."""

from __future__ import annotations

from dataclasses import dataclass, fields

from steelyard_constructs.numeric import check_finite
from steelyard_constructs.refusal import Refused

LATENCY_ALARM_MS = 30_000


@dataclass(frozen=True)
class Thresholds:
    """Thresholds of an endpoint's alarms. Each must hold for 2 of 3 minutes, health for 5 of 5.

    Attributes:
        failure_percent: Requests that failed through no fault of the caller, in percent of all.
        server_errors: Requests answered with 5xx, in a minute.
        unanswered: Requests without any answer, in a minute.
        broken_streams: Streams that break off after they have begun, in a minute.
        client_error_percent: Requests refused with 4xx, in percent of all.
        latency_alarm_ms: 95th percentile of the time in the container, in milliseconds.
        memory_percent: Memory in use, in percent.
    """

    failure_percent: float = 5
    server_errors: int = 10
    unanswered: int = 1
    broken_streams: int = 1
    client_error_percent: float = 50
    latency_alarm_ms: float = LATENCY_ALARM_MS
    memory_percent: float = 95


def check_thresholds(limits: Thresholds) -> None:
    """Refuse thresholds that no metric can reach, or that any reaches.

    Raises:
        Refused: One is not positive, or a share is above 100 %.
    """
    for each in fields(limits):
        check_finite(f"the threshold {each.name}", getattr(limits, each.name))
    # CloudWatch counts it in microseconds.
    check_finite("the threshold latency_alarm_ms times 1000", limits.latency_alarm_ms * 1000)
    for name in ("failure_percent", "client_error_percent", "memory_percent"):
        if not 0 < getattr(limits, name) <= 100:
            raise Refused(f"the threshold {name} is {getattr(limits, name)}; set more than 0 and at most 100 percent")
    for name in ("server_errors", "unanswered", "broken_streams", "latency_alarm_ms"):
        if not getattr(limits, name) > 0:
            raise Refused(f"the threshold {name} is {getattr(limits, name)}; set more than 0")

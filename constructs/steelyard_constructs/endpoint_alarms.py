"""Alarms of an endpoint, one for each way in which it can fail."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_sns as sns
from constructs import Construct

from steelyard_constructs.endpoint_metrics import EndpointMetrics
from steelyard_constructs.thresholds import Thresholds, check_thresholds

_CW = cloudwatch.ComparisonOperator
_MISSING = cloudwatch.TreatMissingData

RUNBOOK = "docs/how-to/runbook.md"
"""The page that says what to do about each alarm, in a section that is called like its construct."""


class EndpointAlarms(Construct):
    """Tells apart what went wrong: the model's answers, the container, the callers, speed, the instances.

    Args:
        endpoint_name: The endpoint's name.
        variant_name: Its variant.
        topic: Notified when an alarm goes off and when it is over.
        thresholds: When they go off.

    Raises:
        Refused: A threshold is not positive, or a share is above 100 %.

    Attributes:
        failures: Share of requests that failed through no fault of the caller (metric math).
        server_errors: The container answers 5xx: it is broken, or busy beyond its queue.
        unanswered: The container does not answer: it crashed or hangs.
        broken_streams: Streams break off after they have begun.
        client_errors: Callers send what the container refuses (4xx).
        latency: Answers take long.
        health: No instance reports.
        memory: An instance is about to run out of memory.

    Example:
        >>> import aws_cdk as cdk
        >>> from steelyard_constructs.endpoint_alarms import EndpointAlarms
        >>> from steelyard_constructs.thresholds import Thresholds
        >>> app = cdk.App()
        >>> stack = cdk.Stack(app, "Example")
        >>> alarms = EndpointAlarms(
        ...     stack,
        ...     "Alarms",
        ...     endpoint_name="support-decisions",
        ...     variant_name="primary",
        ...     thresholds=Thresholds(latency_alarm_ms=2_000),
        ... )
        >>> len(alarms.all)
        8
        >>> template = app.synth().get_stack_by_name("Example").template
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        endpoint_name: str,
        variant_name: str,
        topic: sns.ITopic | None = None,
        thresholds: Thresholds | None = None,
    ) -> None:
        super().__init__(scope, id)
        limits = thresholds or Thresholds()
        check_thresholds(limits)
        metrics = EndpointMetrics(endpoint_name, variant_name)
        alarm = partial(make_alarm, self, topic=topic, of=f"Endpoint {endpoint_name}")
        self.failures = alarm(
            "Failures",
            metrics.failure_percent(),
            limits.failure_percent,
            f"More than {limits.failure_percent:g} % of the requests fail through no fault of their callers.",
        )
        self.server_errors = alarm(
            "ServerErrors",
            metrics.server_errors(),
            limits.server_errors,
            f"More than {limits.server_errors} requests a minute get a 5xx: the container is broken, or busy beyond "
            "its queue. Its log says which.",
        )
        self.unanswered = alarm(
            "Unanswered",
            metrics.unanswered(),
            limits.unanswered,
            f"{limits.unanswered} or more requests a minute get no answer: the container crashed, hangs, or takes over "
            "60 s.",
            comparison=_CW.GREATER_THAN_OR_EQUAL_TO_THRESHOLD,
        )
        self.broken_streams = alarm(
            "BrokenStreams",
            metrics.broken_streams(),
            limits.broken_streams,
            f"{limits.broken_streams} or more streams a minute break off after they have begun: the container crashed, "
            "or took over 8 minutes.",
            comparison=_CW.GREATER_THAN_OR_EQUAL_TO_THRESHOLD,
        )
        self.client_errors = alarm(
            "ClientErrors",
            metrics.client_error_percent(),
            limits.client_error_percent,
            f"More than {limits.client_error_percent:g} % of the requests are refused with a 4xx: a caller sends what "
            "the contract does not allow.",
        )
        self.latency = alarm(
            "Latency",
            metrics.model_latency("p95"),
            limits.latency_alarm_ms * 1000,
            f"One request in twenty spends more than {limits.latency_alarm_ms:g} ms in the container.",
        )
        self.health = alarm(
            "Health",
            metrics.reports(),
            1,
            "No instance of the endpoint has reported for 5 minutes.",
            comparison=_CW.LESS_THAN_THRESHOLD,
            missing=_MISSING.BREACHING,
            minutes=(5, 5),
        )
        self.memory = alarm(
            "Memory",
            metrics.usage("Memory", cloudwatch.Stats.MAXIMUM),
            limits.memory_percent,
            f"An instance uses more than {limits.memory_percent:g} % of its memory.",
        )

    @property
    def all(self) -> Sequence[cloudwatch.IAlarm]:
        """All of them."""
        return (
            self.failures,
            self.server_errors,
            self.unanswered,
            self.broken_streams,
            self.client_errors,
            self.latency,
            self.health,
            self.memory,
        )


def make_alarm(
    scope: Construct,
    id: str,
    metric: cloudwatch.IMetric,
    threshold: float,
    description: str,
    *,
    of: str,
    topic: sns.ITopic | None = None,
    comparison: cloudwatch.ComparisonOperator = _CW.GREATER_THAN_THRESHOLD,
    missing: cloudwatch.TreatMissingData = _MISSING.NOT_BREACHING,
    minutes: tuple[int, int] = (2, 3),
) -> cloudwatch.Alarm:
    """Make an alarm that goes off when a number of the last minutes breach a threshold.

    Args:
        scope: Parent.
        id: Name within it.
        metric: The metric, per minute.
        threshold: Its limit.
        description: Its meaning, for the reader of the mail; where to read on is added.
        of: The endpoint or instances, for the beginning of the mail.
        topic: Notified when it goes off and when it is over.
        comparison: How the metric breaches it.
        missing: What minutes without data count as.
        minutes: How many minutes must breach, of how many.
    """
    alarm = cloudwatch.Alarm(
        scope,
        id,
        metric=metric,
        threshold=threshold,
        comparison_operator=comparison,
        datapoints_to_alarm=minutes[0],
        evaluation_periods=minutes[1],
        treat_missing_data=missing,
        alarm_description=f"{of}: {description} What to do: {RUNBOOK}#{id.lower()}",
    )
    if topic is not None:
        alarm.add_alarm_action(actions.SnsAction(topic))
        alarm.add_ok_action(actions.SnsAction(topic))
    return alarm

"""Alarms that undo an endpoint's update while it is rolled out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from aws_cdk import aws_cloudwatch as cloudwatch
from constructs import Construct

from steelyard_constructs.endpoint_alarms import make_alarm
from steelyard_constructs.endpoint_metrics import EndpointMetrics
from steelyard_constructs.thresholds import Thresholds, check_thresholds


class RollbackAlarms(Construct):
    """Watches only the instances that an update brings.

    Alarms of the whole endpoint would be set off by what the old instances do, and stop the very update that mends it
    (developer guide, "Auto-Rollback Configuration and Monitoring"). Of failures only the share counts, not the number,
    which grows with the load.

    Args:
        metrics: Metrics of the new instances: with ``config_name``.
        thresholds: When they go off.

    Raises:
        Refused: A threshold is not positive, or a share is above 100 %.

    Attributes:
        failures: Share of requests that failed through no fault of the caller.
        unanswered: The container does not answer: it crashed or hangs.
        broken_streams: Streams break off after they have begun.
        latency: Answers take long.

    Example:
        >>> import aws_cdk as cdk
        >>> from steelyard_constructs.endpoint_metrics import EndpointMetrics
        >>> from steelyard_constructs.rollback_alarms import RollbackAlarms
        >>> app = cdk.App()
        >>> stack = cdk.Stack(app, "Example")
        >>> metrics = EndpointMetrics("support-decisions", "primary", "the-new-configuration")
        >>> len(RollbackAlarms(stack, "Rollback", metrics=metrics).all)
        4
        >>> template = app.synth().get_stack_by_name("Example").template
    """

    def __init__(
        self, scope: Construct, id: str, *, metrics: EndpointMetrics, thresholds: Thresholds | None = None
    ) -> None:
        super().__init__(scope, id)
        limits = thresholds or Thresholds()
        check_thresholds(limits)
        alarm = partial(make_alarm, self, of=f"New instances of endpoint {metrics.endpoint_name}")
        self.failures = alarm(
            "Failures",
            metrics.failure_percent(),
            limits.failure_percent,
            f"More than {limits.failure_percent:g} % of their requests fail through no fault of the callers.",
        )
        self.unanswered = alarm(
            "Unanswered",
            metrics.unanswered(),
            limits.unanswered,
            f"{limits.unanswered} or more requests a minute get no answer.",
            comparison=cloudwatch.ComparisonOperator.GREATER_THAN_OR_EQUAL_TO_THRESHOLD,
        )
        self.broken_streams = alarm(
            "BrokenStreams",
            metrics.broken_streams(),
            limits.broken_streams,
            f"{limits.broken_streams} or more streams a minute break off after they have begun.",
            comparison=cloudwatch.ComparisonOperator.GREATER_THAN_OR_EQUAL_TO_THRESHOLD,
        )
        self.latency = alarm(
            "Latency",
            metrics.model_latency("p95"),
            limits.latency_alarm_ms * 1000,
            f"One request in twenty spends more than {limits.latency_alarm_ms:g} ms in the container.",
        )

    @property
    def all(self) -> Sequence[cloudwatch.IAlarm]:
        """All of them."""
        return (self.failures, self.unanswered, self.broken_streams, self.latency)

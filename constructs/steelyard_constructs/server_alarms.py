"""Alarms on our server's own metrics, as the table of metrics says."""

from __future__ import annotations

from collections.abc import Sequence

from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_sns as sns
from constructs import Construct

from steelyard_constructs.endpoint_alarms import make_alarm
from steelyard_constructs.server_metrics import ServerMetrics
from steelyard_runtime.metrics_table import SERIES


class ServerAlarms(Construct):
    """Tells why a decision endpoint refuses, fails or hands over to people; SageMaker's own metrics do not know.

    Args:
        endpoint_name: The endpoint's name.
        topic: Notified when an alarm goes off and when it is over.

    Attributes:
        all: An alarm for each series of the table that has an alert, in its order.

    Example:
        >>> import aws_cdk as cdk
        >>> from steelyard_constructs.server_alarms import ServerAlarms
        >>> app = cdk.App()
        >>> stack = cdk.Stack(app, "Example")
        >>> alarms = ServerAlarms(stack, "ServerAlarms", endpoint_name="support-decisions")
        >>> template = app.synth().get_stack_by_name("Example").template
    """

    def __init__(self, scope: Construct, id: str, *, endpoint_name: str, topic: sns.ITopic | None = None) -> None:
        super().__init__(scope, id)
        metrics = ServerMetrics(endpoint_name)
        made: list[cloudwatch.IAlarm] = []
        for series in SERIES.values():
            if (alert := series.alert) is None:
                continue
            amount = f"more than {alert.above:g} a minute"
            if alert.percent_of is not None:
                amount = f"more than {alert.above:g} % of {alert.percent_of}"
            made.append(
                make_alarm(
                    self,
                    series.name,
                    metrics.alerting(series, alert),
                    alert.above,
                    f"{series.name} is {amount}. {alert.message}",
                    of=f"Endpoint {endpoint_name}",
                    topic=topic,
                    minutes=alert.minutes,
                )
            )
        self.all: Sequence[cloudwatch.IAlarm] = tuple(made)

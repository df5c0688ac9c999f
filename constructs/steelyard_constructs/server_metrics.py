"""Our server's own metrics, by the table that the server counts by (``steelyard_runtime.metrics_table``)."""

from __future__ import annotations

from dataclasses import dataclass

from aws_cdk import aws_cloudwatch as cloudwatch

from steelyard_constructs.endpoint_metrics import PERIOD
from steelyard_runtime.metrics_table import ENDPOINT, NAMESPACE, SERIES, Alert, Series, Unit


@dataclass(frozen=True)
class ServerMetrics:
    """Metrics that the container of a decision endpoint writes to its log, per minute.

    Attributes:
        endpoint_name: The endpoint.
    """

    endpoint_name: str

    def metric(self, series: Series, statistic: str | None = None) -> cloudwatch.Metric:
        """Return the metric of a series: its sum, or p95 where it is a time, unless another statistic is named."""
        usual = cloudwatch.Stats.SUM if series.unit is Unit.COUNT else cloudwatch.Stats.percentile(95)
        return cloudwatch.Metric(
            namespace=NAMESPACE,
            metric_name=series.name,
            dimensions_map={ENDPOINT: self.endpoint_name},
            statistic=statistic or usual,
            period=PERIOD,
        )

    def alerting(self, series: Series, alert: Alert) -> cloudwatch.IMetric:
        """Return what an alarm compares: the sum of a minute, or its share in percent; 0 where there is nothing."""
        if alert.percent_of is None:
            return self.metric(series)
        return cloudwatch.MathExpression(
            expression="IF(whole > 0, 100 * FILL(part, 0) / whole, 0)",
            using_metrics={"part": self.metric(series), "whole": self.metric(SERIES[alert.percent_of])},
            label=f"{series.name}, % of {alert.percent_of}",
            period=PERIOD,
        )

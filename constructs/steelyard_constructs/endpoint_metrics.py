"""The metrics that SageMaker emits for an endpoint, under names that say what they mean.

Counts and latencies are in ``AWS/SageMaker``, what the instances use is in ``/aws/sagemaker/Endpoints``
(developer guide, "Amazon SageMaker AI metrics in Amazon CloudWatch").
"""

from __future__ import annotations

from dataclasses import dataclass

from aws_cdk import Duration
from aws_cdk import aws_cloudwatch as cloudwatch

PERIOD = Duration.minutes(1)


@dataclass(frozen=True)
class EndpointMetrics:
    """Metrics of one variant of one endpoint, per minute.

    Attributes:
        endpoint_name: The endpoint.
        variant_name: The variant.
        config_name: Its configuration, for the metrics of the instances that run this one only: while an update is
            rolled out, those are the new ones. None for all instances.
    """

    endpoint_name: str
    variant_name: str
    config_name: str | None = None

    def invocations(self) -> cloudwatch.Metric:
        """Requests."""
        return self._count("Invocations")

    def client_errors(self) -> cloudwatch.Metric:
        """Requests that the container refused: 4xx, the caller's doing."""
        return self._count("Invocation4XXErrors")

    def server_errors(self) -> cloudwatch.Metric:
        """Requests that the container answered with 5xx: broken or busy."""
        return self._count("Invocation5XXErrors")

    def broken_streams(self) -> cloudwatch.Metric:
        """Streams that broke off after they had begun; the other counts take them for answered."""
        return self._count("MidStreamErrors")

    def unsuccessful(self) -> cloudwatch.Metric:
        """Requests without a 2xx answer, for whatever reason."""
        return self._count("InvocationModelErrors")

    def unanswered(self) -> cloudwatch.MathExpression:
        """Requests without any answer of the container: it crashed, hung up, or took longer than 60 s."""
        return cloudwatch.MathExpression(
            expression="FILL(unsuccessful, 0) - FILL(client, 0) - FILL(server, 0)",
            using_metrics={
                "unsuccessful": self.unsuccessful(),
                "client": self.client_errors(),
                "server": self.server_errors(),
            },
            label="No answer",
            period=PERIOD,
        )

    def client_error_percent(self) -> cloudwatch.MathExpression:
        """Share of the requests that the container refused, in percent; 0 without requests."""
        return cloudwatch.MathExpression(
            expression="IF(requests > 0, 100 * FILL(client, 0) / requests, 0)",
            using_metrics={"client": self.client_errors(), "requests": self.invocations()},
            label="Refused (4xx), %",
            period=PERIOD,
        )

    def failure_percent(self) -> cloudwatch.MathExpression:
        """Share of the requests that failed through no fault of the caller, in percent; 0 without requests."""
        return cloudwatch.MathExpression(
            expression="IF(requests > 0, 100 * (FILL(unsuccessful, 0) - FILL(client, 0)) / requests, 0)",
            using_metrics={
                "unsuccessful": self.unsuccessful(),
                "client": self.client_errors(),
                "requests": self.invocations(),
            },
            label="Failed, %",
            period=PERIOD,
        )

    def model_latency(self, statistic: str) -> cloudwatch.Metric:
        """Time in the container, in microseconds."""
        return self._metric("AWS/SageMaker", "ModelLatency", statistic)

    def overhead_latency(self, statistic: str) -> cloudwatch.Metric:
        """Time in SageMaker beside the container, in microseconds."""
        return self._metric("AWS/SageMaker", "OverheadLatency", statistic)

    def concurrency(self, statistic: str) -> cloudwatch.Metric:
        """Requests in progress or waiting, per instance."""
        return self._metric("AWS/SageMaker", "ConcurrentRequestsPerModel", statistic)

    def usage(self, what: str, statistic: str) -> cloudwatch.Metric:
        """Return the metric of a resource in use, in percent: ``CPU``, ``Memory``, ``Disk``, ``GPU`` or ``GPUMemory``.

        The processors' and GPUs' figures are sums: 400 is all of four.
        """
        return self._metric("/aws/sagemaker/Endpoints", f"{what}Utilization", statistic)

    def reports(self) -> cloudwatch.Metric:
        """Return the number of reports that the instances sent; none when no instance runs."""
        return self._metric("/aws/sagemaker/Endpoints", "CPUUtilization", cloudwatch.Stats.SAMPLE_COUNT)

    def _count(self, name: str) -> cloudwatch.Metric:
        return self._metric("AWS/SageMaker", name, cloudwatch.Stats.SUM)

    def _metric(self, namespace: str, name: str, statistic: str) -> cloudwatch.Metric:
        return cloudwatch.Metric(
            namespace=namespace,
            metric_name=name,
            dimensions_map={
                "EndpointName": self.endpoint_name,
                "VariantName": self.variant_name,
                **({} if self.config_name is None else {"EndpointConfigName": self.config_name}),
            },
            statistic=statistic,
            period=PERIOD,
        )

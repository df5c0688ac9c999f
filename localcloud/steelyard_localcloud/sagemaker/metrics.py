"""The ``AWS/SageMaker`` metrics that invocations leave behind, so that alarms have something to watch."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus

from ministack.services import cloudwatch

NAMESPACE = "AWS/SageMaker"
INSTANCES = "/aws/sagemaker/Endpoints"


@dataclass(frozen=True)
class Outcome:
    """Outcome of one invocation.

    Attributes:
        container_status: Status that the container gave; 0 when it gave none.
        model_s: Seconds that the container took.
        concurrent: Invocations in flight when it began, itself included.
        broken: Whether it is a stream that broke off after it had begun.
    """

    container_status: int
    model_s: float
    concurrent: int
    broken: bool = False


def record(endpoint: str, variant: str, config: str, outcome: Outcome) -> None:
    """Publish the metrics of one invocation, of the variant and of its configuration alone, as SageMaker does."""
    dimensions = {"EndpointName": endpoint, "VariantName": variant}
    client = HTTPStatus.BAD_REQUEST <= outcome.container_status < HTTPStatus.INTERNAL_SERVER_ERROR
    server = outcome.container_status >= HTTPStatus.INTERNAL_SERVER_ERROR
    success = HTTPStatus.OK <= outcome.container_status < HTTPStatus.MULTIPLE_CHOICES
    values = {
        "Invocations": (1.0, "None"),
        "InvocationsPerInstance": (1.0, "None"),
        "Invocation4XXErrors": (float(client), "None"),
        "Invocation5XXErrors": (float(server), "None"),
        "InvocationModelErrors": (float(not success), "None"),
        "MidStreamErrors": (float(outcome.broken), "None"),
        "ModelLatency": (outcome.model_s * 1e6, "Microseconds"),
        "OverheadLatency": (0.0, "Microseconds"),
        "ConcurrentRequestsPerModel": (float(outcome.concurrent), "Count"),
        "ConcurrentRequestsPerModelHighResolution": (float(outcome.concurrent), "Count"),
    }
    for name, (value, unit) in values.items():
        for counted in (dimensions, {**dimensions, "EndpointConfigName": config}):
            cloudwatch.record_metric(NAMESPACE, name, value, unit, counted)
    cloudwatch._evaluate_all_alarms()


def record_usage(endpoint: str, variant: str, *, cpu_percent: float, memory_percent: float) -> None:
    """Publish what the endpoint's process uses, as an instance does."""
    dimensions = {"EndpointName": endpoint, "VariantName": variant}
    for name, value in (("CPUUtilization", cpu_percent), ("MemoryUtilization", memory_percent)):
        cloudwatch.record_metric(INSTANCES, name, value, "Percent", dimensions)

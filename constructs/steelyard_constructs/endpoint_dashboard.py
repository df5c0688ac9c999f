"""One page that shows how endpoints are doing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aws_cdk import Duration
from aws_cdk import aws_cloudwatch as cloudwatch
from constructs import Construct

from steelyard_constructs.endpoint_metrics import EndpointMetrics
from steelyard_constructs.refusal import Refused
from steelyard_constructs.server_metrics import ServerMetrics
from steelyard_runtime import metrics_table as table
from steelyard_runtime.metrics_table import Series

_WIDTH = 24


@dataclass(frozen=True)
class Shown:
    """An endpoint on the dashboard.

    Attributes:
        endpoint_name: Its name.
        variant_name: Its variant.
        gpu: Whether its instances have GPUs.
        ours: Whether it runs our server, which has metrics of its own.
        alarms: Its alarms, whose state heads its part of the page.
    """

    endpoint_name: str
    variant_name: str
    gpu: bool = False
    ours: bool = False
    alarms: Sequence[cloudwatch.IAlarm] = ()


class EndpointDashboard(Construct):
    """Requests, failures by class, latency, concurrency and use of the instances, endpoint by endpoint.

    Args:
        endpoints: What it shows, from top to bottom.
        dashboard_name: Its name; CloudFormation makes one up unless set.

    Raises:
        Refused: There is nothing to show.

    Attributes:
        dashboard: The dashboard.

    Example:
        >>> import aws_cdk as cdk
        >>> from steelyard_constructs.endpoint_dashboard import EndpointDashboard, Shown
        >>> app = cdk.App()
        >>> stack = cdk.Stack(app, "Example")
        >>> page = EndpointDashboard(stack, "Dashboard", endpoints=[Shown("support-decisions", "primary", gpu=True)])
        >>> template = app.synth().get_stack_by_name("Example").template
    """

    def __init__(
        self, scope: Construct, id: str, *, endpoints: Sequence[Shown], dashboard_name: str | None = None
    ) -> None:
        super().__init__(scope, id)
        if not endpoints:
            raise Refused("the dashboard has no endpoints to show; give it one or more, or leave it out")
        self.dashboard = cloudwatch.Dashboard(
            self, "Dashboard", dashboard_name=dashboard_name, default_interval=Duration.hours(3)
        )
        for shown in endpoints:
            for row in _rows(shown):
                self.dashboard.add_widgets(*row)


def _rows(shown: Shown) -> Sequence[Sequence[cloudwatch.IWidget]]:
    metrics = EndpointMetrics(shown.endpoint_name, shown.variant_name)
    used = ("CPU", "Memory", "Disk") + (("GPU", "GPUMemory") if shown.gpu else ())
    title = cloudwatch.TextWidget(markdown=f"## {shown.endpoint_name}", width=_WIDTH, height=1)
    alarms = [
        cloudwatch.AlarmStatusWidget(alarms=list(shown.alarms), title="Alarms", width=_WIDTH, height=3),
    ]
    return [
        [title],
        *([alarms] if shown.alarms else []),
        [
            _graph("Requests a minute", [metrics.invocations()]),
            _graph(
                "Failures a minute, by class",
                [metrics.client_errors(), metrics.server_errors(), metrics.unanswered(), metrics.broken_streams()],
                [metrics.failure_percent(), metrics.client_error_percent()],
            ),
            _graph(
                "Latency, microseconds",
                [*(metrics.model_latency(each) for each in ("p50", "p95", "p99")), metrics.overhead_latency("p95")],
            ),
        ],
        [
            _graph(
                "Requests in progress per instance", [metrics.concurrency("Average"), metrics.concurrency("Maximum")]
            ),
            _graph("Use of the instances, percent", [metrics.usage(each, "Average") for each in used]),
            _graph("Reports of the instances", [metrics.reports()]),
        ],
        *(_own_rows(ServerMetrics(shown.endpoint_name)) if shown.ours else []),
    ]


def _own_rows(metrics: ServerMetrics) -> Sequence[Sequence[cloudwatch.IWidget]]:
    """Every series of the table of metrics, in graphs of one subject each."""

    def graph(title: str, *shown: Series) -> cloudwatch.GraphWidget:
        return _graph(title, [metrics.metric(each) for each in shown])

    broken = [each for each in table.REQUESTS.series if each not in table.FAILURES]
    names = (table.QUEUE_DEPTH, table.LINES_DROPPED, table.RECORDS_DROPPED)
    sampled = [series for name in names for series in table.TABLE[name].series]
    return [
        [
            graph("Refusals and faults, by class", *table.FAILURES),
            graph("Requests, and streams that broke off", *broken),
            graph("Starts that failed", *table.STARTS_REFUSED.series),
        ],
        [
            graph("Time, p95 in milliseconds", *table.DURATION.series, *table.WAIT.series, *table.ENGINE_TIME.series),
            graph("Tokens of prompts", *table.TOKENS.series),
            graph("Waiting, and lines lost", *sampled),
        ],
        [
            graph("Registered decisions, by what their policies did", *table.RULINGS.series),
            graph("Why they were not automated", *table.HELD_BACK.series),
            graph("What people found right", *table.FEEDBACK.series),
        ],
    ]


def _graph(
    title: str, left: Sequence[cloudwatch.IMetric], right: Sequence[cloudwatch.IMetric] = ()
) -> cloudwatch.GraphWidget:
    return cloudwatch.GraphWidget(title=title, left=list(left), right=list(right), width=_WIDTH // 3, height=6)

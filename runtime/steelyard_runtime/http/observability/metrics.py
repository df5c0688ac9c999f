"""Count what the table of metrics lists: for Prometheus, and for CloudWatch where the log goes there.

One registry per application.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from steelyard_runtime import metrics_table as table
from steelyard_runtime.engine import memory
from steelyard_runtime.http.connections import REASONS
from steelyard_runtime.http.observability.embedded import EmbeddedMetrics
from steelyard_runtime.http.observability.logs import Sink
from steelyard_runtime.http.record import RequestRecord
from steelyard_runtime.http.runtime import Runtime
from steelyard_runtime.metrics_table import TABLE, Metric, Type, Unit

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
_VERDICTS = {None: "unknown", False: "confirmed", True: "overridden"}


class Metrics:
    """The metrics of one application.

    Args:
        runtime: What is read when somebody asks.
        sink: Where lines for CloudWatch go; they are written where the settings name an endpoint.
    """

    def __init__(self, runtime: Runtime, *, sink: Sink | None = None) -> None:
        self.registry = CollectorRegistry()
        self._runtime = runtime
        self._families = {metric.name: _family(metric, self.registry) for metric in table.MEASURED}
        self._told = dict.fromkeys((table.LINES_DROPPED, table.RECORDS_DROPPED), 0)
        self._embedded: EmbeddedMetrics | None = None
        if sink is not None and (endpoint := runtime.settings.endpoint_name) is not None:
            self._embedded = EmbeddedMetrics(sink, endpoint=endpoint, read=self._read_series)
        self.registry.register(EngineCollector(runtime))
        self.registry.register(ConnectionCollector(runtime))

    def add(self, metric: Metric, value: float = 1.0, *, labels: Mapping[str, str], for_log: bool = True) -> None:
        """Count a value of a metric of the table.

        Args:
            metric: One of ``MEASURED``.
            value: How much, in the metric's own unit.
            labels: Values of all its labels.
            for_log: Whether its series in the log count it, too.
        """
        child = self._families[metric.name].labels(**labels)
        if isinstance(child, Counter):
            child.inc(value)
        else:
            child.observe(value)
        if self._embedded is None or not for_log:
            return
        for series in metric.series:
            if series.holds(labels):
                scaled = value * 1000 if series.unit is Unit.MILLISECONDS else value
                self._embedded.add(series, scaled, decision=labels.get("decision"))

    def observe(self, record: RequestRecord, *, route: str, status: int, duration_s: float, asked: bool) -> None:
        """Count one finished request.

        Args:
            record: What is known of it.
            route: A route's template or ``"unmatched"``.
            status: Its HTTP status.
            duration_s: Seconds to the end of its answer.
            asked: Whether it came with a body. Others are health checks and their like; CloudWatch has none of them.
        """
        contract = {"contract": record.contract}
        outcome = {"route": route, **contract, "outcome": record.outcome, "status": str(status)}
        answered = asked and record.outcome == table.OK
        self.add(table.REQUESTS, labels=outcome, for_log=asked)
        self.add(table.DURATION, duration_s, labels={"route": route, **contract}, for_log=answered)
        for ruling in record.rulings:
            self.add(table.RULINGS, labels={"decision": ruling.decision, "action": ruling.action})
            if ruling.cause is not None:
                self.add(table.HELD_BACK, labels={"decision": ruling.decision, "cause": ruling.cause})
        for shadow in record.shadows:
            versions = {"decision": shadow.decision, "shadow": shadow.shadow}
            self.add(table.SHADOWS, labels={**versions, "outcome": shadow.outcome})
            self.add(table.SHADOW_TOKENS, shadow.evaluated, labels={"shadow": shadow.shadow})
        for correction in record.corrections:
            verdict = _VERDICTS[correction.overridden]
            self.add(table.FEEDBACK, labels={"decision": correction.decision, "verdict": verdict})
        if record.tokens_prompt:
            self.add(table.TOKENS, record.tokens_evaluated, labels={**contract, "how": "evaluated"})
            self.add(table.TOKENS, record.tokens_reused, labels={**contract, "how": "reused"})
        times = (
            (table.WAIT, None if record.queue_ms is None else record.queue_ms / 1000),
            (table.ENGINE_TIME, None if record.engine_ms is None else record.engine_ms / 1000),
            (table.FIRST_TOKEN, record.first_token_s),
            (table.TOKEN_TIME, record.token_s),
        )
        for metric, seconds in times:
            if seconds is not None:
                self.add(metric, seconds, labels=contract)

    def render(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def flush(self) -> None:
        """Write what was counted to the log, where it goes to CloudWatch."""
        if self._embedded is not None:
            self._embedded.flush()

    def _read_series(self) -> Mapping[str, float]:
        dropped = {
            table.LINES_DROPPED: self._runtime.dropped_lines(),
            table.RECORDS_DROPPED: self._runtime.dropped_records(),
        }
        found = {_series_of(name): float(count - self._told[name]) for name, count in dropped.items()}
        self._told = dropped
        if (services := self._runtime.services) is not None:
            found[_series_of(table.QUEUE_DEPTH)] = float(services.engine.counters.queue_depth)
        return found


def _family(metric: Metric, registry: CollectorRegistry) -> Counter | Histogram:
    if metric.type is Type.HISTOGRAM:
        return Histogram(metric.name, metric.meaning, metric.labels, buckets=metric.buckets, registry=registry)
    return Counter(metric.name, metric.meaning, metric.labels, registry=registry)


def _series_of(name: str) -> str:
    (series,) = TABLE[name].series
    return series.name


class EngineCollector(Collector):
    """Reads the engine's counters when they are asked for."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def collect(self) -> Iterable[Family]:
        """Readiness always; counters and identity once there is an engine."""
        yield _one(table.READY, float(self._runtime.health().ready))
        services = self._runtime.services
        if services is None:
            return
        counters = services.engine.counters
        for name in (*table.ENGINE_COUNTERS, *table.ENGINE_GAUGES):
            yield _one(table.ENGINE + name, float(getattr(counters, name)))
        yield _by_label(table.START_SECONDS, services.engine.start_seconds)
        if (use := memory.used()) is not None:
            yield _by_label(table.MEMORY, asdict(use))
        engine = services.engine.identity
        info = InfoMetricFamily(table.IDENTITY, TABLE[table.IDENTITY].meaning)
        info.add_metric(
            [],
            {
                "model_id": services.identity.model_id,
                "model_sha256": engine.model.sha256,
                "llama_cpp": engine.llama_cpp,
                "binding": engine.binding,
                "device": engine.device,
                "threads": str(engine.threads),
                "exact": str(engine.probe.exact).lower(),
            },
        )
        yield info


class ConnectionCollector(Collector):
    """Read the counts of connections and of lost log lines when they are asked for."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def collect(self) -> Iterable[Family]:
        """Open connections by state, their limit, and why some were closed or refused."""
        counted = self._runtime.connections
        yield _by_label(table.CONNECTIONS, dict(counted.states()))
        yield _one(table.CONNECTIONS_LIMIT, float(counted.limit or 0))
        yield _one(table.CONNECTIONS_OPENED, counted.opened)
        yield _by_label(table.CONNECTIONS_CLOSED, {reason: counted.closed[reason] for reason in REASONS})
        yield _one(table.ACCEPT_ERRORS, counted.accept_errors)
        yield _by_label(table.MALFORMED_REQUESTS, dict(sorted(counted.malformed.items())))
        yield _one(table.LINES_DROPPED, self._runtime.dropped_lines())
        yield _one(table.RECORDS_DROPPED, self._runtime.dropped_records())


def _one(name: str, value: float) -> Family:
    metric = TABLE[name]
    made = CounterMetricFamily if metric.type is Type.COUNTER else GaugeMetricFamily
    return made(name, metric.meaning, value=value)


def _by_label(name: str, values: Mapping[Any, float]) -> Family:
    metric = TABLE[name]
    made = CounterMetricFamily if metric.type is Type.COUNTER else GaugeMetricFamily
    family = made(name, metric.meaning, labels=metric.labels)
    for key, value in values.items():
        family.add_metric([str(key)], float(value))
    return family

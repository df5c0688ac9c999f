"""Prometheus metrics: requests by outcome, latencies, the engine's own counters. One registry per application.

Every label value comes from a fixed set (route templates, contract names, outcome names, statuses, registered
decisions), so that no caller can make the number of time series grow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from steelyard_runtime.engine import memory
from steelyard_runtime.engine.interface import Counters
from steelyard_runtime.http.connections import REASONS
from steelyard_runtime.http.record import RequestRecord
from steelyard_runtime.http.runtime import Runtime

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 240.0)
_TOKEN_SECONDS = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0)

# Attribute of Counters -> what it counts.
_TOTALS = {
    "decoded_tokens": "Tokens that went through llama_decode, with the few that fill up its rows.",
    "reused_tokens": "Prompt tokens that were already in a kept prefix.",
    "generated_tokens": "Tokens generated for chats and completions.",
    "decodes": "Calls of llama_decode.",
    "decisions": "Questions scored.",
    "generations": "Chats and completions finished.",
    "embeddings": "Texts embedded.",
    "rejected": "Requests refused at admission.",
    "cancelled": "Requests cancelled, because their clients left.",
    "faults": "Requests that the engine failed on and gave up alone.",
    "joined": "Requests that shared the evaluation of an exact duplicate.",
    "interruptions": "Times that a chat's decode was stopped in the middle for what goes first.",
    "prefix_hits": "Prompts whose beginning was found among the kept prefixes.",
    "prefix_misses": "Prompts whose beginning had to be evaluated.",
    "prefix_evictions": "Kept prefixes dropped to make room.",
    "busy_seconds": "Seconds that the engine's thread spent working.",
}
_GAUGES = {
    "prefix_bytes": "Bytes of kept prefixes.",
    "prefixes": "Kept prefixes.",
    "queue_depth": "Requests waiting for the engine.",
    "active_generations": "Chats and completions being generated.",
}


class Metrics:
    """The metrics of one application."""

    def __init__(self, runtime: Runtime) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "steelyard_http_requests",
            "Requests by outcome.",
            ("route", "contract", "outcome", "status"),
            registry=self.registry,
        )
        self._duration = Histogram(
            "steelyard_http_request_duration_seconds",
            "From the request's headers to the end of its answer.",
            ("route", "contract"),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._queue = Histogram(
            "steelyard_queue_seconds",
            "Waiting for the engine.",
            ("contract",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._engine = Histogram(
            "steelyard_engine_seconds",
            "Inside the engine.",
            ("contract",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._first_token = Histogram(
            "steelyard_time_to_first_token_seconds",
            "From the request's headers to the first generated token of a chat or completion.",
            ("contract",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._token = Histogram(
            "steelyard_time_per_output_token_seconds",
            "Time for each generated token after the first, of one choice.",
            ("contract",),
            buckets=_TOKEN_SECONDS,
            registry=self.registry,
        )
        self._rulings = Counter(
            "steelyard_registered_decisions",
            "Answers to registered decisions, by what their policies did with them.",
            ("decision", "action"),
            registry=self.registry,
        )
        self.registry.register(EngineCollector(runtime))
        self.registry.register(ConnectionCollector(runtime))

    def observe(self, record: RequestRecord, *, route: str, status: int, duration_s: float) -> None:
        """Count one finished request; ``route`` is a route's template or ``"unmatched"``."""
        self._requests.labels(route, record.contract, record.outcome, str(status)).inc()
        self._duration.labels(route, record.contract).observe(duration_s)
        for ruling in record.rulings:
            self._rulings.labels(ruling.decision, ruling.action).inc()
        if record.queue_ms is not None:
            self._queue.labels(record.contract).observe(record.queue_ms / 1000)
        if record.engine_ms is not None:
            self._engine.labels(record.contract).observe(record.engine_ms / 1000)
        if record.first_token_s is not None:
            self._first_token.labels(record.contract).observe(record.first_token_s)
        if record.token_s is not None:
            self._token.labels(record.contract).observe(record.token_s)

    def render(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)


class EngineCollector(Collector):
    """Reads the engine's counters when they are asked for."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def collect(self) -> Iterable[Metric]:
        """Readiness always; counters and identity once there is an engine."""
        yield GaugeMetricFamily(
            "steelyard_ready", "1 when /ping answers 200.", value=float(self._runtime.health().ready)
        )
        services = self._runtime.services
        if services is None:
            return
        yield from _engine_metrics(services.engine.counters)
        yield _by_label("steelyard_start_seconds", "What the start took.", "stage", services.engine.start_seconds)
        if (use := memory.used()) is not None:
            yield _by_label("steelyard_memory_bytes", "The process's memory.", "kind", asdict(use))
        engine = services.engine.identity
        info = InfoMetricFamily("steelyard_identity", "What is being served.")
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

    def collect(self) -> Iterable[Metric]:
        """Open connections by state, their limit, and why some were closed or refused."""
        counted = self._runtime.connections
        yield _by_label("steelyard_http_connections", "Open connections.", "state", dict(counted.states()))
        yield GaugeMetricFamily(
            "steelyard_http_connections_limit",
            "Most open connections, besides a few for GET; 0 where they are not limited.",
            value=float(counted.limit or 0),
        )
        yield CounterMetricFamily("steelyard_http_connections_opened", "Connections accepted.", value=counted.opened)
        closed = CounterMetricFamily(
            "steelyard_http_connections_closed", "Connections closed before their clients did.", labels=["reason"]
        )
        for reason in REASONS:
            closed.add_metric([reason], counted.closed[reason])
        yield closed
        yield CounterMetricFamily(
            "steelyard_http_accept_errors",
            "Connections that the system would not hand over.",
            value=counted.accept_errors,
        )
        malformed = CounterMetricFamily(
            "steelyard_http_malformed_requests", "Requests that are not HTTP as it should be.", labels=["status"]
        )
        for status, count in sorted(counted.malformed.items()):
            malformed.add_metric([str(status)], count)
        yield malformed
        yield CounterMetricFamily(
            "steelyard_log_lines_dropped",
            "Log lines that were not written, because they were not read fast enough.",
            value=self._runtime.dropped_lines(),
        )


def _by_label(name: str, text: str, label: str, values: Mapping[Any, float]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], float(value))
    return family


def _engine_metrics(counters: Counters) -> Iterable[Metric]:
    for name, text in _TOTALS.items():
        yield CounterMetricFamily(f"steelyard_engine_{name}", text, value=float(getattr(counters, name)))
    for name, text in _GAUGES.items():
        yield GaugeMetricFamily(f"steelyard_engine_{name}", text, value=float(getattr(counters, name)))

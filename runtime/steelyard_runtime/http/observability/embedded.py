"""Metrics as lines of the log, in CloudWatch's embedded metric format: a container without network has nothing else.

CloudWatch Logs makes metrics of every event of this form in a log group of the standard class (user guide,
"Specification: Embedded metric format"). What is counted in an interval is one line, and one for each registered
decision that was asked in it.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from steelyard_runtime.http.observability.logs import Sink, Undisturbed
from steelyard_runtime.metrics_table import DECISION, ENDPOINT, NAMESPACE, SERIES, Series, Unit

INTERVAL_S = 10.0
"""Seconds between lines."""
MOST_VALUES = 1000
"""Values of one series in an interval; percentiles are of the first of them."""
_VALUES_OF_A_LINE = 100
"""Most values of one metric that CloudWatch takes in one event."""
_DIGITS = 3

Counted = dict[str, float | list[float]]


class EmbeddedMetrics:
    """Adds up series and writes them. Any thread may add; one flushes.

    Args:
        sink: Where lines go.
        endpoint: Value of the dimension ``EndpointName``.
        read: Gives series that are read and not counted, by name.
        now: Unix time, in seconds.
    """

    def __init__(
        self,
        sink: Sink,
        *,
        endpoint: str,
        read: Callable[[], Mapping[str, float]] = dict,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._sink = Undisturbed(sink)
        self._endpoint = endpoint
        self._read = read
        self._now = now
        self._lock = threading.Lock()
        self._counted: dict[str | None, Counted] = {}

    def add(self, series: Series, value: float, *, decision: str | None = None) -> None:
        """Count one value of a series; ``decision`` is the registered one that it is about, if it is about one."""
        with self._lock:
            counted = self._counted.setdefault(decision if series.by_decision else None, {})
            if series.unit is Unit.COUNT:
                counted[series.name] = self._sum(counted, series.name) + value
                return
            values = counted.setdefault(series.name, [])
            if isinstance(values, list) and len(values) < MOST_VALUES:
                values.append(round(value, _DIGITS))

    def flush(self) -> None:
        """Write what was counted since the last time."""
        with self._lock:
            counted, self._counted = self._counted, {}
        counted.setdefault(None, {}).update(self._read())
        for decision, values in counted.items():
            for part in _parts(values):
                self._sink.write(json.dumps(self._line(part, decision)) + "\n")

    @staticmethod
    def _sum(counted: Counted, name: str) -> float:
        value = counted.get(name, 0.0)
        return 0.0 if isinstance(value, list) else value

    def _line(self, values: Counted, decision: str | None) -> dict[str, Any]:
        now = self._now()
        dimensions = [[ENDPOINT]] if decision is None else [[ENDPOINT], [ENDPOINT, DECISION]]
        directive = {
            "Namespace": NAMESPACE,
            "Dimensions": dimensions,
            "Metrics": [{"Name": name, "Unit": SERIES[name].unit.value} for name in values],
        }
        return {
            "_aws": {"Timestamp": int(now * 1000), "CloudWatchMetrics": [directive]},
            ENDPOINT: self._endpoint,
            **({} if decision is None else {DECISION: decision}),
            **values,
            "event": "metrics",
            "level": "info",
            "time": datetime.fromtimestamp(now, UTC).isoformat().replace("+00:00", "Z"),
        }


def _parts(values: Counted) -> Iterator[Counted]:
    """Cut what was counted into parts that one event may hold; the sums are in the first."""
    rest = dict(values)
    while rest:
        yield {name: each[:_VALUES_OF_A_LINE] if isinstance(each, list) else each for name, each in rest.items()}
        rest = {
            name: each[_VALUES_OF_A_LINE:]
            for name, each in rest.items()
            if isinstance(each, list) and len(each) > _VALUES_OF_A_LINE
        }

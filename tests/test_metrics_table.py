"""The table of metrics: every failure has one class, and every series a label that its metric has."""

from __future__ import annotations

from collections import Counter

import pytest

from steelyard_runtime.errors import Kind
from steelyard_runtime.metrics_table import CLIENT_LEFT, FAILURES, OK, SERIES, TABLE, Metric, Type, all_series


@pytest.mark.parametrize("outcome", [*(kind.value for kind in Kind), CLIENT_LEFT])
def test_every_failure_has_one_class(outcome: str) -> None:
    labels = {"outcome": outcome}
    assert len([each for each in FAILURES if each.holds(labels)]) == 1


def test_what_is_answered_is_no_failure() -> None:
    assert not any(each.holds({"outcome": OK}) for each in FAILURES)


def test_names_are_there_once() -> None:
    assert max(Counter(series.name for _, series in all_series()).values()) == 1


@pytest.mark.parametrize("metric", TABLE.values(), ids=lambda metric: metric.name)
def test_a_series_is_told_by_labels_that_its_metric_has(metric: Metric) -> None:
    assert (metric.type is Type.HISTOGRAM) == bool(metric.buckets)
    for series in metric.series:
        assert series.where.keys() <= set(metric.labels)
        assert not series.by_decision or "decision" in metric.labels
        assert series.alert is None or series.alert.percent_of in (None, *SERIES)

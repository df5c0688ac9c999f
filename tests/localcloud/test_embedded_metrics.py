"""Metrics in log events, read as CloudWatch Logs reads them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from steelyard_localcloud.cloudwatch.embedded import Point, points

DIRECTIVE = {"Namespace": "N", "Dimensions": [["A"], ["A", "B"]], "Metrics": [{"Name": "M", "Unit": "Count"}]}


def event(value: Any, **changes: Any) -> str:
    metadata = {"Timestamp": 5_000, "CloudWatchMetrics": [{**DIRECTIVE, **changes}]}
    return json.dumps({"_aws": metadata, "A": "a", "B": "b", "M": value, "another": "member"})


def test_a_value_is_kept_for_each_set_of_dimensions() -> None:
    assert list(points(event(2))) == [
        Point("N", "M", 2.0, "Count", {"A": "a"}, 5.0),
        Point("N", "M", 2.0, "Count", {"A": "a", "B": "b"}, 5.0),
    ]


def test_several_values_are_several_points() -> None:
    found = list(points(event([1, 2.5], Dimensions=[["A"]])))
    assert [each.value for each in found] == [1.0, 2.5]


@pytest.mark.parametrize(
    "message",
    [
        'plain text with "_aws"',
        '{"_aws": ',
        '{"_aws": 1}',
        '{"_aws": {"CloudWatchMetrics": [1]}}',
        event("text"),
        event([1] * 101),
        event(1, Namespace=None),
        event(1, Dimensions=["A"]),
        event(1, Dimensions=[["absent"]]),
        event(1, Metrics=[{"Name": "absent"}]),
        event(1, Metrics=["M"]),
        event(1, Metrics=[{"Name": "M"}] * 101),
    ],
)
def test_what_is_not_of_the_form_is_a_line_like_any_other(message: str) -> None:
    assert list(points(message)) == []

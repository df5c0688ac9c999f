"""What a server refuses, told to a person: one line for each fault, none twice, and not without an end."""

from __future__ import annotations

import pytest

from steelyard.client.refusals import LONGEST_TEXT, message_of
from steelyard_runtime.contracts.error_formats import OWN, SYSTEM_ONE
from steelyard_runtime.errors import Detail, Kind, Problem


def problem(count: int) -> Problem:
    details = tuple(Detail(("decision", f"x{n}"), "is no field") for n in range(count))
    more = f" ({count - 1} more faults)" if count > 1 else ""
    return Problem(Kind.INVALID, f"decision.x0: is no field{more}", details=details)


@pytest.mark.parametrize("errors", [OWN, SYSTEM_ONE])
def test_each_fault_has_a_line_and_none_is_told_twice(errors):
    lines = message_of(errors.render(problem(15))[1]).splitlines()
    prefix = "body." if errors is SYSTEM_ONE else ""
    assert lines == ["15 faults:", *(f"- {prefix}decision.x{n}: is no field" for n in range(15))]


def test_a_single_fault_is_one_sentence():
    assert message_of(OWN.render(problem(1))[1]) == "decision.x0: is no field"


def test_many_faults_fit_on_a_screen():
    lines = message_of(OWN.render(problem(1000))[1]).splitlines()
    assert (lines[0], lines[-1], len(lines)) == ("1000 faults:", "- and 980 more", 22)


@pytest.mark.parametrize("body", ["x" * 100_000, {"error": "x" * 100_000}, {"what": "x" * 100_000}])
def test_a_stranger_s_page_is_not_printed_whole(body):
    told = message_of(body)
    assert len(told) < LONGEST_TEXT + 100
    assert told.endswith(" more characters)")


@pytest.mark.parametrize("detail", [[1, "x"], [{"loc": 1}], [{"loc": ["a"], "msg": None}], [None]])
def test_details_of_any_kind_are_told(detail):
    assert message_of({"detail": detail})

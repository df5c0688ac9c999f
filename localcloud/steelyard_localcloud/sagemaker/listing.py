"""The ``List*`` operations: filters and pages."""

from __future__ import annotations

from collections.abc import Iterable

from steelyard_localcloud.errors import not_emulated
from steelyard_localcloud.wire import Parameters

_KNOWN = {"NameContains", "StatusEquals", "MaxResults", "NextToken", "SortBy", "SortOrder"}
_DEFAULT_PAGE = 10


def page(operation: str, summaries: Iterable[Parameters], parameters: Parameters, *, key: str, name: str) -> Parameters:
    """One page of summaries.

    Args:
        operation: For the message when a filter is not emulated.
        summaries: All of them.
        parameters: The request's.
        key: Member of the answer that holds the list.
        name: Member of a summary that holds its name.
    """
    if unknown := sorted(set(parameters) - _KNOWN):
        raise not_emulated(f"{', '.join(unknown)} of {operation}")
    found = [summary for summary in summaries if parameters.get("NameContains", "") in summary[name]]
    if status := parameters.get("StatusEquals"):
        found = [summary for summary in found if summary.get("EndpointStatus") == status]
    by = name if parameters.get("SortBy") == "Name" else "CreationTime"
    found.sort(key=lambda summary: (summary[by], summary[name]), reverse=parameters.get("SortOrder") != "Ascending")
    start, size = int(parameters.get("NextToken", 0)), parameters.get("MaxResults", _DEFAULT_PAGE)
    answer: Parameters = {key: found[start : start + size]}
    if start + size < len(found):
        answer["NextToken"] = str(start + size)
    return answer

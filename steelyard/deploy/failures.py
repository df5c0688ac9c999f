"""The cause of a deployment that was taken back: CloudFormation's reason, and the alarms that went off meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from steelyard.aws.cloudformation import find_stack
from steelyard.aws.session import Aws, aws_errors
from steelyard.environments.schema import Environment

_ALARM = "AWS::CloudWatch::Alarm"
_CANCELLED = "cancelled"
_WENT_OFF = "to ALARM"


def newest_events(aws: Aws, environment: Environment) -> dict[str, str]:
    """Return the id of the newest event of each endpoint's stack that exists, by the stack's name.

    Raises:
        CommandError: AWS cannot be asked.
    """
    names = [environment.stack_name(f"Endpoint-{name}") for name in environment.endpoints]
    with aws_errors():
        return {name: next(_events(aws, name))["EventId"] for name in names if find_stack(aws, name) is not None}


def causes(aws: Aws, environment: Environment, *, before: Mapping[str, str]) -> list[str]:
    """Return a sentence for each endpoint whose stack has failed since, with the alarms that went off.

    Args:
        aws: Where to ask.
        environment: The environment.
        before: What :func:`newest_events` gave before the deployment.

    Raises:
        CommandError: AWS cannot be asked.
    """
    found = []
    for name in environment.endpoints:
        stack = environment.stack_name(f"Endpoint-{name}")
        if find_stack(aws, stack) is None:
            continue
        events = _since(aws, stack, before.get(stack))
        reasons = [
            reason.rstrip(".")
            for each in reversed(events)
            if each["ResourceStatus"].endswith("_FAILED")
            and (reason := each.get("ResourceStatusReason", ""))
            and _CANCELLED not in reason
        ]
        if not reasons:
            continue
        alarms = _alarms(aws, stack, events)
        said = f"; alarms that went off: {', '.join(alarms)}" if alarms else ""
        found.append(f"{environment.endpoint_name(name)}: {reasons[0]}{said}")
    return found


def _events(aws: Aws, stack: str) -> Iterator[Mapping[str, Any]]:
    """The events of a stack, the newest first."""
    for page in aws.client("cloudformation").get_paginator("describe_stack_events").paginate(StackName=stack):
        yield from page["StackEvents"]


def _since(aws: Aws, stack: str, last: str | None) -> list[Mapping[str, Any]]:
    events = []
    with aws_errors():
        for event in _events(aws, stack):
            if event["EventId"] == last:
                break
            events.append(event)
    return events


def _alarms(aws: Aws, stack: str, events: list[Mapping[str, Any]]) -> list[str]:
    """Names of the stack's alarms that went off since the oldest of the events.

    An alarm on the new instances is deleted when they are; CloudWatch keeps its history.
    """
    with aws_errors():
        resources = aws.client("cloudformation").describe_stack_resources(StackName=stack)["StackResources"]
        ours = {each.get("PhysicalResourceId") for each in (*resources, *events) if each["ResourceType"] == _ALARM}
        pages = aws.client("cloudwatch").get_paginator("describe_alarm_history")
        items = [
            each
            for page in pages.paginate(HistoryItemType="StateUpdate", StartDate=events[-1]["Timestamp"])
            for each in page["AlarmHistoryItems"]
        ]
    went_off = {each["AlarmName"] for each in items if each["HistorySummary"].endswith(_WENT_OFF)}
    return sorted(went_off & ours)

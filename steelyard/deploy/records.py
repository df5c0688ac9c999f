"""Records of decisions and feedback in the log of a deployed endpoint."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

from steelyard.aws.session import Aws, aws_errors, error_code
from steelyard.deploy.leftovers import ENDPOINTS
from steelyard.environments.schema import Environment
from steelyard_base.exit_codes import CommandError, ExitCode

EVENTS = ("decision", "feedback")
"""Values of ``event`` that make a line of the log a record."""
_PATTERN = " || ".join(f'($.event = "{event}")' for event in EVENTS)


def recorded_lines(
    aws: Aws, environment: Environment, endpoint: str, *, hours: float, until_hours: float = 0.0
) -> Iterator[str]:
    """Yield the records of an endpoint's last hours, in time's order.

    Args:
        aws: Where to ask.
        environment: The environment.
        endpoint: Name of the endpoint in the environment file.
        hours: How far back.
        until_hours: How far back the last of them is; until now unless given.

    Raises:
        CommandError: The period ends before it begins, there is no such endpoint or log, or AWS cannot be asked.
    """
    from botocore.exceptions import ClientError

    if endpoint not in environment.endpoints:
        known = ", ".join(sorted(environment.endpoints)) or "none"
        raise CommandError(
            f"there is no endpoint {endpoint!r} in the environment {environment.name!r}; it has {known}",
            code=ExitCode.USAGE,
        )
    if until_hours >= hours:
        raise CommandError(
            f"--hours is {hours:g} and --until {until_hours:g}: the records from {hours:g} hours ago until "
            f"{until_hours:g} hours ago are none",
            code=ExitCode.USAGE,
            hint="Make --until smaller than --hours.",
        )
    group = ENDPOINTS + environment.endpoint_name(endpoint)
    pages = aws.client("logs").get_paginator("filter_log_events")
    now = time.time()
    period = {name: int((now - back * 3600) * 1000) for name, back in (("startTime", hours), ("endTime", until_hours))}
    with aws_errors():
        try:
            for page in pages.paginate(logGroupName=group, **period, filterPattern=f"{{ {_PATTERN} }}"):
                for event in page["events"]:
                    if _is_record(event["message"]):
                        yield event["message"].rstrip("\n")
        except ClientError as error:
            if error_code(error) == "ResourceNotFoundException":
                raise CommandError(
                    f"there is no log group {group}",
                    hint=f"Deploy the endpoint: steelyard up --env {environment.name} (make run for the local cloud).",
                ) from error
            raise


def _is_record(line: str) -> bool:
    try:
        value = json.loads(line)
    except ValueError:
        return False
    return isinstance(value, dict) and value.get("event") in EVENTS

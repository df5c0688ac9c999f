"""Watches the alarms of an environment's endpoints."""

from __future__ import annotations

import time
from collections.abc import Mapping

from steelyard.aws.session import Aws, aws_errors
from steelyard.environments.schema import Environment
from steelyard_base.exit_codes import CommandError


def alarms_on(aws: Aws, environment: Environment) -> Mapping[str, str]:
    """Return the alarms of an environment's endpoints that are on, with what they mean, by name.

    Raises:
        CommandError: CloudWatch cannot be asked.
    """
    with aws_errors():
        pages = aws.client("cloudwatch").get_paginator("describe_alarms")
        prefix = environment.stack_name("Endpoint-")
        found = [each for page in pages.paginate(AlarmNamePrefix=prefix) for each in page["MetricAlarms"]]
    return {each["AlarmName"]: each.get("AlarmDescription", "") for each in found if each["StateValue"] == "ALARM"}


def watch(aws: Aws, environment: Environment, *, minutes: float, poll_s: float = 10.0) -> None:
    """Look at the alarms until the time is over; once at the least.

    Args:
        aws: Where to ask.
        environment: The environment.
        minutes: For how long.
        poll_s: Time from one look to the next, in seconds.

    Raises:
        CommandError: One is on; with its name and what it means.
    """
    until = time.monotonic() + minutes * 60
    while True:
        if found := alarms_on(aws, environment):
            raise CommandError(
                f"{len(found)} of the alarms of {environment.name} are on:\n"
                + "\n".join(f"- {name}: {said}" for name, said in sorted(found.items())),
                hint=f"Back to the release of before: steelyard release rollback --env {environment.name}",
            )
        left_s = until - time.monotonic()
        if left_s <= 0:
            return
        time.sleep(min(poll_s, left_s))

"""``steelyard records``: what a deployed endpoint recorded."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from steelyard.commands import completion, options
from steelyard.environments.files import DEFAULT, load_environment
from steelyard.terminal import console


def command(
    endpoint: Annotated[
        str, typer.Argument(help="Name of the endpoint in the environment file.", autocompletion=completion.endpoints)
    ],
    *,
    env: options.EnvironmentName = DEFAULT,
    hours: Annotated[
        float, typer.Option("--hours", min=0.01, max=87_600, help="How far back from now, in hours.")
    ] = 24.0,
    until: Annotated[
        float, typer.Option("--until", min=0.0, max=87_600, help="Up to so many hours ago; until now unless given.")
    ] = 0.0,
) -> None:
    """Print the decision records and the feedback in the log of a deployed endpoint, one JSON line each.

    The endpoint writes them where STEELYARD_DECISION_RECORDS = "log" stands in its environment. They are what
    steelyard replay and steelyard decision corrections read.
    """
    from steelyard.aws.session import Aws
    from steelyard.deploy.records import recorded_lines

    environment = load_environment(env)
    count = 0
    for line in recorded_lines(Aws(environment.region), environment, endpoint, hours=hours, until_hours=until):
        sys.stdout.write(line + "\n")
        count += 1
    period = f"the last {hours:g} hours" if not until else f"{hours:g} to {until:g} hours ago"
    console.note(f"{count} records of {period}")

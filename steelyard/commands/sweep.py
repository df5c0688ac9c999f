"""``steelyard sweep``: remove what AWS makes again after an environment was destroyed."""

from __future__ import annotations

from typing import Annotated

import typer

from steelyard.aws.session import Aws
from steelyard.commands.options import EnvironmentName
from steelyard.deploy import leftovers
from steelyard.environments.files import DEFAULT, load_environment
from steelyard.models.storage import human_size
from steelyard.terminal import console


def command(
    *,
    env: EnvironmentName = DEFAULT,
    yes: Annotated[bool, typer.Option("--yes", help="Remove them; without it they are only listed.")] = False,
) -> None:
    """List the log groups that AWS made again after this environment's stacks were destroyed, and remove them.

    Only what is named like ours, belongs to no stack, and carries no tag of a stack that kept it on purpose.
    """
    environment = load_environment(env)
    aws = Aws(environment.region)
    groups = leftovers.log_groups(aws, environment)
    if groups:
        console.rows(
            [
                (
                    human_size(group.bytes),
                    group.name,
                    f"kept: {group.kept_because}" if group.kept_because else "left over",
                )
                for group in groups
            ]
        )
    left = [group for group in groups if group.kept_because is None]
    if not left:
        console.note(f"nothing of {env} is left over in account {aws.account()}, {aws.region}")
        return
    if not yes:
        console.note(f"{len(left)} to remove; nothing was removed: add --yes")
        return
    for group in left:
        leftovers.remove(aws, group)
    console.note(f"{len(left)} removed")

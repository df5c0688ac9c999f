"""``steelyard sweep``: find, and remove, what an environment left outside its stacks."""

from __future__ import annotations

from typing import Annotated

import typer

from steelyard.aws.session import Aws
from steelyard.commands.options import EnvironmentName
from steelyard.deploy import kept, leftovers
from steelyard.deploy.kept import Kept
from steelyard.environments.files import DEFAULT, load_environment
from steelyard.environments.schema import Environment
from steelyard.models.storage import human_size
from steelyard.terminal import console
from steelyard_base.exit_codes import CommandError, ExitCode


def command(
    *,
    env: EnvironmentName = DEFAULT,
    delete: Annotated[
        list[str] | None,
        typer.Option("--delete", help="ARN of a kept resource to delete, with all that is in it. Repeat for more."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove them; without it they are only listed.")] = False,
) -> None:
    """List what this environment left outside its stacks, and remove what AWS made again by itself.

    AWS makes log groups again when a container writes its last words. Buckets, repositories, keys and log groups with
    the environment's tag and without a stack were kept by removal_policy = "retain", or by a change of a name; they go
    only when --delete names them.
    """
    environment = load_environment(env)
    aws = Aws(environment.region)
    if delete:
        _delete(aws, environment, delete, yes=yes)
        return
    groups = leftovers.log_groups(aws, environment)
    rows = [
        (human_size(group.bytes), group.name, f"kept: {group.kept_because}" if group.kept_because else "left over")
        for group in groups
    ]
    listed = {group.name for group in groups}
    alone = [each for each in kept.kept_resources(aws, environment) if each.name not in listed]
    rows += [(each.service, each.name, f"kept without a stack: {each.arn}") for each in alone]
    if rows:
        console.rows(rows)
    left = [group for group in groups if group.kept_because is None]
    if left and not yes:
        console.note(f"{len(left)} to remove; nothing was removed: add --yes")
    elif left:
        for group in left:
            leftovers.remove(aws, group)
        console.note(f"{len(left)} removed")
    elif not alone:
        console.note(f"nothing of {env} is left over in account {aws.account()}, {aws.region}")
    if alone:
        console.note(f"{len(alone)} kept without a stack; to delete one with all that is in it: --delete ARN")


def _delete(aws: Aws, environment: Environment, arns: list[str], *, yes: bool) -> None:
    """Delete kept resources by ARN.

    Raises:
        CommandError: One is not among them; nothing is deleted then.
    """
    known = {each.arn: each for each in kept.kept_resources(aws, environment)}
    if unknown := [arn for arn in arns if arn not in known]:
        raise CommandError(
            f"{unknown[0]} is not a resource of {environment.name} that stands outside its stacks; there are "
            f"{', '.join(known) or 'none'}",
            code=ExitCode.USAGE,
        )
    for arn in dict.fromkeys(arns):
        chosen: Kept = known[arn]
        if not yes and not typer.confirm(f"Delete {chosen.service} {chosen.name} and all that is in it?", err=True):
            console.note(f"{chosen.name} stays")
            continue
        console.note(kept.delete(aws, chosen))

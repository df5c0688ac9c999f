"""``steelyard down``: destroy what ``steelyard up`` deployed. ``make down`` calls it."""

from __future__ import annotations

import shutil
from typing import Annotated

import typer

from steelyard import console, deployment, leftovers, local_cloud
from steelyard.aws import Aws, delete_stack, stacks_of
from steelyard.cdk import Cdk
from steelyard.commands.cloud import Home
from steelyard.commands.release import EnvironmentName, step
from steelyard.commands.up import Local, ReleaseName, reference
from steelyard.environment import DEFAULT, Environment, load_environment
from steelyard.exit_codes import CommandError
from steelyard.releases.manifest import SAMPLE


def command(
    *,
    env: EnvironmentName = DEFAULT,
    release: ReleaseName = None,
    local: Local = False,
    home: Home = local_cloud.HOME,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Destroy an environment with the CDK, remove what AWS makes again, and check that nothing is left.

    With --local the local cloud is stopped afterwards, and its folder removed.
    """
    environment = load_environment(env)
    if not local:
        _destroy(environment, Cdk(environment=env, release=reference(release or SAMPLE)), ask=not yes)
        return
    if (cloud := local_cloud.running(home)) is not None:
        with local_cloud.reached(cloud.environment()):
            _destroy(environment, Cdk(environment=env, release=reference(release or SAMPLE)), ask=False)
        step("the local cloud")
    ran = local_cloud.stop(home)
    console.note(f"the local cloud has stopped; {home} is removed" if ran else f"no local cloud runs in {home}")


def _delete_removed_endpoints(aws: Aws, environment: Environment, cdk: Cdk, *, ask: bool) -> None:
    """Delete the stacks of endpoints that the environment no longer has: they import from what the CDK destroys."""
    prefix = environment.stack_name("Endpoint-")
    removed = [each for each in deployment.undeclared(aws, environment, cdk) if each.name.startswith(prefix)]
    if not removed:
        return
    names = ", ".join(each.name for each in removed)
    if ask and not typer.confirm(
        f"Delete {names}, which environments/{environment.name}.toml no longer has?", err=True
    ):
        raise CommandError(
            f"nothing was destroyed: {names} must go before the rest",
            hint=f"Put the endpoint back into environments/{environment.name}.toml, or run this again.",
        )
    for stack in removed:
        step(f"deleting {stack.name}, which environments/{environment.name}.toml no longer has")
        delete_stack(aws, stack)


def _destroy(environment: Environment, cdk: Cdk, *, ask: bool) -> None:
    aws = Aws(environment.region)
    if stacks_of(aws, environment):
        step(f"cdk synth: environment {environment.name}")
        cdk.synth()
        _delete_removed_endpoints(aws, environment, cdk, ask=ask)
        step("cdk destroy --all")
        cdk.destroy(ask=ask)
    if left := stacks_of(aws, environment):
        raise CommandError(
            f"these stacks are left: {', '.join(f'{name} ({stack.status})' for name, stack in sorted(left.items()))}",
            hint="An environment that retains its stacks protects them from deletion; see docs/how-to/local-cloud.md.",
        )
    for group in leftovers.log_groups(aws, environment):
        if group.kept_because is None:
            leftovers.remove(aws, group)
            console.note(f"removed {group.name}, which AWS had made again")
        else:
            console.note(f"kept {group.name}: {group.kept_because}")
    shutil.rmtree(cdk.assembly, ignore_errors=True)
    console.note(f"no stack of {environment.name} is left in account {aws.account()}, {aws.region}")

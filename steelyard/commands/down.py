"""``steelyard down``: destroy what ``steelyard up`` deployed. ``make down`` calls it."""

from __future__ import annotations

import shutil
from typing import Annotated

import typer

from steelyard.aws.cloudformation import delete_stack
from steelyard.aws.session import Aws
from steelyard.cdk.program import Cdk, release_reference
from steelyard.commands.options import EnvironmentName, Home, Local, ReleaseName
from steelyard.deploy import deployment, leftovers, local_cloud
from steelyard.deploy.endpoints import stacks_of
from steelyard.environments.files import DEFAULT, load_environment
from steelyard.environments.schema import Environment
from steelyard.releases.manifest import SAMPLE
from steelyard.terminal import console
from steelyard_base.exit_codes import CommandError


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
        _destroy(environment, Cdk(environment=env, release=release_reference(release or SAMPLE)), ask=not yes)
        return
    if (cloud := local_cloud.running(home)) is not None:
        with local_cloud.reached(cloud.environment()):
            _destroy(environment, Cdk(environment=env, release=release_reference(release or SAMPLE)), ask=False)
        console.step("the local cloud")
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
        console.step(f"deleting {stack.name}, which environments/{environment.name}.toml no longer has")
        delete_stack(aws, stack)


def _destroy(environment: Environment, cdk: Cdk, *, ask: bool) -> None:
    aws = Aws(environment.region)
    if stacks_of(aws, environment):
        console.step(f"cdk synth: environment {environment.name}")
        cdk.synth()
        _delete_removed_endpoints(aws, environment, cdk, ask=ask)
        console.step("cdk destroy --all")
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

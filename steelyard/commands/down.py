"""``steelyard down``: destroy what ``steelyard up`` deployed. ``make down`` calls it."""

from __future__ import annotations

from typing import Annotated

import typer

from steelyard.aws.session import Aws
from steelyard.cdk.program import Cdk, file_reference
from steelyard.commands.options import EnvironmentName, Home, Local, ReleaseName
from steelyard.deploy import local_cloud
from steelyard.deploy.endpoints import stacks_of
from steelyard.deploy.removal import destroy
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
    cdk = Cdk(environment=file_reference(env), release=file_reference(release or SAMPLE))
    if not local:
        _destroy(environment, cdk, ask=not yes)
        return
    if (cloud := local_cloud.running(home)) is not None:
        with local_cloud.reached(cloud.environment()):
            _destroy(environment, cdk, ask=False)
        console.step("the local cloud")
    ran = local_cloud.stop(home)
    console.note(f"the local cloud has stopped; {home} is removed" if ran else f"no local cloud runs in {home}")


def _destroy(environment: Environment, cdk: Cdk, *, ask: bool) -> None:
    aws = Aws(environment.region)
    stacks = sorted(stacks_of(aws, environment))
    where = f"account {aws.account()}, {aws.region}"
    if ask and stacks and not typer.confirm(f"Destroy {environment.name} in {where}: {', '.join(stacks)}?", err=True):
        raise CommandError("nothing was destroyed", hint="Answer y, or pass --yes, to destroy it.")
    destroy(aws, environment, cdk, console.step, note=console.note)
    console.note(f"no stack of {environment.name} is left in {where}")

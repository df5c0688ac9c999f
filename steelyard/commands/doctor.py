"""``steelyard doctor``: what this machine can run, or whether an account is ready for an environment."""

from __future__ import annotations

from typing import Annotated

import typer

from steelyard.aws.session import Aws
from steelyard.commands import completion
from steelyard.commands.options import Home, Local, Prices
from steelyard.deploy import local_cloud
from steelyard.deploy.preflight import check_account, known_prices
from steelyard.deploy.prices import read_prices
from steelyard.environments.files import load_environment
from steelyard.serving.machine import check_machine
from steelyard.terminal.checks import show
from steelyard_base.exit_codes import CommandError, ExitCode
from steelyard_runtime.settings import Settings


def command(
    *,
    model: Annotated[
        str,
        typer.Option(
            "--model",
            envvar="STEELYARD_MODEL",
            help="The model you want to serve, by name or path.",
            autocompletion=completion.models,
        ),
    ] = Settings.model_fields["model"].default,
    env: Annotated[
        str | None,
        typer.Option("--env", help="Look at the account of this environment instead of this machine."),
    ] = None,
    local: Local = False,
    prices: Prices = None,
    home: Home = local_cloud.HOME,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per check and line.")] = False,
) -> None:
    """Check Python, llama.cpp, CPU, memory, GPU, disk and model; with --env, an account before anything is made in it.

    With --env: whose credentials these are, the CDK's bootstrap, permissions by simulation, quotas of instances for the
    first deployment and for updates, zones, and the cost in a month. Exit code 1 when something is in the way.
    """
    if env is None:
        if local or prices is not None:
            raise CommandError("--local and --prices are about an environment: name it with --env", code=ExitCode.USAGE)
        show(check_machine(model), as_json=as_json)
        return
    environment = load_environment(env)
    given = None if prices is None else read_prices(prices)
    with local_cloud.reached(local_cloud.require(home).environment() if local else {}):
        aws = Aws(environment.region)
        known = known_prices(aws, environment) if given is None else given
        show(check_account(aws, environment, known), as_json=as_json)

"""Prints what surrounds a deployment: how the account stands before it, and each endpoint's answer after it."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

from steelyard.aws.session import Aws
from steelyard.client.sagemaker import EndpointClient
from steelyard.deploy.endpoints import DeployedEndpoint
from steelyard.deploy.preflight import check_account, known_prices
from steelyard.environments.schema import Environment
from steelyard.releases.manifest import Release
from steelyard.releases.served import all_served
from steelyard.terminal import console, examples
from steelyard.terminal.checks import show
from steelyard_base.checks import Level

EXAMPLE_S = 120.0


def look_at(aws: Aws, environment: Environment, *, local: bool, prices: Mapping[str, Decimal] | None = None) -> None:
    """Print how the account stands, and end here when something is in the way; nothing has been made yet.

    Of a local cloud, which costs nothing, only what is in the way is printed.

    Args:
        aws: Where to look.
        environment: What is to be deployed.
        local: Whether it is a local cloud.
        prices: USD per hour by instance type; AWS's Price List unless given.
    """
    console.step("looking at the account")
    if prices is None:
        prices = {} if local else known_prices(aws, environment)
    found = list(check_account(aws, environment, prices))
    show([each for each in found if not local or each.level is Level.FAILED])


def ask_examples(
    aws: Aws, environment: Environment, release: Release, endpoints: Mapping[str, DeployedEndpoint]
) -> None:
    """Ask each endpoint an example and print the answer.

    Raises:
        CommandError: One does not answer.
    """
    served = all_served(environment, release)
    for name, endpoint in endpoints.items():
        client = EndpointClient(endpoint.name, runtime=aws.runtime(EXAMPLE_S), timeout_s=EXAMPLE_S)
        if endpoint.kind == "decision":
            there = [each.name for each in served[name].decisions if each.name.startswith(f"{examples.REGISTERED}@")]
            registered = examples.REGISTERED if there else None
            examples.ask_decision(client, title=f"a decision by {endpoint.name}", registered=registered)
        else:
            examples.ask_chat(client, title=f"a chat with {endpoint.name}")

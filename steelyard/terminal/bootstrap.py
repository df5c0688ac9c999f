"""Asks before the CDK makes its roles in an account, one of which may do anything."""

from __future__ import annotations

import sys

import typer

from steelyard.aws.session import Aws
from steelyard.deploy.deployment import is_bootstrapped
from steelyard.environments.schema import Environment
from steelyard.releases.checks import LOCAL_ACCOUNT
from steelyard_base.exit_codes import CommandError, ExitCode


def agree_to_bootstrap(aws: Aws, environment: Environment) -> None:
    """Ask, unless the account is bootstrapped already, or is a local cloud's.

    Raises:
        CommandError: There is no terminal to ask on, or the answer was no.
    """
    account = aws.account()
    if account == LOCAL_ACCOUNT or is_bootstrapped(aws, environment):
        return
    agreed = sys.stdin.isatty() and typer.confirm(
        f"The CDK is not bootstrapped in {account}, {aws.region}. It makes a bucket and roles there, one of them with "
        "administrator rights. Go on?"
    )
    if not agreed:
        raise CommandError(
            f"the CDK is not bootstrapped in account {account}, region {aws.region}",
            code=ExitCode.USAGE,
            hint="Run this again with --bootstrap, or have it done as your account demands: npx cdk bootstrap",
        )

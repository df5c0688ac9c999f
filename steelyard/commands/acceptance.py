"""``steelyard acceptance``: the whole life of an environment in an account, and what AWS answered."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from steelyard.aws.session import Aws
from steelyard.cdk.nodejs import ROOT
from steelyard.cdk.program import Cdk, file_reference
from steelyard.commands.options import EnvironmentName, Home, Local, Prices, ReleaseName
from steelyard.deploy import local_cloud
from steelyard.deploy.acceptance import STEPS, Result, Step, Trial, run, trial_of, write_report
from steelyard.deploy.preflight import check_account, demands, known_prices
from steelyard.deploy.prices import read_prices
from steelyard.deploy.supplies import FromCodeBuild, FromThisMachine
from steelyard.environments.files import DEFAULT, load_environment, write_environment
from steelyard.environments.schema import Environment
from steelyard.releases.compatibility import check_release
from steelyard.releases.manifest import SAMPLE, load_release
from steelyard.terminal import console
from steelyard.terminal.build_log import build_log
from steelyard.terminal.checks import show
from steelyard_base.exit_codes import CommandError, ExitCode

HOURS = 3
"""Longest that all steps are expected to take, for the estimate of the cost."""

OUT = ROOT / ".run" / "acceptance"


def command(
    *,
    env: EnvironmentName = DEFAULT,
    release: ReleaseName = None,
    local: Local = False,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", help="A step to take, with the first deployment and the removal. Repeat for more."),
    ] = None,
    other_type: Annotated[
        str | None, typer.Option("--other-type", help="Instance type that a scaled endpoint is changed to.")
    ] = None,
    prices: Prices = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for report.json and report.md.")] = OUT,
    home: Home = local_cloud.HOME,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before it costs money.")] = False,
) -> None:
    """Deploy a trial copy of an environment, change it, break it, take it back, remove it; report what AWS answered.

    Steps: deploy, policies, again, logs, quota, update, broken-update, rollback, other-types, vpc, remove. The copy is
    called NAME-trial, shares nothing with the environment but its images, and is removed at the end whatever happens.
    Exit code 1 when a step failed.
    """
    steps = _chosen(only or [])
    environment = load_environment(env)
    if release is None and not local:
        raise CommandError(
            "no release is named, and the sample is for the local cloud only",
            code=ExitCode.USAGE,
            hint="Name one that was built for the environment: --release ID",
        )
    named = release or SAMPLE
    manifest = load_release(named)
    given = None if prices is None else read_prices(prices)
    cloud = local_cloud.require(home) if local else None
    with local_cloud.reached(cloud.environment() if cloud else {}):
        aws = Aws(environment.region)
        copy = trial_of(environment, account=aws.account(), sample=manifest.sample)
        check_release(copy, manifest)
        known = {} if local else (known_prices(aws, copy) if given is None else given)
        show(check_account(aws, copy, known))
        if not local:
            console.note(cost_sentence(copy, known))
            if not yes and not typer.confirm(f"Deploy {copy.name} in account {aws.account()}, {aws.region}?", err=True):
                raise CommandError("nothing was deployed", hint="Answer y, or pass --yes.")

        def cdk(wanted: Environment) -> Cdk:
            path = write_environment(wanted, out / "environments")
            return Cdk(
                environment=str(path.resolve()), release=file_reference(named), assembly=(out / "cdk.out").resolve()
            )

        supplies = (
            FromThisMachine(cloud, progress=console.pull_bar)
            if cloud is not None and manifest.sample
            else FromCodeBuild(copy, watch=build_log)
        )
        trial = Trial(
            aws=aws,
            environment=copy,
            release=manifest,
            cdk=cdk,
            supplies=supplies,
            say=console.step,
            other_type=other_type,
        )
        results = run(trial, steps)
        where = f"account {aws.account()}, {aws.region}"
    _print(results)
    for path in write_report(results, out, where=where):
        console.note(f"{path}")
    if any(each.state == "failed" for each in results):
        raise typer.Exit(ExitCode.FAILED)


def cost_sentence(environment: Environment, prices: dict[str, Decimal]) -> str:
    """Return what the instances may cost at the most: both fleets at full scale, for as long as it may take."""
    wanted = {name: demand.most for name, demand in demands(environment).items() if not demand.fallback}
    if unknown := sorted(wanted.keys() - prices.keys()):
        return f"it may take {HOURS} hours; no price of {', '.join(unknown)} is known, so neither is the cost"
    most = sum((count * prices[name] for name, count in wanted.items()), Decimal(0)) * HOURS
    return f"it may take {HOURS} hours, and cost {most:,.2f} USD for instances at the most"


def _chosen(only: list[str]) -> tuple[Step, ...]:
    known = [step.name for step in STEPS]
    if unknown := [name for name in only if name not in known]:
        raise CommandError(
            f"there is no step {unknown[0]!r}; there are {', '.join(known)}",
            code=ExitCode.USAGE,
            hint="The removal is taken in any case.",
        )
    return tuple(step for step in STEPS if not only or step.name in (*only, "deploy"))


def _print(results: list[Result]) -> None:
    styles = {"passed": "green", "failed": "bold red", "skipped": "yellow"}
    console.rows(
        [
            (
                Text(each.state, style=styles[each.state]),
                Text(each.step, style="bold"),
                f"{each.answered}{chr(10) + 'the local cloud would have answered otherwise' if each.differs else ''}",
            )
            for each in results
        ]
    )

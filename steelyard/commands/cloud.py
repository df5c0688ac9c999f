"""``steelyard cloud``: a local AWS cloud on this machine."""

from __future__ import annotations

import shlex
import sys

import typer

from steelyard.commands.app import App
from steelyard.commands.options import Home, Port
from steelyard.deploy import local_cloud
from steelyard.terminal import console
from steelyard_base.exit_codes import CommandError, ExitCode

app = App(help="A local AWS cloud on this machine: start, look, use, stop.")

_STOP = "case $- in *i*) false ;; *) exit 1 ;; esac\n"


@app.command("start")
def start(*, home: Home = local_cloud.HOME, port: Port = 0) -> None:
    """Start an empty local cloud, which runs on after this command."""
    if (details := local_cloud.running(home)) is None:
        details = local_cloud.start(home, port=port)
    else:
        console.note("it runs already")
    console.out.print(details.url, highlight=False, markup=False, soft_wrap=True)


@app.command("status")
def status(*, home: Home = local_cloud.HOME) -> None:
    """Say where the local cloud is and which endpoints run in it. Exit code 1 when none runs."""
    if (details := local_cloud.running(home)) is None:
        console.out.print(f"no local cloud runs in {home}", highlight=False, markup=False, soft_wrap=True)
        raise typer.Exit(ExitCode.FAILED)
    endpoints = len(local_cloud.package().endpoint_processes(home))
    facts = (
        f"{details.url}, account {details.account}, region {details.region}, process {details.pid}",
        f"{endpoints} endpoint process{'' if endpoints == 1 else 'es'}",
        f"certificate authority {details.ca_bundle}",
        f"logs {home / 'emulator.log'} and {home / 'logs'}",
    )
    console.out.print("\n".join(facts), highlight=False, markup=False, soft_wrap=True)


@app.command("env")
def env(*, home: Home = local_cloud.HOME) -> None:
    """Print the variables that send the AWS CLI, boto3 and the CDK to the local cloud, for: eval "$(... env)".

    Where no local cloud runs, what is printed ends the script that evaluates it, so that its next line does not go to
    AWS; an interactive shell continues, with the status 1.
    """
    try:
        details = local_cloud.require(home)
    except CommandError:
        if not sys.stdout.isatty():
            sys.stdout.write(_STOP)
        raise
    for name, value in details.environment().items():
        sys.stdout.write(f"export {name}={shlex.quote(value)}\n")


@app.command("stop")
def stop(*, home: Home = local_cloud.HOME) -> None:
    """Stop the local cloud, and remove its folder. Everything in it is gone."""
    ran = local_cloud.stop(home)
    console.note(f"the local cloud in {home} has stopped" if ran else f"no local cloud ran in {home}")

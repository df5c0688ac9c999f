"""All commands of ``steelyard``."""

from __future__ import annotations

from typing import Annotated

import typer

from steelyard.commands import (
    acceptance,
    bench,
    chat,
    cloud,
    corrections,
    decide,
    decision,
    demo,
    doctor,
    down,
    evaluation,
    invoke,
    model,
    promotion,
    records,
    release,
    replay,
    serve,
    sweep,
    up,
)
from steelyard.commands.app import App
from steelyard.terminal import console

app = App(name="steelyard", help="Decisions and chat from a GGUF model, on your machine and on Amazon SageMaker AI.")
app.command("serve")(serve.command)
app.command("decide")(decide.command)
app.command("chat")(chat.command)
app.add_typer(model.app, name="model")
decision.app.command("evaluate")(evaluation.evaluate)
decision.app.command("report")(evaluation.report)
decision.app.command("import")(evaluation.import_cases)
decision.app.command("corrections")(corrections.command)
decision.app.command("drift")(evaluation.drift)
app.add_typer(decision.app, name="decision")
app.command("doctor")(doctor.command)
app.add_typer(bench.app, name="bench")
app.command("demo")(demo.command)
app.command("up")(up.command)
app.command("invoke")(invoke.command)
app.command("down")(down.command)
app.command("records")(records.command)
app.command("replay")(replay.command)
app.command("sweep")(sweep.command)
app.command("acceptance")(acceptance.command)
release.app.command("promote")(promotion.promote)
release.app.command("rollback")(promotion.rollback)
release.app.command("watch")(promotion.watch)
release.app.command("log")(promotion.log)
app.add_typer(release.app, name="release")
app.add_typer(cloud.app, name="cloud")


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        console.out.print(version("steelyard"))
        raise typer.Exit


@app.callback()
def _steelyard(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Decisions and chat from a GGUF model, on your machine and on Amazon SageMaker AI."""

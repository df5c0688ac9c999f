"""``switchyard model``: what is in the catalogue, and on this machine."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from switchyard import console
from switchyard.exit_codes import CommandError, ExitCode
from switchyard.models import storage
from switchyard.models.catalogue import catalogue, find
from switchyard.models.pull import pull as pull_model

app = typer.Typer(help="The pinned models: list, fetch, verify.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="A name of the catalogue; see: switchyard model list")]


@app.command("list")
def list_models(
    *, as_json: Annotated[bool, typer.Option("--json", help="One JSON object per model and line.")] = False
) -> None:
    """List the catalogue, and what of it is on this machine."""
    table = Table(show_edge=False)
    for heading in ("name", "size", "here", "licence", "about"):
        table.add_column(heading, overflow="fold")
    for entry in catalogue().values():
        size, found = entry.file.size, storage.state(entry)
        if as_json:
            facts = {
                "name": entry.name,
                "size": size,
                "state": found.value,
                "path": str(storage.model_path(entry)),
                "sha256": entry.file.sha256,
                "licence": entry.licence.model_dump(mode="json"),
                "summary": entry.summary,
            }
            sys.stdout.write(json.dumps(facts) + "\n")
        else:
            shown = "unknown" if size is None else storage.human_size(size)
            licence = f"{entry.licence.name} ({entry.licence.url})"
            table.add_row(*(Text(cell) for cell in (entry.name, shown, found.value, licence, entry.summary)))
    if not as_json:
        console.out.print(table)


@app.command()
def pull(name: Name) -> None:
    """Fetch a model, check its sha256 and keep it in the cache. An interrupted download goes on where it stopped."""
    entry = find(name)
    here = storage.state(entry) is storage.State.VERIFIED
    with console.pull_bar(entry.name) as bar:
        path = pull_model(entry, bar)
    console.note(
        f"{entry.name} {'was already here' if here else 'is here'}, sha256 verified. Licence: {entry.licence.url}"
    )
    sys.stdout.write(f"{path}\n")


@app.command()
def verify(
    names: Annotated[
        list[str] | None, typer.Argument(help="Names of the catalogue; without one, all that are here.")
    ] = None,
) -> None:
    """Read models again from the disk and compare their sha256. Exit code 5 when one is missing or differs."""
    entries = (
        [find(name) for name in names]
        if names
        else [e for e in catalogue().values() if storage.model_path(e).is_file()]
    )
    if not entries:
        console.note("no model of the catalogue is on this machine")
    worst = ExitCode.OK
    for entry in entries:
        with console.pull_bar(entry.name) as bar:
            total = entry.file.size
            done = 0

            def advance(count: int, bar: console.PullBar = bar, total: int | None = total) -> None:
                nonlocal done
                done += count
                bar.step("verifying", done, total)

            try:
                storage.verify(entry, advance)
            except CommandError as error:
                worst = error.code
                console.fail(error)
                continue
        console.out.print(f"{entry.name}: ok", highlight=False)
    if worst is not ExitCode.OK:
        raise typer.Exit(worst)

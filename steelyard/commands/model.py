"""``steelyard model``: the pinned models, from the catalogue to this machine and on to an artifact bucket."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from steelyard.commands import completion
from steelyard.commands.app import App
from steelyard.models import storage
from steelyard.models.catalogue import CatalogueEntry, catalogue, find
from steelyard.models.pull import pull as pull_model
from steelyard.terminal import console
from steelyard_base.exit_codes import CommandError, ExitCode

app = App(help="The pinned models: list, fetch, verify, package, publish.")
Name = Annotated[
    str, typer.Argument(help="A name of the catalogue; see: steelyard model list", autocompletion=completion.models)
]
Archive = Annotated[bool, typer.Option("--archive", help="One model.tar.gz instead of the files themselves.")]


@app.command("list")
def list_models(
    *, as_json: Annotated[bool, typer.Option("--json", help="One JSON object per model and line.")] = False
) -> None:
    """List the catalogue, and what of it is on this machine."""
    rows = []
    for entry in catalogue().values():
        size, found = _size(entry), storage.state(entry)
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
            rows.append((entry.name, shown, found.value, entry.licence.name, entry.summary))
    if not as_json:
        console.rows(rows, heads=("name", "size", "here", "licence", "about"))


def _size(entry: CatalogueEntry) -> int | None:
    sizes = [file.size for file in entry.files if file.size is not None]
    return sum(sizes) if len(sizes) == len(entry.files) else None


@app.command()
def show(
    model: Annotated[
        str, typer.Argument(help="A name of the catalogue, or a GGUF file.", autocompletion=completion.models)
    ],
) -> None:
    """Print what a model's file says of itself, as the [claims] of a catalogue entry."""
    from steelyard.models.claims import check_claims, show_file

    path = storage.as_path(model)
    facts, warnings = check_claims(find(model)) if path is None else show_file(path)
    claims = {
        "architecture": facts.architecture,
        "quantization": facts.quantization,
        "context_length": facts.context_length,
        "tokenizer": facts.tokenizer,
        "chat_template_sha256": facts.chat_template_sha256,
    }
    _tell_warnings(warnings)
    lines = ["[claims]", *(f"{key} = {json.dumps(value)}" for key, value in claims.items() if value is not None)]
    sys.stdout.write("\n".join(lines) + "\n")


@app.command()
def pull(name: Name) -> None:
    """Fetch a model, check its sha256 and keep it in the cache. An interrupted download continues where it stopped."""
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
        list[str] | None,
        typer.Argument(
            help="Names of the catalogue; without one, all that are here.", autocompletion=completion.models
        ),
    ] = None,
) -> None:
    """Read models again from the disk: their sha256, and whether the files say of themselves what the catalogue claims.

    Exit code 5 when one is missing or differs.
    """
    from steelyard.models.claims import check_claims

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
            total = _size(entry)
            done = 0

            def advance(count: int, bar: console.PullBar = bar, total: int | None = total) -> None:
                nonlocal done
                done += count
                bar.step("verifying", done, total)

            try:
                storage.verify(entry, advance)
                facts, warnings = check_claims(entry)
            except CommandError as error:
                worst = error.code
                console.fail(error)
                continue
        _tell_warnings(warnings)
        said = ", ".join(filter(None, (facts.architecture, facts.quantization)))
        console.out.print(Text(f"{entry.name}: ok ({said})"), soft_wrap=True)
    if worst is not ExitCode.OK:
        raise typer.Exit(worst)


@app.command()
def package(
    name: Name,
    *,
    to: Annotated[Path, typer.Option("--to", help="The folder to write; it must not exist yet, or be empty.")],
    archive: Archive = False,
) -> None:
    """Write a pulled model as an endpoint gets it: its files, or model.tar.gz, and model-manifest.json.

    The same model gives the same bytes each time, on every machine. Prints the sha256 of the manifest.
    """
    from steelyard.models.package import package as write_package

    entry = find(name)
    with console.pull_bar(entry.name) as bar:
        made = write_package(entry, to, archive=archive, progress=bar)
    _tell_warnings(list(made.warnings))
    console.note(f"{entry.name} is in {to}: {storage.human_size(made.manifest.total_bytes)}, with model-manifest.json")
    sys.stdout.write(f"{made.sha256}\n")


@app.command()
def push(
    name: Name,
    *,
    bucket: Annotated[str, typer.Option("--bucket", help="Name of the artifact bucket.")],
    region: Annotated[
        str,
        typer.Option(
            "--region", envvar=["AWS_REGION", "AWS_DEFAULT_REGION"], help="The bucket's region.", show_envvar=True
        ),
    ],
    archive: Archive = False,
) -> None:
    """Publish a pulled model to an artifact bucket, below a prefix that its manifest's hash names.

    Nothing is ever replaced: a model that is there already is compared. Prints MODEL_KEY=... and
    MODEL_MANIFEST_SHA256=... for a shell to read.
    """
    from steelyard.aws.session import Aws
    from steelyard.models.publisher import publish

    entry = find(name)
    with console.pull_bar(entry.name) as bar:
        done = publish(
            entry.name, bucket=bucket, s3=Aws(region).client("s3"), archive=archive, progress=bar, warn=console.note
        )
    console.note(f"{entry.name} is at s3://{bucket}/{done.key}")
    sys.stdout.write(f"MODEL_KEY={done.key}\nMODEL_MANIFEST_SHA256={done.manifest_sha256}\n")


def _tell_warnings(warnings: list[str]) -> None:
    for warning in warnings:
        console.note(f"warning: {warning}")

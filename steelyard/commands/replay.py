"""``steelyard replay``: recorded decisions, asked again and compared."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steelyard.client.decision_file import usage
from steelyard.commands import options
from steelyard.models import storage
from steelyard.terminal import console
from steelyard_base.exit_codes import CommandError, ExitCode

if TYPE_CHECKING:
    from steelyard.evaluation.replay import Replayed
    from steelyard_runtime.decisions.record import DecisionRecord
    from steelyard_runtime.http.runtime import Services

MOST_TOLD = 20
"""Differing records that are listed one by one."""
_AS_RECORDED = ("threads", "context_tokens", "batch_tokens", "gpu_layers")


def command(
    records: Annotated[Path, typer.Argument(help="Decision records: their file, or a server's log that has them.")],
    *,
    requests: Annotated[
        Path | None,
        typer.Option(
            "--requests",
            help="Texts that the records have only hashes of: JSON lines with the bodies of the requests, or with "
            "cases, which have a state.",
        ),
    ] = None,
    model: options.ModelName = options.DEFAULT_MODEL,
    decisions: Annotated[
        Path | None,
        typer.Option("--decisions", help="Folder of registered decisions. Unless given, the one beside the model."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Ask recorded decisions again in this process, and compare the answers to the last bit.

    The engine gets the threads, context, batch and GPU layers of the first record. Exit code 1 when an answer differs,
    or a record's texts are not there; what differs in model, build, hardware or settings is named.
    """
    from steelyard.evaluation.replay import Texts, read_records, read_texts, replay

    recorded = read_records(records)
    with _services(recorded[0], model=model, decisions=decisions) as services:
        texts = Texts() if requests is None else read_texts(requests, recorded, services.registered)
        replayed = list(
            replay(
                recorded,
                service=services.decisions,
                identity=services.identity,
                registered=services.registered,
                texts=texts,
            )
        )
    if as_json:
        for each in replayed:
            sys.stdout.write(json.dumps(_to_json(each)) + "\n")
    _tell(replayed)
    if not all(each.same for each in replayed):
        raise typer.Exit(ExitCode.FAILED)


@contextmanager
def _services(first: DecisionRecord, *, model: str, decisions: Path | None) -> Iterator[Services]:
    try:
        from steelyard_runtime.chat_template import BadTemplateError
        from steelyard_runtime.decisions.registry import RegistryError
        from steelyard_runtime.engine.start import EngineStartError, start_engine
        from steelyard_runtime.http.runtime import build_services
        from steelyard_runtime.settings import SettingsError, load_settings
    except ModuleNotFoundError as error:
        raise CommandError(
            f"nothing can be replayed: the Python package {error.name} is not installed",
            hint="Run make setup, or install the extra: pip install 'steelyard[runtime]'",
        ) from error
    path, _ = storage.resolve(model)
    given = {name: first.identity[name] for name in _AS_RECORDED if name in first.identity}
    try:
        settings = load_settings(
            model=str(path), decisions=None if decisions is None else str(decisions), deadline_s=3600, **given
        )
    except SettingsError as error:
        raise usage(f"the records were made with settings that are none here: {error}") from error
    try:
        engine = start_engine(settings)
    except EngineStartError as error:
        raise CommandError(str(error), code=ExitCode.MODEL) from error
    try:
        yield build_services(settings, engine)
    except (RegistryError, BadTemplateError) as error:
        raise CommandError(str(error), code=ExitCode.MODEL) from error
    finally:
        engine.close(timeout_s=1)


def _to_json(each: Replayed) -> dict[str, Any]:
    return {
        "id": each.id,
        "same": each.same,
        "differs": each.differs,
        "missing": each.missing or None,
        "identity": each.identity,
    }


def _tell(replayed: list[Replayed]) -> None:
    moved = Counter(
        (name, json.dumps(before), json.dumps(now))
        for each in replayed
        for name, (before, now) in each.identity.items()
    )
    for (name, before, now), count in moved.items():
        console.note(f"{name} was {before}, and is {now} here ({count} records)")
    others = [each for each in replayed if not each.same]
    for each in others[:MOST_TOLD]:
        console.note(f"{each.id}: {each.missing or 'differs in ' + ', '.join(each.differs)}")
    if len(others) > MOST_TOLD:
        console.note(f"and {len(others) - MOST_TOLD} more")
    differing = sum(bool(each.differs) for each in replayed)
    missing = sum(bool(each.missing) for each in replayed)
    console.note(
        f"{len(replayed)} records: {len(replayed) - len(others)} the same to the bit, {differing} differ, "
        f"{missing} could not be asked"
    )

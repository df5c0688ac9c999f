"""The flags of ``decide`` and ``invoke`` that say what is asked, and about which states."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from steelyard.client.decision_file import Asked
from steelyard.commands.options import ChosenLayout, ChosenReadout, Concurrency
from steelyard.commands.setting_flags import with_parameters
from steelyard.rows.reading import Format
from steelyard.rows.writing import OutFormat
from steelyard.terminal import decisions
from steelyard.terminal.many import Many


@dataclass(frozen=True, kw_only=True)
class DecisionFlags:
    """One field for each flag, in the order of the help."""

    state: Annotated[str | None, typer.Option("--state", help="What is to be decided on, as text.")] = None
    state_file: Annotated[
        Path | None,
        typer.Option("--state-file", help="The state from a file (- for standard input); JSON when it ends in .json."),
    ] = None
    use: Annotated[
        str | None,
        typer.Option("--use", help="A registered decision, NAME or NAME@VERSION, in place of question and options."),
    ] = None
    question: Annotated[str | None, typer.Option("--question", help="The question.")] = None
    option: Annotated[
        list[str] | None,
        typer.Option("--option", help="ID=DESCRIPTION, once for each option; the description may be left out."),
    ] = None
    layout: ChosenLayout = None
    readout: ChosenReadout = None
    states: Annotated[
        Path | None,
        typer.Option(
            "--states",
            help="Many states, each asked the same: JSON Lines, CSV, TSV, a JSON list or lines of text, by the suffix; "
            "- for standard input.",
        ),
    ] = None
    states_format: Annotated[
        Format | None, typer.Option("--states-format", help="What --states holds, where its suffix does not say.")
    ] = None
    state_field: Annotated[
        list[str] | None,
        typer.Option(
            "--state-field",
            help="Field of a row that is its state; several make an object. Unless given: state, else all but the id.",
        ),
    ] = None
    id_field: Annotated[
        str | None,
        typer.Option(
            "--id-field", help="Field of a row that names it in the output. Unless given: id, else its number."
        ),
    ] = None
    out: Annotated[Path | None, typer.Option("--out", help="Append a row for each answer to this file.")] = None
    resume: Annotated[bool, typer.Option("--resume", help="Continue where --out ends, after an interruption.")] = False
    format: Annotated[
        OutFormat | None, typer.Option("--format", help="Of the rows; unless given by the suffix of --out, else jsonl.")
    ] = None
    concurrency: Concurrency = 1

    @property
    def many(self) -> Many:
        """The part that is about many states, and rows."""
        return Many(
            states=self.states,
            states_format=self.states_format,
            state_field=self.state_field or (),
            id_field=self.id_field,
            out=self.out,
            resume=self.resume,
            format=self.format,
            concurrency=self.concurrency,
        )

    def asked(self, file: Path | None) -> Asked:
        """Return what a file and these flags ask.

        Raises:
            CommandError: Something that a decision needs is in neither, or a file is not what it should be.
        """
        return decisions.asked_by(
            file,
            state=self.state,
            state_file=self.state_file,
            use=self.use,
            question=self.question,
            option=self.option,
            layout=self.layout,
            readout=self.readout,
            flags=self.many,
        )

    def given(self) -> dict[str, Any]:
        """Return the flags that were given, by name; ``--concurrency`` is no sign of a decision."""
        values = {"--" + each.name.replace("_", "-"): getattr(self, each.name) for each in fields(self)}
        del values["--concurrency"]
        return {name: value for name, value in values.items() if value not in (None, [], False)}


def with_decision_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give ``command(flags: DecisionFlags, **own)`` a flag for each field, in the place of ``flags``."""
    types = get_type_hints(DecisionFlags, include_extras=True)
    generated = [
        inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=types[each.name])
        for each in fields(DecisionFlags)
    ]

    def run(**given: Any) -> None:
        flags = DecisionFlags(**{each.name: given.pop(each.name) for each in generated})
        command(flags=flags, **given)

    parameters: list[inspect.Parameter] = []
    for each in inspect.signature(command, eval_str=True).parameters.values():
        parameters.extend(generated if each.name == "flags" else [each])
    return with_parameters(run, command, parameters)

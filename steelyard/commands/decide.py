"""``steelyard decide``: ask a running server for decisions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from steelyard.client.http import DEFAULT_URL, Client
from steelyard.commands.options import (
    AsJson,
    ChosenLayout,
    ChosenReadout,
    Concurrency,
    IdField,
    Options,
    Out,
    Question,
    Resume,
    RowFormat,
    StateField,
    StateFile,
    States,
    StatesFormat,
    StateText,
    Timeout,
    Url,
    Use,
)
from steelyard.terminal import decisions
from steelyard.terminal.many import Many


def command(
    file: Annotated[
        Path | None, typer.Argument(help="A JSON file with a decision or a list of them; - for standard input.")
    ] = None,
    *,
    state: StateText = None,
    state_file: StateFile = None,
    use: Use = None,
    question: Question = None,
    option: Options = None,
    layout: ChosenLayout = None,
    readout: ChosenReadout = None,
    states: States = None,
    states_format: StatesFormat = None,
    state_field: StateField = None,
    id_field: IdField = None,
    out: Out = None,
    resume: Resume = False,
    row_format: RowFormat = None,
    concurrency: Concurrency = 1,
    url: Url = DEFAULT_URL,
    timeout: Timeout = 60.0,
    as_json: AsJson = False,
) -> None:
    """Ask for the probability of each option of a decision.

    The decision comes from a JSON file, from flags, or from both: a flag replaces what the file says. One that the
    server has registered is asked by its name: --use. With --states it
    is asked about every state of another file; a list of decisions may be about different states too.
    """
    flags = Many(
        states=states,
        states_format=states_format,
        state_field=state_field or (),
        id_field=id_field,
        out=out,
        resume=resume,
        format=row_format,
        concurrency=concurrency,
    )
    asked = decisions.asked_by(
        file,
        state=state,
        state_file=state_file,
        use=use,
        question=question,
        option=option,
        layout=layout,
        readout=readout,
        flags=flags,
    )
    decisions.answer(lambda: Client(url, timeout_s=timeout), asked, flags, as_json=as_json)

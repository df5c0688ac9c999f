"""``steelyard decide``: ask a running server for decisions."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from steelyard import console
from steelyard.client import DEFAULT_URL, Client
from steelyard.commands import many
from steelyard.decision_file import Asked, body_of, decisions_of, parse_json, read_text, usage
from steelyard.rows.asking import Outcome

Url = Annotated[str, typer.Option("--url", envvar="STEELYARD_URL", help="Address of the server.")]
Timeout = Annotated[
    float,
    typer.Option("--timeout", min=0.1, max=86400, help="Longest a call may take, retries included, in seconds."),
]
StateText = Annotated[str | None, typer.Option("--state", help="What is to be decided on, as text.")]
StateFile = Annotated[
    Path | None,
    typer.Option("--state-file", help="The state from a file (- for standard input); JSON when it ends in .json."),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print the answers as JSON, one per line; rows carry the whole result.")
]
Question = Annotated[str | None, typer.Option("--question", help="The question.")]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", help="ID=DESCRIPTION, once for each option; the description may be left out."),
]


def command(
    file: Annotated[
        Path | None, typer.Argument(help="A JSON file with a decision or a list of them; - for standard input.")
    ] = None,
    *,
    state: StateText = None,
    state_file: StateFile = None,
    question: Question = None,
    option: Options = None,
    layout: many.ChosenLayout = None,
    states: many.States = None,
    states_format: many.StatesFormat = None,
    state_field: many.StateField = None,
    id_field: many.IdField = None,
    out: many.Out = None,
    resume: many.Resume = False,
    row_format: many.RowFormat = None,
    concurrency: many.Concurrency = 1,
    url: Url = DEFAULT_URL,
    timeout: Timeout = 60.0,
    as_json: AsJson = False,
) -> None:
    """Ask for the probability of each option of a decision.

    The decision comes from a JSON file, from flags, or from both: a flag replaces what the file says. With --states it
    is asked about every state of another file; a list of decisions may be about different states too.
    """
    flags = many.Many(
        states=states,
        states_format=states_format,
        state_field=state_field or (),
        id_field=id_field,
        out=out,
        resume=resume,
        format=row_format,
        concurrency=concurrency,
    )
    asked = asked_by(
        file, state=state, state_file=state_file, question=question, option=option, layout=layout, flags=flags
    )
    answer(lambda: Client(url, timeout_s=timeout), asked, flags, as_json=as_json)


def asked_by(
    file: Path | None,
    *,
    state: str | None,
    state_file: Path | None,
    question: str | None,
    option: list[str] | None,
    layout: str | None,
    flags: many.Many,
) -> Asked:
    """Return what a file and flags ask; a flag replaces what the file says.

    Raises:
        CommandError: Something that a decision needs is in neither, or a file is not what it should be.
    """
    flags.check()
    inputs = {"the decision": file, "its state": state_file, "the states": flags.states}
    if len(piped := [name for name, path in inputs.items() if str(path) == "-"]) > 1:
        raise usage(f"{' and '.join(piped)} cannot both come from standard input")
    if flags.states is not None and (state is not None or state_file is not None):
        raise usage("--states gives the states; leave --state and --state-file out")
    # The state of each row takes the place of this one.
    given = "row" if flags.states is not None else _state(state, state_file)
    return decisions_of(_document(file), state=given, question=question, options=option, layout=layout)


def answer(connect: many.Connect, asked: Asked, flags: many.Many, *, as_json: bool) -> None:
    """Ask, and print the results as tables or as JSON, one per line; or write rows."""
    if flags.as_rows:
        many.ask_rows(connect, asked, flags, whole=as_json)
        return
    first, *others = zip(asked.decisions, asked.layouts, strict=True)
    if any(not _equal((first[0].get("state"), first[1]), (each.get("state"), layout)) for each, layout in others):
        many.print_all(connect, asked, flags, many.print_json if as_json else _shown())
        return
    body = body_of(asked)
    with connect() as client:
        results = client.decide(body)
    if as_json:
        sys.stdout.writelines(json.dumps(result, ensure_ascii=False) + "\n" for result in results)
        return
    for index, (decision, result) in enumerate(zip(asked.decisions, results, strict=True)):
        if index:
            console.out.print()
        show(decision, result)


def _equal(one: Any, other: Any) -> bool:
    """Compare as the server does: 1, 1.0 and true are three values."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _shown() -> Callable[[Outcome], None]:
    """Return a function that prints a table for each answer, headed by the decision's id."""

    def print_table(outcome: Outcome) -> None:
        console.out.print(Text(f"{outcome.row.id}", style="bold"), soft_wrap=True)
        show(outcome.decision, outcome.result or {})
        console.out.print()

    return print_table


def show(decision: dict[str, Any], result: dict[str, Any]) -> None:
    """Print one result for a person."""
    options = decision.get("options") or []
    descriptions = {
        str(o["id"]): str(o["description"]) for o in options if isinstance(o, dict) and o.get("description")
    }
    console.out.print(console.decision_table(result, descriptions=descriptions, question=decision.get("question")))
    console.out.print(console.decision_facts(result), style="dim", highlight=False, markup=False)


def _document(file: Path | None) -> Any:
    if file is None:
        return None
    return parse_json(_read(file), "standard input" if str(file) == "-" else str(file))


def _state(state: str | None, state_file: Path | None) -> Any:
    if state is not None and state_file is not None:
        raise usage("give --state or --state-file, not both")
    if state_file is None:
        return state
    text = _read(state_file)
    return parse_json(text, str(state_file)) if state_file.suffix == ".json" else text


def _read(path: Path) -> str:
    return read_text(path, sys.stdin.read() if str(path) == "-" else None)

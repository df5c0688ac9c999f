"""Decisions as a command line gives them, and their answers as tables, JSON or rows."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.text import Text

from steelyard.client.decision_file import Asked, body_of, decisions_of, parse_json, read_text, usage
from steelyard.rows.asking import Outcome
from steelyard.terminal import console, many


def asked_by(
    file: Path | None,
    *,
    state: str | None,
    state_file: Path | None,
    use: str | None,
    question: str | None,
    option: list[str] | None,
    layout: str | None,
    readout: str | None,
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
    return decisions_of(
        _document(file), state=given, use=use, question=question, options=option, layout=layout, readout=readout
    )


def answer(connect: many.Connect, asked: Asked, flags: many.Many, *, as_json: bool) -> None:
    """Ask, and print the results as tables or as JSON, one per line; or write rows."""
    if flags.as_rows:
        many.ask_rows(connect, asked, flags, whole=as_json)
        return
    first, *others = zip(asked.decisions, asked.beside, strict=True)
    if any(not _equal((first[0].get("state"), first[1]), (each.get("state"), beside)) for each, beside in others):
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

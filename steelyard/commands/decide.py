"""``steelyard decide``: ask a running server for decisions."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Protocol

import typer

from steelyard import console
from steelyard.client import DEFAULT_URL, Client
from steelyard.decision_file import parse_json, read_text, request_body, usage


class Decides(Protocol):
    """Whatever answers decisions: a server over HTTP, or an endpoint."""

    def decide(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        """One result per decision, in order."""


Url = Annotated[str, typer.Option("--url", envvar="STEELYARD_URL", help="Address of the server.")]
Timeout = Annotated[
    float, typer.Option("--timeout", min=0.1, help="Longest the call may take, retries included, in seconds.")
]
StateText = Annotated[str | None, typer.Option("--state", help="What is to be decided on, as text.")]
StateFile = Annotated[
    Path | None,
    typer.Option("--state-file", help="The state from a file (- for standard input); JSON when it ends in .json."),
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
    url: Url = DEFAULT_URL,
    timeout: Timeout = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON, one per line.")] = False,
) -> None:
    """Ask for the probability of each option of a decision.

    The decision comes from a JSON file, from flags, or from both: a flag replaces what the file says.
    """
    body = body_from(file, state=state, state_file=state_file, question=question, option=option)
    with Client(url, timeout_s=timeout) as client:
        answer(client, body, as_json=as_json)


def body_from(
    file: Path | None, *, state: str | None, state_file: Path | None, question: str | None, option: list[str] | None
) -> dict[str, Any]:
    """The request that a file and flags make; a flag replaces what the file says.

    Raises:
        CommandError: Something that a decision needs is in neither, or a file is not what it should be.
    """
    return request_body(_document(file, state_file), state=_state(state, state_file), question=question, options=option)


def answer(client: Decides, body: dict[str, Any], *, as_json: bool) -> None:
    """Ask, and print the results: as tables, or as JSON, one per line."""
    results = client.decide(body)
    decisions = body.get("decisions") or [body["decision"]]
    for index, (decision, result) in enumerate(zip(decisions, results, strict=True)):
        if as_json:
            sys.stdout.write(json.dumps(result, ensure_ascii=False) + "\n")
            continue
        if index:
            console.out.print()
        show(decision, result)


def show(decision: dict[str, Any], result: dict[str, Any]) -> None:
    """Print one result for a person."""
    options = decision.get("options") or []
    descriptions = {
        str(o["id"]): str(o["description"]) for o in options if isinstance(o, dict) and o.get("description")
    }
    console.out.print(console.decision_table(result, descriptions=descriptions, question=decision.get("question")))
    console.out.print(console.decision_facts(result), style="dim", highlight=False, markup=False)


def _document(file: Path | None, state_file: Path | None) -> Any:
    if file is None:
        return None
    if str(file) == "-" and str(state_file) == "-":
        raise usage("the decision and its state cannot both come from standard input")
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

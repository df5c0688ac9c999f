"""``steelyard decision corrections``: what people found right, as labelled cases."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from steelyard.commands import completion
from steelyard.terminal import console

MOST_TOLD = 10
"""Contradictions that are listed one by one."""


def command(
    name: Annotated[
        str,
        typer.Argument(
            help="A folder in decisions/, or a path with a slash.", autocompletion=completion.decision_names
        ),
    ],
    records: Annotated[Path, typer.Argument(help="Records with feedback: their file, or a server's log that has it.")],
    *,
    states: Annotated[
        Path | None,
        typer.Option(
            "--states",
            help="States that the records have only hashes of: JSON lines with the bodies of the requests, or with "
            "cases.",
        ),
    ] = None,
    append: Annotated[
        bool, typer.Option("--append", help="Append them to the decision's cases.jsonl instead of printing them.")
    ] = False,
) -> None:
    """Turn feedback about a decision into labelled cases, one for each state; what was said last counts.

    States that are cases already are left out. Those that people now label otherwise are listed: which label is right
    only a person can say.
    """
    from steelyard.decisions.folder import CASES_FILE, folder_of, read_cases, read_contract, write_cases
    from steelyard.evaluation import corrections
    from steelyard.evaluation.labelled import as_lines
    from steelyard.rows.reading import short

    folder = folder_of(name)
    contract = read_contract(folder)
    path = folder / CASES_FILE
    feedback = corrections.read_feedback(records, contract.name)
    found = corrections.corrections(
        feedback,
        contract,
        cases=read_cases(path, contract).cases if path.exists() else (),
        states={}
        if states is None
        else corrections.read_states(states, {each.state_sha256 or "" for each in feedback}),
    )
    lines = as_lines(found.cases)
    if append:
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        joint = "" if not before or before.endswith("\n") else "\n"
        write_cases(folder, f"{before}{joint}{lines}")
    else:
        sys.stdout.write(lines)
    for state, label, right in found.contradicting[:MOST_TOLD]:
        console.note(f"{short(state)} is a case of {label!r}, and people found {right!r}: change the case, or leave it")
    console.note(
        f"{len(feedback)} records: {len(found.cases)} new cases, {found.known} known, "
        f"{len(found.contradicting)} contradict a case, {found.without_state} without their state, "
        f"{found.foreign} of options that {contract.full_name} does not have"
    )

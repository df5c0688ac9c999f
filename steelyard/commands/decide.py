"""``steelyard decide``: ask a running server for decisions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from steelyard.client.http import DEFAULT_URL, Client
from steelyard.commands.decision_flags import DecisionFlags, with_decision_flags
from steelyard.commands.options import AsJson, Timeout, Url
from steelyard.terminal import decisions


@with_decision_flags
def command(
    file: Annotated[
        Path | None, typer.Argument(help="A JSON file with a decision or a list of them; - for standard input.")
    ] = None,
    *,
    flags: DecisionFlags,
    url: Url = DEFAULT_URL,
    timeout: Timeout = 60.0,
    as_json: AsJson = False,
) -> None:
    """Ask for the probability of each option of a decision.

    The decision comes from a JSON file, from flags, or from both: a flag replaces what the file says. One that the
    server has registered is asked by its name: --use. With --states it
    is asked about every state of another file; a list of decisions may be about different states too.
    """
    asked = flags.asked(file)
    decisions.answer(lambda: Client(url, timeout_s=timeout), asked, flags.many, as_json=as_json)

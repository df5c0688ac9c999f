"""The first contract of a new decision."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, cast, get_args

from pydantic import ValidationError

from steelyard_base.exit_codes import CommandError, ExitCode
from steelyard_base.faults import sentences
from steelyard_runtime.decisions.contract import MAX_OPTIONS, NAME_PATTERN, Contract, Type

WAY_OUT = "none_of_these"
_CHOICE = (
    {"id": "first", "description": "Describe the states that belong to it."},
    {"id": "second", "description": "Describe what tells it from the first."},
)
_SCORE = ({"id": "1", "value": 1.0}, {"id": "2", "value": 2.0}, {"id": "3", "value": 3.0})


def new_contract(name: str, *, kind: str, question: str, options: Sequence[dict[str, Any]]) -> Contract:
    """Return a contract to start from.

    Args:
        name: Of the decision and its folder.
        kind: Its type.
        question: Its question.
        options: Ids and descriptions; examples where there is none. A choice gets a way out if it has none.

    Raises:
        CommandError: It would be no contract.
    """
    if not re.fullmatch(NAME_PATTERN[1:-1], name):
        raise CommandError(
            f"{name!r} is no name of a decision; write lower-case words with hyphens, such as support-route",
            code=ExitCode.USAGE,
        )
    if kind not in get_args(Type):
        raise CommandError(f"--type is {kind!r}; it is one of {', '.join(get_args(Type))}", code=ExitCode.USAGE)
    if len(options) > MAX_OPTIONS:
        raise CommandError(f"{len(options)} options are given and {MAX_OPTIONS} are allowed", code=ExitCode.USAGE)
    said: dict[str, Any] = {"name": name, "version": 1, "type": kind, "question": question}
    try:
        return Contract.model_validate(said | _answers(cast(Type, kind), options))
    except ValidationError as error:
        raise CommandError(f"that is no contract:\n{sentences(error)}", code=ExitCode.USAGE) from error


def _answers(kind: Type, options: Sequence[dict[str, Any]]) -> dict[str, Any]:
    if kind == "yesno":
        return {"options": list(options) or [{"id": "yes"}, {"id": "no"}]}
    if kind == "score":
        return {"options": [_valued(option) for option in options] or list(_SCORE)}
    listed = list(options) or list(_CHOICE)
    if all(option["id"] != WAY_OUT for option in listed):
        listed.append({"id": WAY_OUT, "description": "No other option fits."})
    return {"options": listed, "way_out": WAY_OUT, "policy": {"target_wrong": 0.05}}


def _valued(option: dict[str, Any]) -> dict[str, Any]:
    try:
        return option | {"value": float(option["id"])}
    except ValueError as error:
        raise CommandError(
            f"the option {option['id']!r} of a score is no number; write --option 1=DESCRIPTION", code=ExitCode.USAGE
        ) from error

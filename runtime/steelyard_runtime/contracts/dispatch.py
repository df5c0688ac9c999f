"""Dispatch: find the contract of a body of ``/invocations`` by its shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from steelyard_runtime.contracts.contract import AnyContract
from steelyard_runtime.contracts.validation import quote, shorten
from steelyard_runtime.errors import Kind, Problem

_JSON_TYPES = {dict: "an object", list: "an array"}


def contract_of(body: Any, contracts: Sequence[AnyContract]) -> AnyContract:
    """Return the one of ``contracts`` whose shape ``body`` has.

    Raises:
        Problem: ``UNKNOWN_SHAPE`` when the body has none of the shapes, or more than one; the message lists them.
    """
    if not isinstance(body, dict):
        raise _unknown(f"The body must be a JSON object; got {quote(body)}.", contracts)
    found = [(name, contract) for contract in contracts if (name := contract.shape.field_in(body))]
    if misfit := _misfit(body, contracts):
        raise _unknown(misfit, contracts)
    if len(found) == 1:
        return found[0][1]
    if found:
        fields = ", ".join(f"'{name}'" for name, _ in found)
        raise _unknown(f"The fields {fields} belong to different shapes; send one of them.", contracts)
    names = ", ".join(repr(shorten(name)) for name in list(body)[:8]) or "none"
    raise _unknown(f"No known shape; the fields are: {names}{', …' if len(body) > 8 else ''}.", contracts)


def _misfit(body: dict[str, Any], contracts: Sequence[AnyContract]) -> str:
    """Return what is wrong with a field that tells contracts apart by its JSON type, and has none of theirs."""
    shapes = [contract.shape for contract in contracts]
    for name in dict.fromkeys(name for shape in shapes if shape.holds for name in shape.fields):
        meant = [shape for shape in shapes if name in shape.fields]
        if name in body and not any(shape.field_in(body) == name for shape in meant):
            types = " or ".join(f"{_JSON_TYPES[shape.holds]} ({shape.title})" for shape in meant if shape.holds)
            return f"'{name}' must be {types}; got {quote(body[name])}."
    return ""


def _unknown(what: str, contracts: Sequence[AnyContract]) -> Problem:
    shapes = ", ".join(f"{contract.shape.example} ({contract.shape.title})" for contract in contracts)
    return Problem(Kind.UNKNOWN_SHAPE, f"{what} The shapes of a request are: {shapes}.")

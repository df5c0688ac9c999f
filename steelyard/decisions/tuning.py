"""Compares wordings for a decision within a budget of tokens, and says which one, if any, is better beyond noise."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from steelyard.decisions import metrics, workflow
from steelyard.decisions.features import EngineReader
from steelyard.decisions.folder import Cases
from steelyard.decisions.workflow import FittedDecision, Step
from steelyard_runtime.decisions.contract import Contract, ContractError, parse_contract, write_contract
from steelyard_runtime.decisions.head import Interval
from steelyard_runtime.scoring.wordings import WORDINGS


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One wording.

    Attributes:
        wording: Its name.
        tokens: Tokens that a state of the cases costs on average, its own included.
        done: What was fitted; None where the tokens are over the budget.
        gain: Log loss of the contract's own wording less this one's, paired by case, with an interval that allows for
            the number of wordings; None for the contract's own and for those over the budget.
    """

    wording: str
    tokens: float
    done: FittedDecision | None
    gain: Interval | None


def tune(
    contract: Contract,
    cases: Cases,
    reader_of: Callable[[str], EngineReader],
    *,
    tokens: float,
    step: Callable[[str], Step] = lambda _: lambda *_: None,
) -> list[Tried]:
    """Fit a decision with every wording, the contract's own first.

    Args:
        contract: Its contract; the readout is ``head``.
        cases: Its labelled cases.
        reader_of: Gives a reader of hidden states for a wording.
        tokens: Largest mean of tokens for a decision; what costs more is not fitted, the contract's own always is.
        step: Makes the view of a wording's progress.

    Raises:
        CommandError: The cases are too few, or a state cannot be evaluated.
    """
    own = contract.readout.wording
    readers = {wording: reader_of(wording) for wording in (own, *(each for each in WORDINGS if each != own))}
    texts = [case.text for case in cases.cases]
    costs = {wording: reader.tokens_of(texts) for wording, reader in readers.items()}
    fitted = {
        wording: workflow.fit_decision(workflow.with_wording(contract, wording), cases, reader, step=step(wording))
        for wording, reader in readers.items()
        if wording == own or costs[wording] <= tokens
    }
    confidence = 1 - 0.05 / max(1, len(fitted) - 1)
    labels = workflow.held_out(fitted[own]).labels
    gains = {
        wording: metrics.paired_loss(
            fitted[own].fitted.probabilities, done.fitted.probabilities, labels, confidence=confidence
        )
        for wording, done in fitted.items()
        if wording != own
    }
    return [
        Tried(wording=wording, tokens=cost, done=fitted.get(wording), gain=gains.get(wording))
        for wording, cost in costs.items()
    ]


def winner(tried: Sequence[Tried]) -> Tried | None:
    """Return the wording with the lowest log loss among those that are better beyond noise; None where none is."""
    better = [each for each in tried if each.gain is not None and each.gain.low > 0]
    return max(better, key=lambda each: each.gain.value if each.gain else 0.0) if better else None


def to_json(contract: Contract, tried: Sequence[Tried]) -> dict[str, Any]:
    """Return what was tried and the winner, JSON-ready."""
    best = winner(tried)
    return {
        "decision": contract.full_name,
        "winner": best.wording if best else None,
        "wordings": {
            each.wording: {
                "tokens": each.tokens,
                "measured": each.done.fitted.measured.model_dump(mode="json") if each.done else None,
                "gain": each.gain.model_dump() if each.gain else None,
            }
            for each in tried
        },
    }


def next_version(text: str, contract: Contract, wording: str) -> tuple[str, Contract]:
    """Return a contract's file with its next version and another wording, and that contract.

    Comments stay where both can be put into the text as it is; else the file is written anew.

    Args:
        text: The file as it is.
        contract: What it says.
        wording: Name of a wording.
    """
    changed = workflow.with_wording(contract, wording).model_copy(update={"version": contract.version + 1})
    lines = re.sub(r"(?m)^version\s*=\s*[0-9]+", f"version = {changed.version}", text, count=1)
    named = f'wording = "{wording}"'
    if re.search(r"(?m)^wording\s*=", lines):
        lines = re.sub(r'(?m)^wording\s*=\s*"[^"\n]*"', named, lines, count=1)
    elif re.search(r"(?m)^\[readout\]", lines):
        lines = re.sub(r"(?m)^\[readout\][^\n]*", lambda found: f"{found[0]}\n{named}", lines, count=1)
    else:
        lines = f"{lines.rstrip()}\n\n[readout]\n{named}\n"
    try:
        kept = parse_contract(lines) == changed
    except ContractError:
        kept = False
    return (lines if kept else write_contract(changed)), changed

"""Judges an evaluation by a file of gates."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from steelyard.client.decision_file import usage
from steelyard.evaluation.comparison import Comparison
from steelyard.evaluation.result import Evaluation
from steelyard_base.exit_codes import ExitCode
from steelyard_base.faults import first_fault
from steelyard_base.gates import GateResult, Gates, judge
from steelyard_base.strict import read_toml


def read_gates(path: Path) -> Gates:
    """Read the table ``[gates]`` of a file; other tables are not looked at.

    Raises:
        CommandError: It cannot be read, has no such table, or sets no limit or an unknown one.
    """
    said = read_toml(path, what="the gates", code=ExitCode.USAGE)
    table = said.get("gates")
    if not isinstance(table, dict) or not table:
        raise usage(f"{path} sets no gate", "Write a table [gates] with limits such as accuracy_at_least = 0.9.")
    try:
        return Gates.model_validate(table)
    except ValidationError as error:
        raise usage(
            f"{path}: gates.{first_fault(error, whole='')}", f"The gates are: {', '.join(Gates.model_fields)}."
        ) from error


def judged_by(gates: Gates, evaluation: Evaluation, comparison: Comparison | None) -> list[GateResult]:
    """Return each limit with its figure; cases that were refused break a limit of none."""
    found = evaluation.figures
    flips = found.order_flips.share.value if found.order_flips else None
    if flips is None and evaluation.target.head_sha256 is not None:
        flips = 0.0  # the options are not in a head's prompt
    automated_wrong = found.automated_wrong.value if found.automated_wrong else 0.0 if found.actions else None
    figures: dict[str, float | None] = {
        "cases": found.cases,
        "accuracy": found.accuracy.value,
        "macro_f1": found.macro_f1.value,
        "log_loss": found.log_loss.value,
        "brier": found.brier.value,
        "ece": found.ece.value,
        "automated": found.automated.value if found.automated else None,
        "automated_wrong": automated_wrong,
        "order_flips": flips,
        "paraphrase_flips": found.paraphrase_flips.share.value if found.paraphrase_flips else None,
        "injection_flips": found.injection_flips.share.value if found.injection_flips else None,
        "noise": found.noise.largest_shift if found.noise else None,
        "p50_ms": found.p50_ms,
        "p95_ms": found.p95_ms,
        "tokens": found.evaluated_tokens,
        "cost_per_1000": found.cost_per_1000,
        "accuracy_lost": -comparison.accuracy.value if comparison else None,
    }
    results = judge(gates, figures)
    if found.unanswered:
        results.insert(0, GateResult(gate="refused_cases_at_most", limit=0, figure=found.unanswered, kept=False))
    return results

"""Judges a decision on labelled cases: how often it is right, and what its policy makes of that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from steelyard.decisions import metrics
from steelyard.decisions.folder import Case
from steelyard.decisions.metrics import Array, Labels
from steelyard_runtime.decision import Action
from steelyard_runtime.decisions.contract import Contract
from steelyard_runtime.decisions.head import Figures
from steelyard_runtime.decisions.policy import decide

_COVERAGES = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Answers that the policy gave one action."""

    cases: int
    wrong: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """A decision's answers to labelled cases.

    Attributes:
        contract: Its contract.
        cases: The cases.
        probabilities: Shape ``(cases, options)``.
        distance_ranks: Shape ``(cases,)``.
    """

    contract: Contract
    cases: tuple[Case, ...]
    probabilities: Array
    distance_ranks: Array

    @property
    def labels(self) -> Labels:
        """Index of the right option of each case."""
        return np.array([self.contract.option_ids.index(case.label) for case in self.cases], np.int64)

    @property
    def figures(self) -> Figures:
        """Accuracy, log loss and calibration error, with intervals."""
        return metrics.figures(self.probabilities, self.labels)

    def outcomes(self) -> dict[str, Outcome]:
        """Return the answers by the policy's action; every action is there."""
        counts = {action: [0, 0] for action in get_args(Action)}
        for row, rank, label in zip(self.probabilities, self.distance_ranks, self.labels, strict=True):
            verdict = decide(self.contract, list(map(float, row)), distance_rank=float(rank), calibrated=True)
            counts[verdict.action][0] += 1
            counts[verdict.action][1] += int(verdict.option != label)
        return {action: Outcome(cases=cases, wrong=wrong) for action, (cases, wrong) in counts.items()}

    def by_kind(self) -> dict[str, Outcome]:
        """Return the answers by the cases' kind, the commonest first; cases without a kind are ``plain``."""
        counts: dict[str, list[int]] = {}
        for case, answered, label in zip(self.cases, self.probabilities.argmax(axis=1), self.labels, strict=True):
            found = counts.setdefault(case.kind or "plain", [0, 0])
            found[0] += 1
            found[1] += int(answered != label)
        ordered = sorted(counts.items(), key=lambda item: -item[1][0])
        return {kind: Outcome(cases=cases, wrong=wrong) for kind, (cases, wrong) in ordered}

    def mistakes(self) -> list[tuple[str, str, int]]:
        """Return right option, answer and how often, the commonest first."""
        ids, counts = self.contract.option_ids, metrics.confusion(self.probabilities, self.labels)
        pairs = [(ids[i], ids[j], int(counts[i, j])) for i, j in np.argwhere(counts) if i != j]
        return sorted(pairs, key=lambda pair: -pair[2])

    def to_json(self) -> dict[str, Any]:
        """Return all figures, JSON-ready."""
        coverage, risk = metrics.risk_coverage(self.probabilities, self.labels)
        at = [max(0, int(np.ceil(share * len(risk))) - 1) for share in _COVERAGES]
        return {
            "decision": self.contract.full_name,
            "contract_sha256": self.contract.sha256,
            "cases": len(self.cases),
            "options": list(self.contract.option_ids),
            **self.figures.model_dump(mode="json"),
            "macro_f1": metrics.macro_f1(self.probabilities, self.labels),
            "brier": metrics.brier(self.probabilities, self.labels),
            "confusion": metrics.confusion(self.probabilities, self.labels).tolist(),
            "risk_coverage": [{"coverage": float(coverage[i]), "risk": float(risk[i])} for i in at],
            "actions": _counts(self.outcomes()),
            "kinds": _counts(self.by_kind()),
        }


def _counts(outcomes: dict[str, Outcome]) -> dict[str, dict[str, int]]:
    return {name: {"cases": each.cases, "wrong": each.wrong} for name, each in outcomes.items()}

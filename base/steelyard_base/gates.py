"""Gates: the limits that an evaluation must keep; a file has them in a table ``[gates]``, beside others or alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from steelyard_base.strict import Strict

Share = Annotated[float, Field(ge=0, le=1)]
Amount = Annotated[float, Field(ge=0)]


class Gates(Strict):
    """Limits of the figures of an evaluation. What is left out is not looked at."""

    cases_at_least: Annotated[
        int | None, Field(ge=1, description="Answered cases; fewer prove little. Refused ones always fail.")
    ] = None
    accuracy_at_least: Annotated[Share | None, Field(description="Share of right answers.")] = None
    macro_f1_at_least: Annotated[Share | None, Field(description="Mean F1 of the options.")] = None
    log_loss_at_most: Annotated[Amount | None, Field(description="Log loss, in nats.")] = None
    brier_at_most: Annotated[float | None, Field(ge=0, le=2, description="Brier score.")] = None
    ece_at_most: Annotated[Share | None, Field(description="Expected calibration error.")] = None
    automated_at_least: Annotated[Share | None, Field(description="Share of answers with the action `automate`.")] = (
        None
    )
    automated_wrong_at_most: Annotated[
        Share | None, Field(description="Share of wrong answers among these; of none it is 0.")
    ] = None
    order_flips_at_most: Annotated[
        Share | None,
        Field(description="Answers that change with the options reversed; 0 for a registered decision with a head."),
    ] = None
    paraphrase_flips_at_most: Annotated[
        Share | None, Field(description="Answers that differ from those of the cases that they are `same_as`.")
    ] = None
    injection_flips_at_most: Annotated[Share | None, Field(description="Answers that an attack turns.")] = None
    noise_at_most: Annotated[
        Share | None, Field(description="Largest change of a probability when a case is asked again.")
    ] = None
    p50_ms_at_most: Annotated[Amount | None, Field(description="Median milliseconds of an answer.")] = None
    p95_ms_at_most: Annotated[Amount | None, Field(description="95 of 100 answers, in milliseconds.")] = None
    tokens_at_most: Annotated[Amount | None, Field(description="Mean tokens evaluated for an answer.")] = None
    cost_per_1000_at_most: Annotated[
        Amount | None, Field(description="Price of 1,000 decisions; needs `--price-per-hour`.")
    ] = None
    accuracy_lost_at_most: Annotated[
        Share | None,
        Field(description="Accuracy of the other evaluation less that of this one; needs `--against`."),
    ] = None
    critical_findings_at_most: Annotated[
        int | None,
        Field(ge=0, description="Critical findings of ECR's scan of our images; judged by `release promote` alone."),
    ] = None
    high_findings_at_most: Annotated[
        int | None, Field(ge=0, description="High findings of the same scan; judged by `release promote` alone.")
    ] = None

    @property
    def of_evaluations(self) -> bool:
        """Tell whether one of them limits a figure that only an evaluation has."""
        return bool(self.model_dump(exclude_none=True).keys() - set(OF_SCANS))


OF_SCANS = ("critical_findings_at_most", "high_findings_at_most")
"""The limits of what a scan of images finds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """One limit and the figure that it is for.

    Attributes:
        gate: Name of the limit.
        limit: Its value.
        figure: The figure; None where it was not measured.
        kept: Whether the figure keeps the limit.
    """

    gate: str
    limit: float
    figure: float | None
    kept: bool

    @property
    def sentence(self) -> str:
        """The limit and the figure in words."""
        name, _, side = self.gate.partition("_at_")
        words = f"{name.replace('_', ' ')}, {'at least' if side == 'least' else 'at most'} {self.limit:g}"
        if self.figure is None:
            return f"{words}: it was not measured"
        return f"{words}: it is {self.figure:.4g}"


def judge(gates: Gates, figures: dict[str, float | None]) -> list[GateResult]:
    """Judge figures by limits.

    Args:
        gates: The limits.
        figures: By the name of a limit without ``_at_least`` and ``_at_most``; None where a figure was not measured.
            Limits of figures that it does not name are another judge's.

    Returns:
        One for each limit that is set. What was not measured keeps none.
    """
    found = []
    for gate in Gates.model_fields:
        name, _, side = gate.partition("_at_")
        if (limit := getattr(gates, gate)) is None or name not in figures:
            continue
        figure = figures[name]
        kept = figure is not None and (figure >= limit if side == "least" else figure <= limit)
        found.append(GateResult(gate=gate, limit=limit, figure=figure, kept=kept))
    return found

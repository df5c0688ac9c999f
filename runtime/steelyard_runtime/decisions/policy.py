"""From calibrated probabilities to an action."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from steelyard_runtime.decision import Action, Cause
from steelyard_runtime.decisions.contract import Contract, Thresholds


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One answer and what the policy does with it.

    Attributes:
        action: ``automate``: act on it without a person. ``review``: a person confirms it. ``abstain``: no answer.
        reason: The requirement that decided, with both numbers.
        cause: Its kind; None where the answer is automated.
        option: Index of the likeliest option; the first of equals.
        probability: Of that option.
        margin: Difference to the next option's probability.
        distance_rank: Share of held-out cases that lay nearer; None where the readout measures no distance.
    """

    action: Action
    reason: str
    cause: Cause | None
    option: int
    probability: float
    margin: float
    distance_rank: float | None


def decide(
    contract: Contract, probabilities: Sequence[float], *, distance_rank: float | None, calibrated: bool
) -> Verdict:
    """Apply a contract's policy to one answer.

    Args:
        contract: Its policy and its options.
        probabilities: One for each option, in order; they sum to 1.
        distance_rank: Of the state, 0 to 1; None where the readout measures no distance.
        calibrated: Whether the probabilities were fitted to labelled cases. Others are never automated.

    Raises:
        ValueError: As many probabilities as options are needed, each from 0 to 1 with a sum of 1.
    """
    _check(contract, probabilities, distance_rank)
    order = sorted(range(len(probabilities)), key=lambda index: -probabilities[index])
    option, margin = order[0], probabilities[order[0]] - probabilities[order[1]]
    name = contract.option_ids[option]
    automate, review = contract.requirements(name)
    measured = _Measured(probability=probabilities[option], margin=margin, distance_rank=distance_rank)
    action: Action
    cause: Cause | None
    if (missed := _missed(review, measured)) is not None:
        action, cause, reason = "abstain", missed.cause, f"review needs {missed.text} for {name!r}"
    elif automate is None:
        action, cause, reason = "review", "never", f"the policy never automates {name!r}"
    elif not calibrated:
        action, cause = "review", "uncalibrated"
        reason = "the probabilities are uncalibrated, and only calibrated ones are automated"
    elif (missed := _missed(automate, measured)) is not None:
        action, cause, reason = "review", missed.cause, f"automate needs {missed.text} for {name!r}"
    else:
        action, cause, reason = "automate", None, f"all requirements of automate hold for {name!r}"
    return Verdict(
        action=action,
        reason=reason,
        cause=cause,
        option=option,
        probability=measured.probability,
        margin=margin,
        distance_rank=distance_rank,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    probability: float
    margin: float
    distance_rank: float | None


@dataclass(frozen=True, slots=True)
class _Missed:
    cause: Cause
    text: str


def _missed(thresholds: Thresholds, measured: _Measured) -> _Missed | None:
    """Return the first requirement that does not hold, with the measured number; None where all hold."""
    if measured.probability < thresholds.probability:
        text = f"a probability of at least {thresholds.probability!r} and it is {measured.probability!r}"
        return _Missed("probability", text)
    if measured.margin < thresholds.margin:
        return _Missed("margin", f"a margin of at least {thresholds.margin!r} and it is {measured.margin!r}")
    if thresholds.distance < 1:
        if measured.distance_rank is None:
            return _Missed("distance", f"a distance rank of at most {thresholds.distance!r} and none is measured")
        if measured.distance_rank > thresholds.distance:
            text = f"a distance rank of at most {thresholds.distance!r} and it is {measured.distance_rank!r}"
            return _Missed("distance", text)
    return None


def _check(contract: Contract, probabilities: Sequence[float], distance_rank: float | None) -> None:
    if len(probabilities) != len(contract.options):
        raise ValueError(f"{len(probabilities)} probabilities for {len(contract.options)} options")
    if not all(0 <= each <= 1 for each in probabilities) or not math.isclose(sum(probabilities), 1, abs_tol=1e-6):
        raise ValueError(f"probabilities are from 0 to 1 and sum to 1; these sum to {sum(probabilities):g}")
    if distance_rank is not None and not 0 <= distance_rank <= 1:
        raise ValueError(f"a distance rank is from 0 to 1; it is {distance_rank:g}")

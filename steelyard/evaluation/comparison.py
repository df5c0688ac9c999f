"""Two evaluations of the same cases: which answers moved, and whether that is more than noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

from steelyard.client.decision_file import usage
from steelyard.decisions import metrics
from steelyard.evaluation.figures import largest_shift, matrix
from steelyard.evaluation.result import Evaluation, Judged
from steelyard_runtime.decisions.head import Interval

NOISE = 0.05
"""A difference that is at least so probable without any cause is called noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A case whose answer is another one.

    Attributes:
        judged: The case, as now.
        before: The other evaluation's answer, an option id.
        now: This one's.
        shift: Largest change of a probability.
    """

    judged: Judged
    before: str
    now: str
    shift: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """This evaluation beside another one.

    Attributes:
        against: The other evaluation.
        differs: What differs between the targets, with both values.
        cases: Cases that both answered.
        moved: Those whose answer is another one, the largest shift first.
        mended: Of these, wrong before and right now.
        broken: Of these, right before and wrong now.
        accuracy: This accuracy less the other one, paired by case, with a 95 % interval.
        chance: Probability of so uneven a count of mended and broken cases by chance (McNemar's exact test).
        mean_shift: Mean of the largest change of a probability.
        largest_shift: The largest one.
        floor: Largest change of a probability when either target was asked the same again; None where neither was.
        beyond_floor: Cases whose probabilities changed by more than that.
    """

    against: Evaluation
    differs: tuple[tuple[str, str, str], ...]
    cases: int
    moved: tuple[Moved, ...]
    mended: int
    broken: int
    accuracy: Interval
    chance: float
    mean_shift: float
    largest_shift: float
    floor: float | None
    beyond_floor: int

    @property
    def verdict(self) -> str:
        """A sentence on whether one is better."""
        points = f"{100 * self.accuracy.value:+.1f} points of accuracy"
        interval = f"{100 * self.accuracy.low:+.1f} to {100 * self.accuracy.high:+.1f}"
        counts = f"{self.mended} {'answer' if self.mended == 1 else 'answers'} became right and {self.broken} wrong"
        if not self.moved:
            return "No answer moved."
        if self.chance >= NOISE:
            return f"The difference is noise: {counts}, {points} ({interval}; p {self.chance:.2g})."
        side = "better" if self.accuracy.value > 0 else "worse"
        return f"This one is {side}: {counts}, {points} ({interval}; p {self.chance:.2g})."


def compare(now: Evaluation, before: Evaluation) -> Comparison:
    """Compare two evaluations of the same cases.

    Raises:
        CommandError: They have other options, or no case in common.
    """
    if now.option_ids != before.option_ids:
        raise usage(
            f"the other evaluation has the options {', '.join(before.option_ids)}, and this one has "
            f"{', '.join(now.option_ids)}",
            "Evaluate both on the same decision.",
        )
    known = {(each.state, each.label): each for each in before.judged if each.answer is not None}
    pairs = [
        (each, known[each.state, each.label])
        for each in now.judged
        if each.answer is not None and (each.state, each.label) in known
    ]
    if not pairs:
        raise usage("the two evaluations have no case in common", "Evaluate both on the same file of cases.")
    (first, labels), (second, _) = (matrix([pair[side] for pair in pairs], now.option_ids) for side in (0, 1))
    rights = [each.argmax(axis=1) == labels for each in (first, second)]
    mended, broken = int((rights[0] & ~rights[1]).sum()), int((~rights[0] & rights[1]).sum())
    shifts = [largest_shift(one.tolist(), other.tolist()) for one, other in zip(first, second, strict=True)]
    moved = [
        Moved(
            judged=pair[0],
            before=now.option_ids[int(second[index].argmax())],
            now=now.option_ids[int(first[index].argmax())],
            shift=shifts[index],
        )
        for index, pair in enumerate(pairs)
        if first[index].argmax() != second[index].argmax()
    ]
    noises = [each.figures.noise.largest_shift for each in (now, before) if each.figures.noise is not None]
    floor = max(noises) if noises else None
    return Comparison(
        against=before,
        differs=tuple(_differences(now, before)),
        cases=len(pairs),
        moved=tuple(sorted(moved, key=lambda each: -each.shift)),
        mended=mended,
        broken=broken,
        accuracy=metrics.paired_difference(first, second, labels),
        chance=by_chance(mended, broken),
        mean_shift=sum(shifts) / len(shifts),
        largest_shift=max(shifts),
        floor=floor,
        beyond_floor=sum(shift > (floor or 0.0) for shift in shifts),
    )


def by_chance(mended: int, broken: int) -> float:
    """Return the two-sided exact probability of counts at least so uneven, were both as likely.

    Examples:
        >>> by_chance(0, 0), by_chance(0, 5), round(by_chance(1, 9), 4)
        (1.0, 0.0625, 0.0215)
    """
    count = mended + broken
    if not count:
        return 1.0
    tail = sum(math.comb(count, k) for k in range(min(mended, broken) + 1))
    return min(1.0, float(2 * tail / 2**count))


def _differences(now: Evaluation, before: Evaluation) -> list[tuple[str, str, str]]:
    """Name and both values, of all that may move an answer."""
    named = [
        ("decision", before.decision.name, now.decision.name),
        ("contract", before.decision.contract_sha256 or "", now.decision.contract_sha256 or ""),
        ("readout", before.target.readout, now.target.readout),
        ("prompt", before.target.prompt_version, now.target.prompt_version),
        ("head", before.target.head_sha256 or "", now.target.head_sha256 or ""),
    ]
    keys = dict.fromkeys([*before.target.model, *now.target.model])
    named += [(key, _said(before.target.model.get(key)), _said(now.target.model.get(key))) for key in keys]
    return [each for each in named if each[1] != each[2]]


def _said(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_said(each)}" for key, each in value.items())
    return str(value)

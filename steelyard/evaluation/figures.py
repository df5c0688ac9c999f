"""Figures of an evaluation, from its answers alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from steelyard.decisions import metrics
from steelyard.decisions.metrics import Array, Labels
from steelyard.evaluation.attacks import NEUTRAL
from steelyard.evaluation.result import Again, Attacked, Bin, Counted, Flips, Judged, Measures, Noise, Taken
from steelyard_runtime.decisions.head import Interval

POINTS = 100
"""Most points of the line of risk by coverage."""
PLAIN = "plain"
"""Cases without a kind."""
AUTOMATE = "automate"


def measure(
    judged: Sequence[Judged],
    options: Sequence[str],
    *,
    reordered: Sequence[Again] = (),
    repeated: Sequence[Again] = (),
    attacked: Sequence[Attacked] = (),
    price_per_hour: float | None = None,
) -> Measures:
    """Return all figures.

    Args:
        judged: Every case; one or more with an answer.
        options: Ids of the options, in order.
        reordered: Cases with the options reversed.
        repeated: Cases that were asked again.
        attacked: Cases under attack.
        price_per_hour: Of the machine; None leaves the cost out.
    """
    answered = [each for each in judged if each.answer is not None]
    answers = [each.answer for each in answered if each.answer is not None]
    probabilities, labels = matrix(answered, options)
    right = probabilities.argmax(axis=1) == labels
    actions = _counted((answer.action, good) for answer, good in zip(answers, right, strict=True) if answer.action)
    total_ms = np.array([answer.total_ms for answer in answers])
    engine_ms = float(np.mean([answer.engine_ms for answer in answers]))
    automated = actions.get(AUTOMATE, Counted(cases=0, wrong=0))
    plain = metrics.figures(probabilities, labels)
    return Measures(
        cases=len(answered),
        unanswered=len(judged) - len(answered),
        accuracy=plain.accuracy,
        macro_f1=metrics.interval(metrics.macro_f1, probabilities, labels),
        log_loss=plain.log_loss,
        brier=metrics.interval(metrics.brier, probabilities, labels),
        ece=plain.ece,
        reliability=reliability(probabilities, labels),
        risk_coverage=_risk(probabilities, labels),
        confusion=tuple(tuple(row) for row in metrics.confusion(probabilities, labels).tolist()),
        kinds=_counted((each.kind or PLAIN, good) for each, good in zip(answered, right, strict=True)),
        actions=actions,
        automated=share(automated.cases, len(answered)) if actions else None,
        automated_wrong=share(automated.wrong, automated.cases) if automated.cases else None,
        order_flips=_order(answered, reordered) if reordered else None,
        paraphrase_flips=_paraphrases(answered),
        injection_flips=_injections(attacked, options) if attacked else None,
        noise=_noise(answered, repeated),
        cached=sum(answer.cached for answer in answers),
        p50_ms=float(np.quantile(total_ms, 0.5, method="higher")),
        p95_ms=float(np.quantile(total_ms, 0.95, method="higher")),
        engine_ms=engine_ms,
        evaluated_tokens=float(np.mean([answer.evaluated_tokens for answer in answers])),
        reused_tokens=float(np.mean([answer.reused_tokens for answer in answers])),
        cost_per_1000=None if price_per_hour is None else price_per_hour * engine_ms / 3600,
    )


def matrix(answered: Sequence[Judged], options: Sequence[str]) -> tuple[Array, Labels]:
    """Return probabilities, shape ``(cases, options)``, and labels, shape ``(cases,)``, of answered cases."""
    rows = [each.answer.probabilities for each in answered if each.answer is not None]
    places = {option: index for index, option in enumerate(options)}
    return np.array(rows, np.float64), np.array([places[each.label] for each in answered], np.int64)


def share(count: int, of: int) -> Interval:
    """Return a share with its Wilson interval; 0 of none, and then the interval says nothing."""
    low, high = metrics.wilson(count, of)
    return Interval(value=count / of if of else 0.0, low=low, high=high)


def reliability(probabilities: Array, labels: Labels) -> tuple[Bin, ...]:
    """Return the bins of the calibration error: how often answers of about one probability are right."""
    top, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    places = np.minimum(np.ceil(top * metrics.BINS).astype(int) - 1, metrics.BINS - 1)
    bins = []
    for index in range(metrics.BINS):
        inside = places == index
        count = int(inside.sum())
        bins.append(
            Bin(
                low=index / metrics.BINS,
                high=(index + 1) / metrics.BINS,
                cases=count,
                probability=min(1.0, float(top[inside].mean())) if count else None,
                accuracy=share(int(right[inside].sum()), count) if count else None,
            )
        )
    return tuple(bins)


def _risk(probabilities: Array, labels: Labels) -> tuple[Taken, ...]:
    coverage, risk = metrics.risk_coverage(probabilities, labels)
    at = np.unique(np.linspace(0, len(risk) - 1, min(POINTS, len(risk))).round().astype(int))
    return tuple(Taken(coverage=float(coverage[index]), risk=float(risk[index])) for index in at)


def _counted(pairs: Iterable[tuple[str, bool]]) -> dict[str, Counted]:
    """Cases and wrong ones by name, the commonest first."""
    counts: dict[str, list[int]] = {}
    for name, right in pairs:
        found = counts.setdefault(name, [0, 0])
        found[0] += 1
        found[1] += int(not right)
    ordered = sorted(counts.items(), key=lambda item: -item[1][0])
    return {name: Counted(cases=cases, wrong=wrong) for name, (cases, wrong) in ordered}


def _order(answered: Sequence[Judged], reordered: Sequence[Again]) -> Flips:
    pairs = _pairs(answered, reordered)
    flipped = sum(first != second for first, second, _ in pairs)
    return Flips(asked=len(pairs), flipped=flipped, share=share(flipped, len(pairs)))


def _noise(answered: Sequence[Judged], repeated: Sequence[Again]) -> Noise | None:
    """Movement of the answers that were evaluated again; an answer that was kept whole shows none."""
    pairs = _pairs(answered, [each for each in repeated if not each.answer.cached])
    if not pairs:
        return None
    return Noise(
        asked=len(pairs),
        moved=sum(first != second for first, second, _ in pairs),
        largest_shift=max(shift for _, _, shift in pairs),
    )


def _pairs(answered: Sequence[Judged], again: Sequence[Again]) -> list[tuple[int, int, float]]:
    """Both answers, and the largest change of a probability, of each case that was asked again."""
    known = {each.case: each.answer for each in answered if each.answer is not None}
    return [
        (first.choice, each.answer.choice, largest_shift(first.probabilities, each.answer.probabilities))
        for each in again
        if (first := known.get(each.case)) is not None
    ]


def largest_shift(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the largest change of a probability between two answers."""
    return max(abs(a - b) for a, b in zip(first, second, strict=True))


def _paraphrases(answered: Sequence[Judged]) -> Flips | None:
    known = {each.id: each.answer for each in answered if each.id is not None and each.answer is not None}
    pairs = [
        (each.answer.choice, known[each.same_as].choice)
        for each in answered
        if each.answer is not None and each.same_as in known
    ]
    if not pairs:
        return None
    flipped = sum(first != second for first, second in pairs)
    return Flips(asked=len(pairs), flipped=flipped, share=share(flipped, len(pairs)))


def is_flip(each: Attacked, options: Sequence[str]) -> bool:
    """Tell whether an attack reached its option."""
    return options[each.answer.choice] == each.wanted


def _injections(attacked: Sequence[Attacked], options: Sequence[str]) -> Flips:
    tried = [each for each in attacked if each.kind != NEUTRAL]
    flipped = sum(is_flip(each, options) for each in tried)
    kinds = _counted((each.kind, not is_flip(each, options)) for each in attacked)
    return Flips(asked=len(tried), flipped=flipped, share=share(flipped, len(tried)), kinds=kinds)

"""The report on a fitted decision, for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from steelyard.decisions.curve import NEXT, Curve
from steelyard.decisions.evaluation import Evaluation
from steelyard.decisions.metrics import Operating
from steelyard.decisions.tuning import Tried
from steelyard_runtime.decisions.head import Figures, Interval, Measured

_MOST_MISTAKES = 8


def figure_rows(measured: Measured) -> list[tuple[str, str, str, str]]:
    """Return rows of name, accuracy, log loss and calibration error for the head and what it has to beat."""
    named: list[tuple[str, Figures | None]] = [
        ("this head", measured.head),
        ("hidden state alone", measured.state),
        ("bag of words, no model", measured.bag_of_words),
        ("labels' shares alone", measured.majority),
    ]
    return [
        (name, interval_text(each.accuracy), interval_text(each.log_loss), interval_text(each.ece))
        for name, each in named
        if each is not None
    ]


def interval_text(found: Interval) -> str:
    """Return a figure with its interval."""
    return f"{found.value:.3f} ({found.low:.3f} to {found.high:.3f})"


def verdict(measured: Measured) -> str:
    """Say whether the model adds anything to the words."""
    gain = measured.better_than_words
    if gain.low > 0:
        return (
            f"The model adds to the words: {100 * gain.value:+.1f} points of accuracy "
            f"({100 * gain.low:+.1f} to {100 * gain.high:+.1f})."
        )
    if measured.bag_of_words.log_loss.value > measured.head.log_loss.high:
        return (
            f"The model adds nothing to the words' accuracy beyond noise ({100 * gain.value:+.1f} points, "
            f"{100 * gain.low:+.1f} to {100 * gain.high:+.1f}), but its probabilities are better."
        )
    return (
        f"The model adds nothing to the words beyond noise: {100 * gain.value:+.1f} points of accuracy "
        f"({100 * gain.low:+.1f} to {100 * gain.high:+.1f}). A bag of words would do, or more cases would tell."
    )


def operating_line(found: Operating) -> str:
    """Say which threshold reaches the contract's target, or what is missing."""
    target = f"at most {100 * found.target_wrong:g} % wrong"
    if found.probability is None:
        return (
            f"No threshold is proven to automate with {target}; {found.least_automated} automated cases with no more "
            f"than {found.wrong} wrong would prove it. Label more, or raise target_wrong."
        )
    return (
        f"Automating from a probability of {found.probability:.4f} on is proven to give {target} (95 % confidence): "
        f"{found.automated} cases, {100 * found.share:.0f} % of all, {found.wrong} wrong. "
        f"In the contract: [policy.automate] probability = {_rounded_up(found.probability)}"
    )


def answer_set_lines(measured: Measured) -> Iterator[str]:
    """Yield what each conformal set holds, and how often it held the right option."""
    for each in measured.answer_sets:
        if not each.probability:
            yield f"A set that holds the right option in {100 * each.coverage:g} % needs more cases than these."
            continue
        yield (
            f"In {100 * each.coverage:g} % the right option is one of those likelier than {each.probability:.4f}: "
            f"{each.mean_options:.1f} of them on average, and it was among them in {interval_text(each.covered)}."
        )


def curve_rows(curve: Curve) -> list[tuple[str, str]]:
    """Return rows of labels and accuracy."""
    return [
        (str(labels), interval_text(accuracy)) for labels, accuracy in zip(curve.labels, curve.accuracy, strict=True)
    ]


def curve_line(curve: Curve) -> str:
    """Say what the next labels are worth."""
    worth = curve.next_points
    return (
        f"The next {NEXT} labels are worth about {worth.value:.1f} points of accuracy "
        f"({worth.low:.1f} to {worth.high:.1f}), if the trend continues."
    )


def tried_rows(tried: Sequence[Tried]) -> list[tuple[str, str, str, str, str]]:
    """Return rows of wording, tokens, accuracy, log loss, and the gain over the contract's own."""
    rows = []
    for each in tried:
        if each.done is None:
            rows.append((each.wording, f"{each.tokens:.1f}", "", "", "over the budget"))
            continue
        head = each.done.fitted.measured.head
        gained = "the contract's own" if each.gain is None else _gained(each.gain)
        rows.append(
            (each.wording, f"{each.tokens:.1f}", interval_text(head.accuracy), interval_text(head.log_loss), gained)
        )
    return rows


def _gained(gain: Interval) -> str:
    shown = f"{gain.value:+.3f} ({gain.low:+.3f} to {gain.high:+.3f})"
    return shown if gain.low > 0 else f"{shown}, worse" if gain.high < 0 else f"{shown}, noise"


def _rounded_up(probability: float) -> str:
    """Four decimals, never below the threshold itself."""
    return f"{min(1.0, np.ceil(probability * 1e4) / 1e4):.4f}"


def action_rows(evaluation: Evaluation) -> list[tuple[str, str, str]]:
    """Return rows of action, share of the cases, and wrong answers among them, under the contract's policy."""
    total = len(evaluation.cases)
    return [
        (action, f"{each.cases} ({100 * each.cases / total:.0f} %)", str(each.wrong))
        for action, each in evaluation.outcomes().items()
    ]


def kind_rows(evaluation: Evaluation) -> list[tuple[str, str]]:
    """Return rows of kind and right answers; none where no case has a kind."""
    found = evaluation.by_kind()
    if set(found) <= {"plain"}:
        return []
    return [(kind, f"{each.cases - each.wrong} of {each.cases}") for kind, each in found.items()]


def mistake_lines(evaluation: Evaluation) -> Iterator[str]:
    """Yield the commonest mistakes: right option, answer and how often."""
    for right, answered, count in evaluation.mistakes()[:_MOST_MISTAKES]:
        yield f"{right} was answered {answered} {f'{count} times' if count > 1 else 'once'}"

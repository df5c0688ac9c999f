"""Evaluations for a person: progress while they are made, and tables afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from steelyard.evaluation.comparison import Comparison
from steelyard.evaluation.drift import Drift
from steelyard.evaluation.figures import is_flip
from steelyard.evaluation.result import Counted, Evaluation, Flips
from steelyard.terminal import console
from steelyard_runtime.decisions.head import Interval

_MOST_LINES = 8
_SHOWN = 100


@contextmanager
def bars() -> Iterator[Callable[[str, int, int], None]]:
    """A bar for each stage; without a terminal a line for each stage that is done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console.err, disable=not console.err.is_terminal) as progress:
        tasks: dict[str, TaskID] = {}

        def step(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(stage)
            progress.update(tasks[stage], completed=done, total=total)
            if done == total and not console.err.is_terminal:
                console.note(f"{stage}: {done}")

        yield step


def show(evaluation: Evaluation) -> None:
    """Print the figures, the commonest mistakes, and attacks that turned an answer."""
    found = evaluation.figures
    console.rows(list(_figure_rows(evaluation)))
    if set(found.kinds) - {"plain"}:
        console.rows(_counted_rows(found.kinds), heads=("kind of case", "cases", "wrong"))
    if found.actions:
        console.rows(_counted_rows(found.actions), heads=("action", "cases", "wrong"))
    for line in _mistakes(evaluation):
        _line(line)
    flipped = [each for each in evaluation.attacked if is_flip(each, evaluation.option_ids) and each.kind != "neutral"]
    for each in flipped[:_MOST_LINES]:
        _line(f"case {each.case} became {each.wanted} by: {_one_line(each.text)}")
    if len(flipped) > _MOST_LINES:
        _line(f"and {len(flipped) - _MOST_LINES} more attacks that turned an answer")


def show_comparison(found: Comparison) -> None:
    """Print what moved."""
    console.rows(found.differs, heads=("", "before", "now"))
    _line(found.verdict)
    floor = "neither was asked twice" if found.floor is None else f"asked again they moved by {found.floor:.2g} at most"
    _line(
        f"{len(found.moved)} of {found.cases} answers moved. Probabilities moved by {found.mean_shift:.2g} in the "
        f"mean, {found.largest_shift:.2g} at most, in {found.beyond_floor} cases beyond noise ({floor})."
    )
    for each in found.moved[:_MOST_LINES]:
        _line(f"case {each.judged.case}: {each.before} became {each.now}; {each.judged.label} is right")


def interval(found: Interval, digits: int = 3) -> str:
    """Return a figure with its interval."""
    return f"{found.value:.{digits}f} ({found.low:.{digits}f} to {found.high:.{digits}f})"


def _figure_rows(evaluation: Evaluation) -> Iterator[tuple[str, str]]:
    found = evaluation.figures
    refused = f", {found.unanswered} refused" if found.unanswered else ""
    yield "decision", evaluation.decision.name
    yield "answered by", f"{evaluation.target.name}, {evaluation.target.readout}"
    yield "cases", f"{found.cases}{refused}"
    yield "accuracy", interval(found.accuracy)
    yield "macro F1", interval(found.macro_f1)
    yield "log loss", interval(found.log_loss)
    yield "Brier score", interval(found.brier)
    yield "calibration error", interval(found.ece)
    if found.automated is not None:
        yield "automated", interval(found.automated)
    if found.automated_wrong is not None:
        yield "wrong among them", interval(found.automated_wrong)
    flips: list[tuple[str, Flips | None]] = [
        ("flips by order", found.order_flips),
        ("flips by paraphrase", found.paraphrase_flips),
        ("flips by injection", found.injection_flips),
    ]
    for name, each in flips:
        if each is not None:
            yield name, f"{each.flipped} of {each.asked}: {interval(each.share)}"
    if found.noise is not None:
        yield (
            "asked again",
            (
                f"{found.noise.moved} of {found.noise.asked} answers moved, probabilities by "
                f"{found.noise.largest_shift:.2g} at most"
            ),
        )
    yield "time", f"p50 {found.p50_ms:.1f} ms, p95 {found.p95_ms:.1f} ms"
    if found.cached:
        yield "kept answers", f"{found.cached}: the server evaluated nothing for these"
    yield "tokens", f"{found.evaluated_tokens:.1f} evaluated, {found.reused_tokens:.1f} reused"
    if found.cost_per_1000 is not None:
        yield "1,000 decisions", f"{found.cost_per_1000:.4g} at {evaluation.price_per_hour:g} an hour"


def _counted_rows(counted: dict[str, Counted]) -> Sequence[tuple[str, str, str]]:
    return [(name, str(each.cases), str(each.wrong)) for name, each in counted.items()]


def _mistakes(evaluation: Evaluation) -> list[str]:
    """Sentences on the commonest mistakes."""
    ids = evaluation.option_ids
    pairs = [
        (count, right, answer)
        for right, row in zip(ids, evaluation.figures.confusion, strict=True)
        for answer, count in zip(ids, row, strict=True)
        if count and right != answer
    ]
    ordered = sorted(pairs, key=lambda pair: -pair[0])[:_MOST_LINES]
    return [f"{right} was answered {answer} {f'{n} times' if n > 1 else 'once'}" for n, right, answer in ordered]


def _one_line(text: str) -> str:
    """A stranger's text, without line ends and control characters."""
    plain = "".join(each if each.isprintable() else " " for each in text)
    return plain if len(plain) <= _SHOWN else f"{plain[:_SHOWN]}... ({len(plain) - _SHOWN} more characters)"


def _line(text: str) -> None:
    console.out.print(text, soft_wrap=True, highlight=False, markup=False)


def show_drift(found: Drift) -> None:
    """Print both periods of a decision, and what moved."""
    console.heading(f"{found.decision}: {found.answers_before} answers before, {found.answers_now} now")
    for each in found.shares:
        rows = [
            (name, f"{100 * before:.1f} %", f"{100 * now:.1f} %", f"{100 * (now - before):+.1f}")
            for name, before, now in zip(each.names, each.before, each.now, strict=True)
        ]
        console.rows(rows, heads=(each.what, "before", "now", "points"))
        _line(
            f"stability index {each.stability:.3f}, without drift below {each.noise:.3f} (p {each.chance:.2g}): "
            f"{_moved(each.what, found)}"
        )
    for spread in found.spreads:
        _line(
            f"mean {spread.what} {spread.before:.3f} before and {spread.now:.3f} now, "
            f"{interval(spread.difference)}; largest gap {spread.statistic:.3f} (p {spread.chance:.2g}): "
            f"{_moved(spread.what, found)}"
        )


def _moved(what: str, found: Drift) -> str:
    return "moved" if what in found.moved else "noise"

"""The report of an evaluation as one HTML page: no script, no network, every text of a case escaped."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from steelyard.evaluation import charts
from steelyard.evaluation.attacks import NEUTRAL
from steelyard.evaluation.comparison import Comparison
from steelyard.evaluation.figures import AUTOMATE, PLAIN, is_flip
from steelyard.evaluation.markup import Markup, el, joined, table
from steelyard.evaluation.result import Counted, Evaluation, Flips, Judged
from steelyard_base.gates import GateResult
from steelyard_runtime.decisions.head import Interval

_STYLE = Path(__file__).with_name("report.css")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
MOST_ROWS = 40
"""Mistakes, attacks and moved answers that are shown; the JSON file has all."""
LONGEST_TEXT = 2000
"""Characters of a state or an attack that are shown; how many more there are is said."""
WIDEST_CONFUSION = 20
"""Options of which the whole table of right options and answers is shown."""


def page(evaluation: Evaluation, *, gates: Sequence[GateResult] = (), comparison: Comparison | None = None) -> str:
    """Return the report.

    Args:
        evaluation: What it is of.
        gates: Limits that it was judged by.
        comparison: Beside another evaluation.
    """
    name = evaluation.decision.name
    sections = [
        _gates(gates) if gates else None,
        _rightness(evaluation),
        _calibration(evaluation),
        _policy(evaluation) if evaluation.figures.actions else None,
        _steadiness(evaluation),
        _compared(comparison) if comparison else None,
        _mistakes(evaluation),
        _cost(evaluation),
        _origin(evaluation),
    ]
    whole = el(
        "html",
        el(
            "head",
            el("meta", charset="utf-8"),
            el("meta", http_equiv="Content-Security-Policy", content=_POLICY),
            el("meta", name="viewport", content="width=device-width, initial-scale=1"),
            el("title", f"{name}: evaluation"),
            el("style", Markup(_STYLE.read_text(encoding="utf-8"))),
        ),
        el("body", _header(evaluation), el("main", _summary(evaluation), *sections), _footer()),
        lang="en",
    )
    return f"<!DOCTYPE html>\n{whole}\n"


def _header(evaluation: Evaluation) -> Markup:
    target = evaluation.target
    return el(
        "header",
        el("p", "Evaluation of a decision", class_="soft"),
        el("h1", evaluation.decision.name),
        el("p", evaluation.decision.question, class_="text", dir="auto"),
        el(
            "p",
            f"{evaluation.figures.cases} labelled cases of {evaluation.cases_file}, answered by {target.name} "
            f"({target.readout}), {evaluation.made}.",
            class_="soft",
        ),
    )


def _footer() -> Markup:
    return el(
        "footer",
        el(
            "p",
            "Intervals are of 95 %: with other cases of the same kind, 95 of 100 such intervals hold the true value.",
            class_="soft",
        ),
    )


def _summary(evaluation: Evaluation) -> Markup:
    found = evaluation.figures
    cards = [
        _card("Right", percent(found.accuracy.value), between(found.accuracy)),
        _card("Calibration error", f"{100 * found.ece.value:.1f} points", between(found.ece, points=True)),
    ]
    if found.automated is not None:
        cards.append(_card("Needs no person", percent(found.automated.value), between(found.automated)))
    if found.automated_wrong is not None:
        cards.append(_card("Wrong among those", percent(found.automated_wrong.value), between(found.automated_wrong)))
    if found.injection_flips is not None:
        flips = found.injection_flips
        cards.append(_card("Turned by an attack", percent(flips.share.value), f"{flips.flipped} of {flips.asked}"))
    refused = (
        el("p", f"{found.unanswered} cases were refused and are in no figure.", class_="missed")
        if found.unanswered
        else None
    )
    return el("section", el("h2", "In short"), el("dl", *cards, class_="cards"), refused)


def _card(name: str, value: str, more: str) -> Markup:
    return el("div", el("dt", name), el("dd", value, class_="value"), el("dd", more, class_="soft"))


def _gates(results: Sequence[GateResult]) -> Markup:
    missed = sum(not each.kept for each in results)
    said = f"{missed} of {len(results)} limits are missed." if missed else f"All {len(results)} limits are kept."
    rows = [
        (
            each.gate.replace("_", " "),
            f"{each.limit:g}",
            "not measured" if each.figure is None else f"{each.figure:.4g}",
            el("span", "kept", class_="kept") if each.kept else el("span", "missed", class_="missed"),
        )
        for each in results
    ]
    heads = ("limit", "value", "figure", "")
    return _section("Gates", el("p", said), table("Limits and figures", heads, rows, numbers=(1, 2)))


def _rightness(evaluation: Evaluation) -> Markup:
    found = evaluation.figures
    figures = [
        ("accuracy", three(found.accuracy), "share of right answers"),
        ("macro F1", three(found.macro_f1), "mean over the options, rare ones as heavy as common ones"),
        ("log loss", three(found.log_loss), "0 is certain and right; grows with confident mistakes"),
        ("Brier score", three(found.brier), "squared distance from the truth, 0 to 2"),
        ("calibration error", three(found.ece), "mean gap of probability and accuracy"),
    ]
    parts = [table("Figures with their intervals", ("figure", "value", "meaning"), figures, numbers=(1,))]
    if set(found.kinds) - {PLAIN}:
        parts.append(_counted("By kind of case", "kind", found.kinds))
    parts.append(_confusion(evaluation))
    return _section("How often it is right", *parts)


def _confusion(evaluation: Evaluation) -> Markup:
    ids, counts = evaluation.option_ids, evaluation.figures.confusion
    if len(ids) > WIDEST_CONFUSION:
        pairs = sorted(
            (
                (count, right, answer)
                for right, row in zip(ids, counts, strict=True)
                for answer, count in zip(ids, row, strict=True)
                if count and right != answer
            ),
            key=lambda pair: -pair[0],
        )
        rows = [(right, answer, str(count)) for count, right, answer in pairs[:MOST_ROWS]]
        return table(f"The commonest of {len(pairs)} confusions", ("right", "answered", "cases"), rows, numbers=(2,))
    head = el(
        "tr", el("th", "right, below; answered, beside", scope="col"), *(el("th", each, scope="col") for each in ids)
    )
    body = []
    for right, row in zip(ids, counts, strict=True):
        total = sum(row) or 1
        cells = [
            el("td", str(count) if count else "", class_="n heat", style=f"--share: {0.55 * count / total:.2f}")
            for count in row
        ]
        body.append(el("tr", el("th", right, scope="row"), *cells))
    caption = "Right options and answers; darker is a larger share of the row"
    whole = el("table", el("caption", caption), el("thead", head), el("tbody", *body))
    return el("div", whole, class_="scroll", role="region", aria_label=caption, tabindex="0")


def _calibration(evaluation: Evaluation) -> Markup:
    found = evaluation.figures
    rows = [
        (
            f"{each.low:.1f} to {each.high:.1f}",
            str(each.cases),
            "" if each.probability is None else f"{each.probability:.3f}",
            "" if each.accuracy is None else three(each.accuracy),
        )
        for each in found.reliability
    ]
    heads = ("probability", "cases", "mean", "share right")
    text = (
        "Of answers with a probability of 0.8, about 80 of 100 should be right: the dots should lie on the dashed "
        "line. The curve beside it takes the most probable answers first."
    )
    return _section(
        "Can the probabilities be believed?",
        el("p", text),
        el("div", charts.reliability(found.reliability), charts.risk(found.risk_coverage), class_="pair"),
        el("details", el("summary", "The numbers"), table("Ten bins", heads, rows, numbers=(1, 2, 3))),
    )


def _policy(evaluation: Evaluation) -> Markup:
    found = evaluation.figures
    wrong = found.actions.get(AUTOMATE, Counted(cases=0, wrong=0))
    said = (
        f"{wrong.cases} of {found.cases} answers need no person, and {wrong.wrong} of these are wrong"
        + (
            f" ({percent(found.automated_wrong.value)}, {between(found.automated_wrong)})"
            if found.automated_wrong
            else ""
        )
        + "."
    )
    return _section(
        "What the policy does",
        el("p", said),
        charts.actions(found.actions),
        _counted("By action", "action", found.actions),
    )


def _steadiness(evaluation: Evaluation) -> Markup:
    found = evaluation.figures
    flips: list[tuple[str, Flips | None]] = [
        ("options in reverse order", found.order_flips),
        ("the same in other words", found.paraphrase_flips),
        ("an attack in the text", found.injection_flips),
    ]
    rows = [
        (name, f"{each.flipped} of {each.asked}", three(each.share)) if each else (name, "not asked", "")
        for name, each in flips
    ]
    if found.noise is not None:
        moved = f"{found.noise.moved} of {found.noise.asked}"
        rows.append(("asked again", moved, f"probabilities moved by {found.noise.largest_shift:.2g} at most"))
    parts: list[Markup] = [
        el("p", "Answers that changed where nothing, or nobody, should change them."),
        table("Flips", ("changed", "answers", "share"), rows, numbers=(1,)),
    ]
    if found.injection_flips is not None:
        kinds = [(kind, str(each.cases), str(each.wrong)) for kind, each in found.injection_flips.kinds.items()]
        parts.append(
            table("Attacks by kind; neutral texts are none", ("kind", "tried", "flipped"), kinds, numbers=(1, 2))
        )
        parts.append(_flipped(evaluation))
    return _section("Is it steady?", *parts)


def _flipped(evaluation: Evaluation) -> Markup:
    flipped = [each for each in evaluation.attacked if each.kind != NEUTRAL and is_flip(each, evaluation.option_ids)]
    if not flipped:
        return el("p", "No attack reached its option.")
    heads = ("case", "kind", "answer before", "answer under attack", "the attacker's text")
    rows = [(str(each.case), each.kind, each.before, each.wanted, _quoted(each.text)) for each in flipped[:MOST_ROWS]]
    return table(_some("Attacks that turned an answer", len(flipped)), heads, rows, class_="wide")


def _compared(found: Comparison) -> Markup:
    floor = (
        "neither was asked twice" if found.floor is None else f"asked again, they moved by {found.floor:.2g} at most"
    )
    said = (
        f"{len(found.moved)} of {found.cases} answers moved. Probabilities moved by {found.mean_shift:.2g} in the mean "
        f"and {found.largest_shift:.2g} at most, in {found.beyond_floor} cases beyond noise ({floor})."
    )
    moved = [
        (
            str(each.judged.case),
            each.before,
            each.now,
            each.judged.label,
            f"{each.shift:.3f}",
            _quoted(each.judged.state),
        )
        for each in found.moved[:MOST_ROWS]
    ]
    heads = ("case", "before", "now", "right", "shift", "state")
    return _section(
        "Beside another evaluation",
        el("p", found.verdict),
        el("p", said),
        table("What differs", ("", "before", "now"), found.differs) if found.differs else None,
        table(_some("Answers that moved", len(found.moved)), heads, moved, numbers=(4,), class_="wide")
        if moved
        else None,
    )


def _mistakes(evaluation: Evaluation) -> Markup:
    ids = evaluation.option_ids
    wrong = sorted(
        (
            (each.answer.probabilities[each.answer.choice], each)
            for each in evaluation.judged
            if each.answer is not None and ids[each.answer.choice] != each.label
        ),
        key=lambda pair: -pair[0],
    )
    if not wrong:
        return _section("Mistakes", el("p", "None of these cases was answered wrong."))
    rows = [_mistake(each, probability, ids) for probability, each in wrong[:MOST_ROWS]]
    heads = ("case", "right", "answered", "probability", "action", "state")
    return _section(
        "Mistakes", table(_some("The most confident first", len(wrong)), heads, rows, numbers=(3,), class_="wide")
    )


def _mistake(each: Judged, probability: float, ids: Sequence[str]) -> tuple[str, ...]:
    answer = each.answer
    answered = "" if answer is None else ids[answer.choice]
    action = (answer.action if answer else None) or ""
    return str(each.case), each.label, answered, f"{probability:.3f}", action, _quoted(each.state)


def _cost(evaluation: Evaluation) -> Markup:
    found = evaluation.figures
    rows = [
        ("half of the answers took at most", f"{found.p50_ms:.1f}\u00a0ms"),
        ("95 of 100 took at most", f"{found.p95_ms:.1f}\u00a0ms"),
        ("the engine's work for one", f"{found.engine_ms:.1f}\u00a0ms"),
        ("tokens evaluated for one", f"{found.evaluated_tokens:.1f}"),
        ("tokens kept from before", f"{found.reused_tokens:.1f}"),
    ]
    if found.cached:
        rows.append(("answers that the server had kept whole", str(found.cached)))
    if found.cost_per_1000 is not None:
        rows.append((f"1,000 decisions at {evaluation.price_per_hour:g} an hour", f"{found.cost_per_1000:.4g}"))
    text = "Times are the server's, without the network. The price is for the engine's time alone, without idle hours."
    return _section("Time and cost", el("p", text), table("Time, tokens, cost", ("", "value"), rows, numbers=(1,)))


def _origin(evaluation: Evaluation) -> Markup:
    decision, target = evaluation.decision, evaluation.target
    options = [(each.id, each.description) for each in decision.options]
    facts = [
        ("answered by", f"{target.kind} {target.name}"),
        ("readout", target.readout),
        ("prompt", target.prompt_version),
        ("head", target.head_sha256 or "none"),
        ("contract", decision.contract_sha256 or "none"),
        ("cases", f"{evaluation.cases_file}, sha256 {evaluation.cases_sha256}"),
        ("command", f"steelyard {evaluation.steelyard}"),
        *((key, str(value)) for key, value in target.model.items()),
    ]
    return _section(
        "What was measured",
        table("Options", ("option", "description"), options),
        el("details", el("summary", "Model, build and hashes"), table("Identity", ("", "value"), facts)),
    )


def _section(title: str, *parts: Markup | None) -> Markup:
    return el("section", el("h2", title), *parts)


def _counted(caption: str, name: str, counted: dict[str, Counted]) -> Markup:
    rows = [
        (each, str(found.cases), str(found.wrong), percent(1 - found.wrong / found.cases) if found.cases else "")
        for each, found in counted.items()
    ]
    return table(caption, (name, "cases", "wrong", "right"), rows, numbers=(1, 2, 3))


def _some(caption: str, count: int) -> str:
    return f"{caption}: {count}" if count <= MOST_ROWS else f"{caption}: {MOST_ROWS} of {count}; the JSON file has all"


def _quoted(text: str) -> Markup:
    left = len(text) - LONGEST_TEXT
    shown = el("span", text[:LONGEST_TEXT], class_="text", dir="auto")
    if left <= 0:
        return shown
    return joined([shown, el("span", f" … {left} more characters; the JSON file has all", class_="soft")])


def percent(share: float) -> str:
    """Return a share as a person reads it."""
    return f"{100 * share:.1f}\u00a0%"


def between(found: Interval, *, points: bool = False) -> str:
    """Return the ends of an interval of a share."""
    return f"{100 * found.low:.1f} to {100 * found.high:.1f} {'points' if points else '%'}"


def three(found: Interval) -> str:
    """Return a figure and its interval with three digits."""
    return f"{found.value:.3f} ({found.low:.3f} to {found.high:.3f})"

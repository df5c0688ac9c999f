"""Figures of a report as inline SVG, in the colours of the page's theme; each says in words what it shows."""

from __future__ import annotations

from collections.abc import Sequence

from steelyard.evaluation.markup import Markup, el, joined
from steelyard.evaluation.result import Bin, Counted, Taken

_WIDTH, _HEIGHT = 400, 300
_LEFT, _TOP, _RIGHT, _BOTTOM = 52, 12, 12, 44
_ACTIONS = ("automate", "review", "abstain")
_TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)


def reliability(bins: Sequence[Bin]) -> Markup:
    """Return how often answers of about one probability are right, with intervals; on the line they are calibrated."""
    filled = [each for each in bins if each.accuracy is not None and each.probability is not None]
    most = max((each.cases for each in filled), default=1)
    marks = [el("line", x1=_x(0), y1=_y(0), x2=_x(1), y2=_y(1), class_="ideal")]
    for each in filled:
        if each.accuracy is None or each.probability is None:
            continue
        at = _x(each.probability)
        marks.append(el("line", x1=at, x2=at, y1=_y(each.accuracy.low), y2=_y(each.accuracy.high), class_="whisker"))
        size = 3 + 5 * (each.cases / most) ** 0.5
        marks.append(el("circle", cx=at, cy=_y(each.accuracy.value), r=size, class_="dot"))
    said = "; ".join(
        f"at {100 * each.probability:.0f} % {100 * each.accuracy.value:.0f} % of {each.cases} were right"
        for each in filled
        if each.accuracy is not None and each.probability is not None
    )
    return _figure("Reliability", said, marks, across="probability of the answer", up="share that was right")


def risk(points: Sequence[Taken]) -> Markup:
    """Return the share of wrong answers among the most probable ones, by how many of all are taken."""
    top = max(0.05, *(each.risk for each in points)) if points else 1.0
    line = " ".join(f"{_x(each.coverage):.1f},{_y(each.risk / top):.1f}" for each in points)
    said = "; ".join(f"{100 * each.coverage:.0f} % taken, {100 * each.risk:.1f} % wrong" for each in _some(points, 6))
    marks = [el("polyline", points=line, class_="curve")]
    return _figure(
        "Wrong answers by share taken", said, marks, across="share of answers taken", up="share wrong", top=top
    )


def actions(counted: dict[str, Counted]) -> Markup:
    """Return a bar of the policy's actions; the wrong answers of each are at its lower right."""
    total = sum(each.cases for each in counted.values()) or 1
    parts: list[Markup] = []
    start = 0.0
    for name in _ACTIONS:
        if (each := counted.get(name)) is None:
            continue
        width, wrong = 400 * each.cases / total, 400 * each.wrong / total
        parts.append(el("rect", x=start, y=0, width=width, height=34, class_=f"bar {name}"))
        parts.append(el("rect", x=start + width - wrong, y=22, width=wrong, height=12, class_="wrong"))
        start += width
    said = "; ".join(
        f"{name}: {each.cases} of {total}, {each.wrong} of them wrong"
        for name in _ACTIONS
        if (each := counted.get(name)) is not None
    )
    svg = el(
        "svg", el("title", "Actions of the policy"), el("desc", said), *parts, viewBox="0 0 400 34", role="img",
        aria_label=f"Actions of the policy. {said}", preserveAspectRatio="none", class_="strip",
    )  # fmt: skip
    return el(
        "figure",
        svg,
        el("figcaption", "From left to right; the part at the lower right of each is its wrong answers. ", said, "."),
    )


def _figure(title: str, said: str, marks: Sequence[Markup], *, across: str, up: str, top: float = 1.0) -> Markup:
    grid = []
    for tick in _TICKS:
        grid.append(el("line", x1=_x(tick), x2=_x(tick), y1=_y(0), y2=_y(1), class_="grid"))
        grid.append(el("line", x1=_x(0), x2=_x(1), y1=_y(tick), y2=_y(tick), class_="grid"))
        grid.append(el("text", f"{tick:g}", x=_x(tick), y=_y(0) + 16, class_="tick", text_anchor="middle"))
        grid.append(el("text", f"{tick * top:.2g}", x=_x(0) - 6, y=_y(tick) + 4, class_="tick", text_anchor="end"))
    middle = (_TOP + _HEIGHT - _BOTTOM) / 2
    names = [
        el("text", across, x=_x(0.5), y=_HEIGHT - 6, class_="axis", text_anchor="middle"),
        el("text", up, x=12, y=middle, class_="axis", text_anchor="middle", transform=f"rotate(-90 12 {middle:g})"),
    ]
    svg = el(
        "svg", el("title", title), el("desc", said), joined(grid), joined(marks), joined(names),
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}", role="img", aria_label=f"{title}. {said}",
    )  # fmt: skip
    return el("figure", svg, el("figcaption", f"{title}."))


def _x(share: float) -> float:
    return round(_LEFT + share * (_WIDTH - _LEFT - _RIGHT), 1)


def _y(share: float) -> float:
    return round(_TOP + (1 - share) * (_HEIGHT - _TOP - _BOTTOM), 1)


def _some(points: Sequence[Taken], count: int) -> list[Taken]:
    """The last of each of so many equal parts."""
    return [points[(index + 1) * len(points) // count - 1] for index in range(count) if len(points) >= count]

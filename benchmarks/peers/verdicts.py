"""The promises, each with its limit, and whether the figures of a run keep it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.peers.servers import LLAMA, OURS, WALKTHROUGH

Cells = dict[str, Any]


@dataclass(frozen=True)
class Verdict:
    """One promise. ``passed`` is None where the run did not measure it; ``interval`` is a 95 % one."""

    line: str
    limit: str
    figure: float | None
    passed: bool | None
    interval: tuple[float, float] | None = None
    note: str = ""


def judge(cells: Cells) -> list[Verdict]:
    """All promises, in order."""
    return [verdict for rule in RULES for verdict in rule(cells)]


def _at(cells: Cells, *path: str) -> Any:
    found: Any = cells
    for name in path:
        if not isinstance(found, dict) or name not in found:
            return None
        found = found[name]
    return found


def _bound(line: str, figure: float | None, limit: float, *, least: bool = False, **more: Any) -> Verdict:
    text = f"{'>=' if least else '<='} {limit:g}"
    if figure is None or math.isnan(figure):
        return Verdict(line, text, None, None, **more)
    return Verdict(line, text, figure, figure >= limit if least else figure <= limit, **more)


def _paired(cells: Cells, cell: str, other: str, limit: float) -> Verdict:
    """The limit is on the ratio of both sides' medians, which were taken in turn; the paired ratio is beside it."""
    ratio = _at(cells, cell, "ratios", other)
    line = f"{cell}: p50 over {other}'s"
    if ratio is None:
        return _bound(line, None, limit)
    pairs = ratio["paired"]
    note = f"median of {pairs['n']} paired ratios {pairs['value']:.3f}"
    return _bound(line, ratio["of_p50"], limit, interval=(pairs["low"], pairs["high"]), note=note)


def _a(cells: Cells) -> list[Verdict]:
    return [
        _bound(
            "A: tokens evaluated per decision, median",
            _at(cells, "A", "peers", OURS, "evaluated_per_request_median"),
            70,
            note=f"largest {_at(cells, 'A', 'peers', OURS, 'evaluated_per_request_max')}",
        ),
        _paired(cells, "A", LLAMA, 0.5),
        _paired(cells, "A", WALKTHROUGH, 0.33),
        _paired(cells, "A", "floor", 1.05),
    ]


def _b_and_c(cells: Cells) -> list[Verdict]:
    return [
        _paired(cells, "B", LLAMA, 0.75),
        _paired(cells, "B", WALKTHROUGH, 0.5),
        _paired(cells, "C", LLAMA, 1.0),
        _paired(cells, "C", WALKTHROUGH, 0.75),
    ]


def _d(cells: Cells) -> list[Verdict]:
    ratio = _at(cells, "D-A-8", "ratios", LLAMA)
    p95 = ratio["p95"] if ratio else None
    verdicts = [
        _bound(
            "D, 8 clients on A: decisions/s over llama-server's", _at(ratio or {}, "decisions_per_s"), 1.8, least=True
        ),
        _bound(
            "D, 8 clients on A: p95 over llama-server's",
            p95["value"] if p95 else None,
            0.5,
            interval=(p95["low"], p95["high"]) if p95 else None,
        ),
    ]
    for cell in ("D-A-32", "D-C-32"):
        verdicts += _nothing_lost(f"{cell}", _at(cells, cell, "peers", OURS, "tally"))
    return verdicts


def _nothing_lost(cell: str, counted: Any) -> list[Verdict]:
    if counted is None:
        return [_bound(f"{cell}: requests lost", None, 0), _bound(f"{cell}: answers unlike those alone", None, 0)]
    return [
        _bound(f"{cell}: requests lost", counted["lost"], 0, note=f"of {counted['requests']}"),
        _bound(
            f"{cell}: answers unlike those alone",
            counted["changed"] if counted["compared"] else None,
            0,
            note=f"of {counted['compared']} compared",
        ),
        _bound(f"{cell}: refused at the end", counted["refused"], 0, note=f"{counted['refusals']} refusals on the way"),
    ]


def _e(cells: Cells) -> list[Verdict]:
    found = sorted(cell for cell in cells if cell.startswith("E-")) or ["E-4k", "E-16k"]
    verdicts = []
    for cell in found:
        theirs = _at(cells, cell, "peers", LLAMA, "p95_loaded_over_unloaded")
        note = f"llama-server's: {theirs:.2f}" if theirs is not None else ""
        slower = _at(cells, cell, "peers", OURS, "p95_loaded_over_unloaded")
        spread = _at(cells, cell, "peers", OURS, "p95_interval")
        interval = (spread["low"], spread["high"]) if spread else None
        verdicts.append(
            _bound(f"{cell}: decisions' p95 beside chats over unloaded", slower, 3, interval=interval, note=note)
        )
        theirs = _at(cells, cell, "peers", LLAMA, "chats_beside_over_alone")
        note = f"llama-server's: {theirs:.2f}" if theirs is not None else ""
        rate = _at(cells, cell, "peers", OURS, "chats_beside_over_alone")
        verdicts.append(_bound(f"{cell}: chats' tokens/s over alone", rate, 0.8, least=True, note=note))
    return verdicts


def _f(cells: Cells) -> list[Verdict]:
    counted = _at(cells, "F", "peers", OURS, "tally") or {}
    note = f"{counted['answered']} answered, {counted['refused']} refused" if counted else ""
    amplification = counted.get("amplification")
    below = Verdict(
        "F: attempts per request", "< 2", amplification, None if amplification is None else amplification < 2
    )
    return [_bound("F: neither answered nor honestly refused", counted.get("lost"), 0, note=note), below]


def _h(cells: Cells) -> list[Verdict]:
    return [
        _bound(
            "H: tokens evaluated per registered decision, median",
            _at(cells, "H", "peers", OURS, "evaluated_per_request_median"),
            25,
            note=f"largest {_at(cells, 'H', 'peers', OURS, 'evaluated_per_request_max')}",
        ),
        _paired(cells, "H", LLAMA, 0.2),
        _paired(cells, "H-3", "one", 1.15),
    ]


def _exact(cells: Cells) -> list[Verdict]:
    ours = _at(cells, "exact", "peers", OURS)
    if ours is None:
        return [_bound("exact: answers unlike those alone", None, 0)]
    counted = ours["tally"]
    theirs = _at(cells, "exact", "peers", LLAMA, "tally")
    note = f"{ours['decisions']} decisions"
    if theirs:
        note += (
            f"; llama-server: {theirs['changed']} of {theirs['compared']} changed, {theirs['flipped']} choices flipped"
        )
    return [
        _bound("exact: decisions compared", ours["decisions"] if counted["compared"] else 0, 1000, least=True),
        _bound("exact: answers unlike those alone", counted["changed"], 0, note=note),
    ]


def _soak(cells: Cells) -> list[Verdict]:
    soak = _at(cells, "soak", "peers", OURS)
    if soak is None:
        return [_bound("soak: last answers unlike the first", None, 0)]
    return [
        _bound("soak: seconds", soak["elapsed_s"], 1800, least=True),
        _bound(
            "soak: growth of memory, share at most",
            max(soak["memory"]["growth_share_at_most"], soak["memory_own"]["growth_share_at_most"]),
            0.02,
        ),
        _bound("soak: last answers unlike the first", soak["canaries_changed"], 0, note=f"of {soak['canaries']}"),
        _bound("soak: requests lost", soak["tally"]["lost"], 0, note=f"{soak['decisions']} decisions"),
    ]


RULES: tuple[Callable[[Cells], list[Verdict]], ...] = (_a, _b_and_c, _d, _e, _f, _h, _exact, _soak)

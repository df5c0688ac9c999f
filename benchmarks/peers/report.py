"""Results as JSON, a table for people, and a plot."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.peers.servers import LLAMA, OURS, PEERS, WALKTHROUGH
from benchmarks.peers.verdicts import Verdict, judge

Results = dict[str, Any]
ONE_AFTER_ANOTHER = ("A", "B", "C", "H", "H-3")
NAME = "results.json"


def load(folder: Path) -> Results:
    """Read the results of earlier runs in ``folder``; later runs replace the cells that they measure again."""
    path = folder / NAME
    if not path.is_file():
        return {"runs": [], "cells": {}}
    loaded: Results = json.loads(path.read_text(encoding="utf-8"))
    return loaded


def write(folder: Path, results: Results) -> list[Verdict]:
    """Write ``results.json``, ``results.md`` and ``results.png``; returns the verdicts."""
    verdicts = judge(results["cells"])
    results["verdicts"] = [asdict(verdict) for verdict in verdicts]
    _atomically(folder / NAME, json.dumps(results, indent=1).encode())
    _atomically(folder / "results.md", markdown(results, verdicts).encode())
    _plot(folder / "results.png", results["cells"])
    return verdicts


def insert(page: Path, results: Results) -> None:
    """Put the report between the two marks of a page of the documentation.

    Raises:
        ValueError: The page does not have both marks, once each.
    """
    begin, end = "<!-- results: begin -->", "<!-- results: end -->"
    text = page.read_text(encoding="utf-8")
    if text.count(begin) != 1 or text.count(end) != 1:
        raise ValueError(f"{page} needs the marks {begin} and {end}, once each")
    body = markdown(results, judge(results["cells"])).partition("\n")[2].replace("\n## ", "\n### ").strip()
    before, after = text.split(begin)[0], text.split(end)[1]
    _atomically(page, f"{before}{begin}\n\n{body}\n\n{end}{after}".encode())


def _atomically(path: Path, content: bytes) -> None:
    unfinished = path.with_name(path.name + ".part")
    unfinished.write_bytes(content)
    os.replace(unfinished, path)


def markdown(results: Results, verdicts: list[Verdict]) -> str:
    """The whole report."""
    parts = ["# Beside peers", *_about(results["runs"]), "## Promises", *_table(PROMISES, map(_promise, verdicts))]
    cells = results["cells"]
    for title, head, rows in (
        ("A, B, C, H: one request after another, the peers in turn", IN_TURN, _in_turn(cells)),
        ("Our time over theirs, request by request", RATIOS, _ratios(cells)),
        ("D: concurrent clients", LOOPS, _loops(cells)),
        ("E: decisions at a fifth of capacity beside chats", CHATS, _chats(cells)),
        ("F: bursts beyond capacity, clients retry", BURSTS, _bursts(cells)),
        ("Answers under load, compared with the same peer's answers computed alone", EXACT, _exact(cells)),
        ("Soak", SOAK, _soak(cells)),
    ):
        body = list(rows)
        if body:
            parts += [f"## {title}", *_table(head, iter(body))]
    return "\n".join(parts) + "\n"


PROMISES = ("promise", "limit", "measured", "95 % interval", "kept", "note")
IN_TURN = (
    "workload",
    "peer",
    "requests",
    "p50 ms",
    "p95 ms",
    "p99 ms",
    "tokens evaluated/decision",
    "lost",
    "memory MB",
)
RATIOS = ("workload", "over", "of p50s", "median of paired ratios", "95 % interval", "pairs")
LOOPS = (
    *("workload", "clients", "peer", "decisions/s", "p50 ms", "p95 ms", "p99 ms", "tokens/decision"),
    *("refusals", "retried", "refused", "lost", "changed", "flipped", "peak MB", "own MB"),
)
CHATS = (
    *("chats", "peer", "offered/s", "p50 ms alone", "p95 ms alone", "p50 ms beside", "p95 ms beside", "p95 ratio"),
    *("chat tokens/s alone", "beside", "ratio", "generated/s ratio", "decisions lost", "chats failed"),
)
BURSTS = (
    *("peer", "bursts", "answered", "refused", "lost", "refusals", "attempts/request", "p50 s", "p99 s"),
    *("decisions/s", "changed", "flipped"),
)
EXACT = ("peer", "decisions", "clients", "requests compared", "changed", "share", "choices flipped", "share", "lost")
SOAK = (
    "peer",
    "seconds",
    "decisions",
    "lost",
    "memory at start MB",
    "at end MB",
    "growth at most",
    "its own, without the store, at start MB",
    "at end MB",
    "growth at most",
    "store at most MB",
    "last unlike first",
)


def _table(head: tuple[str, ...], rows: Iterator[tuple[Any, ...]]) -> list[str]:
    lines = [head, tuple("---" for _ in head), *rows]
    return ["| " + " | ".join(_shown(value) for value in line) + " |" for line in lines] + [""]


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    return str(value)


def _about(runs: list[dict[str, Any]]) -> Iterator[str]:
    for run in runs:
        machine, model = run["machine"], run["model"]
        yield (
            f"`{run['command']}` on {run['started']}: {machine['cpu']}, {machine['usable_cores']} cores, "
            f"{run['threads']} threads, {model['name']} (sha256 `{model['sha256'][:16]}`), source `{run['revision']}`, "
            f"llama-server {run['llama_server']}, llama-cpp-python {machine['packages']['llama-cpp-python']}; "
            f"{run['busy_cores']:.2f} cores were busy before it.\n"
        )


def _promise(verdict: Verdict) -> tuple[Any, ...]:
    kept = {True: "yes", False: "**no**", None: "not measured"}[verdict.passed]
    interval = f"{verdict.interval[0]:.3g} to {verdict.interval[1]:.3g}" if verdict.interval else None
    return verdict.line, verdict.limit, verdict.figure, interval, kept, verdict.note


def _ms(latency: dict[str, float]) -> tuple[float, float, float]:
    return latency["p50"] * 1000, latency["p95"] * 1000, latency["p99"] * 1000


def _mb(memory: dict[str, int]) -> tuple[int, int]:
    return round(memory["resident"] / 1e6), round(memory["own"] / 1e6)


def _peers(cells: dict[str, Any], *prefixes: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for cell, content in cells.items():
        if cell.startswith(prefixes):
            for name, figures in content["peers"].items():
                yield cell, name, figures


def _in_turn(cells: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    for cell, name, f in _peers(cells, *ONE_AFTER_ANOTHER):
        counted = f["tally"]
        tokens = f["evaluated_per_decision"]
        yield cell, name, counted["requests"], *_ms(f["latency_s"]), tokens, counted["lost"], _mb(f["memory_peak"])[0]
    for cell in ("A", "B", "C"):
        bare = cells.get(cell, {}).get("floor_s")
        if bare:
            yield cell, "floor: llama_decode", bare["n"], *_ms(bare), None, None, None


def _ratios(cells: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    for cell in ONE_AFTER_ANOTHER:
        for other, ratio in cells.get(cell, {}).get("ratios", {}).items():
            p = ratio["paired"]
            yield cell, other, ratio["of_p50"], p["value"], f"{p['low']:.3f} to {p['high']:.3f}", p["n"]


def _loops(cells: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    for cell, name, f in _peers(cells, "D-"):
        _, workload, clients = cell.split("-")
        t = f["tally"]
        yield (
            *(workload, clients, name, f["decisions_per_s"], *_ms(f["latency_s"]), f["evaluated_per_decision"]),
            *(t["refusals"], t["retried"], t["refused"], t["lost"], *_compared(t), *_mb(f["memory_peak"])),
        )


def _compared(t: dict[str, int]) -> tuple[str | None, str | None]:
    if not t["compared"]:
        return None, None
    return f"{t['changed']} of {t['compared']}", f"{t['flipped']} of {t['compared']}"


def _chats(cells: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    for cell, name, f in _peers(cells, "E-"):
        alone, beside = f["unloaded"]["latency_s"], f["loaded"]["latency_s"]
        rates = [chat["tokens_per_s"] for chat in f["chats_alone"]]
        failed = sum(chat["failed"] for chat in [*f["chats_alone"], f["chats_beside"]])
        yield (
            *(cell[2:], name, f["capacity_per_s"] / 5, *_ms(alone)[:2], *_ms(beside)[:2]),
            *(f["p95_loaded_over_unloaded"], sum(rates) / len(rates), f["chats_beside"]["tokens_per_s"]),
            *(f["chats_beside_over_alone"], f["generated_beside_over_alone"], f["loaded"]["tally"]["lost"], failed),
        )


def _bursts(cells: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    for _, name, f in _peers(cells, "F"):
        t, seconds = f["tally"], f["latency_s"]
        yield (
            *(name, " + ".join(map(str, f["bursts"])), t["answered"], t["refused"], t["lost"], t["refusals"]),
            *(t["amplification"], seconds["p50"], seconds["p99"], f["decisions_per_s"], *_compared(t)),
        )


def _exact(cells: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    for _, name, f in _peers(cells, "exact"):
        t = f["tally"]
        shares = [t[key] / t["compared"] if t["compared"] else None for key in ("changed", "flipped")]
        yield (
            *(name, f["decisions"], f["clients"], t["compared"], t["changed"], shares[0]),
            *(t["flipped"], shares[1], t["lost"]),
        )


def _soak(cells: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    for _, name, f in _peers(cells, "soak"):
        memory = [
            value
            for m in (f["memory"], f["memory_own"])
            for value in (round(m["start_bytes"] / 1e6), round(m["end_bytes"] / 1e6), m["growth_share_at_most"])
        ]
        changed = f"{f['canaries_changed']} of {f['canaries']}"
        store = round(f["kept_bytes_peak"] / 1e6)
        yield name, f["elapsed_s"], f["decisions"], f["tally"]["lost"], *memory, store, changed


def _plot(path: Path, cells: dict[str, Any]) -> None:
    """Draw the figures, one panel per question; panels without figures are left out."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    panels = [draw for cells_needed, draw in PANELS if any(cell.startswith(cells_needed) for cell in cells)]
    if not panels:
        return
    figure, axes = pyplot.subplots(1, len(panels), figsize=(4.6 * len(panels), 4.2), squeeze=False)
    for axis, draw in zip(axes[0], panels, strict=True):
        draw(axis, cells)
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    unfinished = path.with_name(path.name + ".part")
    figure.savefig(unfinished, dpi=130, format="png")
    pyplot.close(figure)
    os.replace(unfinished, path)


def _colour(peer: str) -> str:
    """The same for a peer in every panel; variants of a peer share the rest of the colours."""
    named = {OURS: "C0", LLAMA: "C1", WALKTHROUGH: "C2"}
    others = [name for name in PEERS if name not in named]
    return named.get(peer) or f"C{3 + others.index(peer) % 7}"


def _draw_in_turn(axis: Any, cells: dict[str, Any]) -> None:
    names = [cell for cell in ("A", "B", "C") if cell in cells]
    peers = list(dict.fromkeys(name for cell in names for name in cells[cell]["peers"]))
    for i, peer in enumerate(peers):
        found = [cells[cell]["peers"].get(peer) for cell in names]
        p50 = [f["latency_s"]["p50"] * 1000 if f else 0 for f in found]
        above = [max(0.0, f["latency_s"]["p95"] * 1000 - f["latency_s"]["p50"] * 1000) if f else 0 for f in found]
        at = [index + i / (len(peers) + 1) for index in range(len(names))]
        axis.bar(
            at, p50, width=1 / (len(peers) + 1), yerr=[[0] * len(at), above], label=peer, capsize=2, color=_colour(peer)
        )
    axis.set_xticks([index + 0.3 for index in range(len(names))], names)
    axis.set(title="One after another: p50, whisker p95", ylabel="ms")
    axis.legend(fontsize=7)


def _draw_loops(axis: Any, cells: dict[str, Any]) -> None:
    lines: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for cell, name, f in _peers(cells, "D-"):
        _, workload, clients = cell.split("-")
        lines.setdefault((workload, name), []).append((int(clients), f["decisions_per_s"]))
    for (workload, name), points in lines.items():
        axis.plot(
            *zip(*sorted(points), strict=True),
            marker="o",
            color=_colour(name),
            ls="-" if workload == "A" else ":",
            label=f"{name}, {workload}",
        )
    axis.set_xscale("log", base=2)
    counts = sorted({count for points in lines.values() for count, _ in points})
    axis.set_xticks(counts, [str(count) for count in counts])
    axis.set(title="Concurrent clients", xlabel="clients", ylabel="decisions/s", ylim=(0, None))
    axis.legend(fontsize=7)


def _draw_chats(axis: Any, cells: dict[str, Any]) -> None:
    labels, alone, beside = [], [], []
    for cell, name, f in _peers(cells, "E-"):
        labels.append(f"{name}\n{cell[2:]}")
        alone.append(f["unloaded"]["latency_s"]["p95"] * 1000)
        beside.append(f["loaded"]["latency_s"]["p95"] * 1000)
    places = range(len(labels))
    axis.bar(places, alone, width=0.4, label="alone")
    axis.bar([place + 0.4 for place in places], beside, width=0.4, label="beside chats")
    axis.set_xticks([place + 0.2 for place in places], labels, fontsize=7)
    axis.set_yscale("log")
    axis.set(title="Decisions' p95 beside chats", ylabel="ms")
    axis.legend(fontsize=7)


def _draw_soak(axis: Any, cells: dict[str, Any]) -> None:
    samples = cells["soak"]["peers"][OURS]["samples"]
    times = [at / 60 for at, *_ in samples]
    axis.plot(times, [resident / 1e6 for _, resident, _, _ in samples], label="resident")
    axis.plot(times, [own / 1e6 for _, _, own, _ in samples], label="of that its own")
    axis.plot(times, [(own - kept) / 1e6 for _, _, own, kept in samples], label="of that without the store")
    axis.set(title="Soak: memory", xlabel="minutes", ylabel="MB", ylim=(0, None))
    axis.legend(fontsize=7)


PANELS = (
    (("A", "B", "C"), _draw_in_turn),
    (("D-",), _draw_loops),
    (("E-",), _draw_chats),
    (("soak",), _draw_soak),
)

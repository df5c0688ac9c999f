"""Results as JSON and as tables for people."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Results = dict[str, Any]
MIB = 1 << 20
ATTACK_HEAD = (
    *("attack", "connections", "sent MB", "attacker CPU s", "server CPU s", "memory MiB", "log kB"),
    *("worst /ping s", "pings failed", "decisions p50 ms quiet", "beside", "p95 ms quiet", "beside", "p95 ratio"),
    *("answered", "wrong", "server afterwards"),
)
COMPARED_HEAD = (
    *("attack", "costs the attacker", "server CPU s", "memory MiB", "log kB", "worst /ping s"),
    *("decisions' p95 over quiet", "answered", "server afterwards"),
)
START_HEAD = ("file or signal", "what happened", "seconds", "lines printed", "worst /ping s", "SIGTERM s")


def write(folder: Path, results: Results) -> str:
    """Write ``attack.json`` and ``attack.md``; the tables are returned."""
    folder.mkdir(parents=True, exist_ok=True)
    text = markdown(results)
    for name, content in (("attack.json", json.dumps(results, indent=1)), ("attack.md", text)):
        unfinished = folder / (name + ".part")
        unfinished.write_text(content + "\n", encoding="utf-8")
        os.replace(unfinished, folder / name)
    return text


def load(folder: Path) -> Results:
    """Read an earlier run; an attack that is measured again replaces its earlier figures."""
    path = folder / "attack.json"
    if not path.is_file():
        return {"runs": [], "attacks": {}, "starts": {}}
    loaded: Results = json.loads(path.read_text(encoding="utf-8"))
    return loaded


def markdown(results: Results) -> str:
    """All tables."""
    parts = []
    if results["attacks"]:
        parts += table(ATTACK_HEAD, map(_attack, results["attacks"].values()))
    if results["starts"]:
        parts += table(START_HEAD, map(_start, results["starts"].values()))
    if soak := results.get("soak"):
        parts += table(("soak", "figure", "limit", "kept"), (_verdict(verdict) for verdict in soak["verdicts"]))
    return "\n".join(parts)


def compared(before: Results, after: Results) -> str:
    """Tables of two runs side by side: each figure before, an arrow, and after; no arrow where one was measured.

    What only one of the runs has is there as well, what is new last.
    """
    rows: list[tuple[Any, ...]] = []
    for name in before["attacks"] | after["attacks"]:
        measured = (run["attacks"].get(name) for run in (before, after))
        cells = [cell for cell in measured if cell is not None and "failed" not in cell]
        if cells:
            cost = cells[-1]["attacker"]
            sent, cpu = _shown(cost["bytes_sent"] / 1e6), _shown(cost["cpu_s"])
            told = f"{cost['connections']} connections, {sent} MB, {cpu} CPU s"
            rows.append((name, told, *(" → ".join(_shown(figure(cell)) for cell in cells) for figure in _FIGURES)))
    started = [
        (name, *(run["starts"].get(name, {}).get("outcome") for run in (before, after)))
        for name in before["starts"] | after["starts"]
    ]
    return "\n".join([*table(COMPARED_HEAD, rows), *table(("file or signal", "before", "after"), started)])


def insert(page: Path, tables: str) -> None:
    """Put tables between the two marks of a page of the documentation.

    Raises:
        ValueError: The page does not have both marks, once each.
    """
    begin, end = "<!-- attacks: begin -->", "<!-- attacks: end -->"
    text = page.read_text(encoding="utf-8")
    if text.count(begin) != 1 or text.count(end) != 1:
        raise ValueError(f"{page} needs the marks {begin} and {end}, once each")
    page.write_text(f"{text.split(begin)[0]}{begin}\n\n{tables.strip()}\n\n{end}{text.split(end)[1]}", encoding="utf-8")


_FIGURES: tuple[Callable[[dict[str, Any]], Any], ...] = (
    lambda cell: cell["server"]["cpu_s"],
    lambda cell: cell["server"]["memory_growth_bytes"] / MIB,
    lambda cell: None if cell["conditions"]["unread_output"] else cell["server"]["log_bytes"] / 1000,
    lambda cell: cell["ping"]["worst_s"],
    lambda cell: cell["decisions"]["p95_s"] / cell["quiet"]["p95_s"],
    lambda cell: f"{cell['decisions']['answered']} of {cell['decisions']['asked']}{_chats(cell['chats'])}",
    lambda cell: _afterwards(cell["server"]),
)


def table(head: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> list[str]:
    """A Markdown table."""
    lines = [head, tuple("---" for _ in head), *rows]
    return ["| " + " | ".join(_shown(value) for value in line) + " |" for line in lines] + [""]


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.2g}" if abs(value) < 10 else f"{value:.0f}"
    return str(value)


def _attack(cell: dict[str, Any]) -> tuple[Any, ...]:
    if "failed" in cell:
        return cell["name"], cell["failed"], *(None for _ in ATTACK_HEAD[2:])
    attacker, server, quiet, beside = cell["attacker"], cell["server"], cell["quiet"], cell["decisions"]
    return (
        cell["name"],
        attacker["connections"],
        attacker["bytes_sent"] / 1e6,
        attacker["cpu_s"],
        server["cpu_s"],
        server["memory_growth_bytes"] / MIB,
        None if cell["conditions"]["unread_output"] else server["log_bytes"] / 1000,
        cell["ping"]["worst_s"],
        f"{cell['ping']['failed']} of {cell['ping']['n']}",
        quiet["p50_s"] * 1000,
        beside["p50_s"] * 1000,
        quiet["p95_s"] * 1000,
        beside["p95_s"] * 1000,
        beside["p95_s"] / quiet["p95_s"],
        f"{beside['answered']} of {beside['asked']}" + _chats(cell["chats"]),
        beside["wrong"],
        _afterwards(server),
    )


def _chats(chats: dict[str, Any] | None) -> str:
    return f", chats {chats['answered']} of {chats['asked']}" if chats else ""


def _afterwards(server: dict[str, Any]) -> str:
    if server["killed_for_memory"]:
        return "**killed: took too much memory**"
    if not server["alive"]:
        return f"**ended with {server['exit_status']}**"
    if server["exit_status"] == -9:
        return f"**SIGTERM did not end it in {server['stop_s']:.0f} s**"
    answers = "answers" if server["answers_afterwards"] else "**does not answer**"
    return f"{answers}, ends in {server['stop_s']:.1f} s"


def _start(cell: dict[str, Any]) -> tuple[Any, ...]:
    return cell["name"], cell["outcome"], cell["seconds"], cell["lines"], cell["worst_ping_s"], cell["stop_s"]


def _verdict(verdict: dict[str, Any]) -> tuple[Any, ...]:
    return verdict["what"], verdict["figure"], verdict["limit"], "yes" if verdict["kept"] else "**no**"

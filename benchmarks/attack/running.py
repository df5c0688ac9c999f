"""One attack after another, each on a server of its own: quiet, then attacked, then stopped."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.attack import innocent, target
from benchmarks.attack.attackers import ATTACKS
from benchmarks.attack.innocent import CHAT, DECIDE, Asked
from benchmarks.attack.target import Plan, Server
from benchmarks.peers import figures

ROOT = Path(__file__).resolve().parents[2]
START_OF_ATTACK_S = 0.3


@dataclass(frozen=True)
class Conditions:
    """The server as an attack sees it, besides its port.

    Attributes:
        open_files: Limit on the server's descriptors.
        unread_output: Nobody reads what the server prints.
        chats: The innocent caller chats, too.
    """

    open_files: int | None = None
    unread_output: bool = False
    chats: bool = False


CONDITIONS = {
    "idle-connections": Conditions(open_files=200),
    "silent-connections": Conditions(open_files=200),
    "slow-heads": Conditions(open_files=200),
    "slow-bodies": Conditions(open_files=200),
    "bad-requests-unread-output": Conditions(unread_output=True),
    "unread-streams": Conditions(chats=True),
    "long-chats": Conditions(chats=True),
}
# An attack under other conditions has a name of its own, and the attacker's.
NAMES = {**{name: name for name in ATTACKS}, "bad-requests-unread-output": "bad-requests"}


@contextmanager
def attacking(plan: Plan, server: Server, name: str, seconds: float) -> Iterator[dict[str, Any]]:
    """The attacker's process, while the block runs; what it cost is in the mapping afterwards."""
    command = [sys.executable, "-m", "benchmarks.attack.attackers", NAMES[name]]
    arguments = ["--port", str(server.port), "--seconds", str(seconds), "--caller-header", plan.caller_header]
    cost: dict[str, Any] = {}
    process = subprocess.Popen([*command, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        yield cost
        text, _ = process.communicate(timeout=seconds + 30)
        cost |= json.loads(text.splitlines()[-1])
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def attack(plan: Plan, name: str, *, quiet_s: float, seconds: float) -> dict[str, Any]:
    """Measure one attack on a fresh server, which is stopped afterwards.

    Returns:
        The attacker's cost, the server's, and the innocent caller's figures, by name; JSON.
    """
    conditions = CONDITIONS.get(name, Conditions())
    with target.serving(plan, name, open_files=conditions.open_files, unread_output=conditions.unread_output) as server:
        if conditions.unread_output:
            _read_until_ready(server)
        elif not target.wait_ready(server):
            return {"name": name, "failed": f"the server did not start: {target.tail(server)}"}
        measured = measure(plan, server, name, quiet_s=quiet_s, seconds=seconds)
        status, stop_s = server.stop()
        measured["server"] |= {"exit_status": status, "stop_s": stop_s}
        return measured


def measure(plan: Plan, server: Server, name: str, *, quiet_s: float, seconds: float) -> dict[str, Any]:
    """Measure one attack on a server that runs: the innocent caller alone, beside the attack, and once afterwards."""
    conditions = CONDITIONS.get(name, Conditions())
    caller = {plan.caller_header: "innocent"}
    expected: dict[int, Any] = {}
    chat_expected: dict[int, Any] = {}
    # The first answers fill caches, and are what all later ones are compared with.
    for number in range(8):
        innocent.ask_until(server.port, DECIDE, number, Asked(), expected, headers=caller)
    if conditions.chats:
        for number in range(4):
            innocent.ask_until(server.port, CHAT, number, Asked(), chat_expected, headers=caller)
    quiet = innocent.in_turn(server.port, DECIDE, quiet_s, expected, caller=caller)
    cpu, memory, logged = server.cpu_s, server.own_bytes, server.log_bytes
    server.peak_bytes = memory
    with attacking(plan, server, name, seconds) as cost, innocent.pinging(server.port) as pings:
        time.sleep(START_OF_ATTACK_S)
        left = max(0.5, seconds - START_OF_ATTACK_S)
        works = [lambda: innocent.in_turn(server.port, DECIDE, left, expected, caller=caller)]
        if conditions.chats:
            works.append(lambda: innocent.in_turn(server.port, CHAT, left, chat_expected, caller=caller))
        asked, *chats = innocent.beside(works)
    used, peak, alive = server.cpu_s - cpu, server.peak_bytes - memory, server.alive
    after = Asked()
    if alive:
        innocent.ask_until(server.port, DECIDE, 0, after, expected, headers=caller)
    return {
        "name": name,
        "what": (ATTACKS[NAMES[name]].__doc__ or "").strip(),
        "conditions": asdict(conditions),
        "attacker": cost,
        "server": {
            "cpu_s": used,
            "memory_growth_bytes": peak,
            "log_bytes": server.log_bytes - logged,
            "alive": alive,
            "killed_for_memory": server.killed_for_memory,
            "answers_afterwards": bool(after.seconds),
        },
        "ping": {"n": len(pings.seconds), "worst_s": pings.worst, "failed": pings.failed},
        "quiet": shown(quiet),
        "decisions": shown(asked),
        "chats": shown(chats[0]) if chats else None,
    }


def shown(asked: Asked) -> dict[str, Any]:
    """Figures of innocent requests, as JSON; a lost one counts with all the time that was waited for it."""
    waited = [*asked.seconds, *(innocent.PATIENCE_S for _ in asked.lost)]
    latency = figures.latency(waited)
    return {
        "asked": len(waited),
        "answered": len(asked.seconds),
        "wrong": asked.wrong,
        "refusals": asked.refusals,
        "p50_s": latency.p50,
        "p95_s": latency.p95,
        "lost": asked.lost[:5],
    }


def _read_until_ready(server: Server) -> None:
    """Read what the server prints until it is ready, and then never again."""
    over = threading.Event()
    pipe = server.process.stdout
    assert pipe is not None
    descriptor = pipe.fileno()

    def read() -> None:
        while not over.is_set():
            if select.select([descriptor], [], [], 0.1)[0] and not os.read(descriptor, 65536):
                return

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    target.wait_ready(server)
    over.set()
    reader.join()

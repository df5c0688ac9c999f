"""Mixed attacks beside normal load, for a long time: is everything answered, alike, in time, and is memory flat?

Before that the store of prefixes is filled: it takes memory up to its own limit (``prefix_cache_mib``), which is no
leak, and takes ten minutes under the load alone.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from benchmarks.attack import innocent, target
from benchmarks.attack.innocent import CHAT, DECIDE, STREAM, Asked, Kind
from benchmarks.attack.running import attacking, shown
from benchmarks.attack.target import Plan, Server
from benchmarks.peers.exactness import flatness
from benchmarks.peers.workloads import metric

CALLERS = ("support", "sales", "orders")
THINKING_S = 0.4
CHAT_PAUSE_S = 2.0
ATTACK_S = 15.0
BETWEEN_S = (0.0, 5.0)
SAMPLE_S = 2.0
OPEN_FILES = 400
PING_LIMIT_S = 2.0
SLOWDOWN_LIMIT = 3.0
LOG_BYTES_PER_S = 20_000.0
FILL_LIMIT_S = 900.0
FILL_STATE = "The courier of this order says that the parcel was handed over, but nothing has arrived. " * 8
"""A snapshot of it is a small part of the store, so that no large gap is left, and large enough for it to fill soon."""
EVICTIONS = "steelyard_engine_prefix_evictions_total"
STORED = "steelyard_engine_prefix_bytes"
# Two at the same time: the second comes from another attacker's own row. Not many-names: names are a gateway's to give,
# and each new one has a turn of its own.
ROWS: tuple[tuple[str, ...], ...] = (
    (
        *("hung-up-spaces", "spaces", "big-texts", "one-big-text", "big-chats", "many-messages", "big-prompts"),
        *("empty-lists", "many-keys", "many-faults"),
    ),
    (
        *("idle-connections", "silent-connections", "slow-heads", "slow-bodies", "huge-heads", "bad-requests"),
        *("unread-streams", "long-chats"),
    ),
)


@dataclass
class Load:
    """The normal load's requests, by kind; ``expected`` holds the answers given alone."""

    expected: dict[str, dict[int, Any]] = field(default_factory=lambda: {"decide": {}, "chat": {}, "stream": {}})


KINDS: dict[str, Kind] = {"decide": DECIDE, "chat": CHAT, "stream": STREAM}


def soak(plan: Plan, *, minutes: float, seed: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Run the soak; a tenth of the time, at most two minutes, is the same load without attacks.

    Returns:
        Figures and verdicts, as JSON.
    """
    seconds = minutes * 60
    quiet_s = min(120.0, seconds / 5)
    load = Load()
    with target.serving(plan, "soak", open_files=OPEN_FILES) as server:
        if not target.wait_ready(server):
            raise SystemExit(f"the server did not start:\n{target.tail(server)}")
        filled = fill_store(server, plan, say)
        _note_answers(server, plan, load)
        say(f"normal load alone, {quiet_s:.0f} s")
        quiet, _ = _loaded(server, plan, load, quiet_s)
        logged, watch = server.log_bytes, Samples()
        say(f"the same load beside attacks, {seconds - quiet_s:.0f} s")
        over = threading.Event()
        attackers = [
            threading.Thread(target=_attack_on, args=(plan, server, row, seed + index, over, watch, say), daemon=True)
            for index, row in enumerate(ROWS)
        ]
        sampler = threading.Thread(target=watch.sample, args=(server, over), daemon=True)
        for thread in (*attackers, sampler):
            thread.start()
        began = time.monotonic()
        beside, pings = _loaded(server, plan, load, seconds - quiet_s)
        elapsed = time.monotonic() - began
        over.set()
        for thread in (*attackers, sampler):
            thread.join()
        alive, log_bytes = server.alive, server.log_bytes - logged
        after, _ = _loaded(server, plan, load, min(20.0, quiet_s)) if alive else ({}, pings)
        status, stop_s = server.stop()
    return _judged(
        {
            "elapsed_s": elapsed,
            "store": filled,
            "quiet": {name: shown(asked) for name, asked in quiet.items()},
            "beside": {name: shown(asked) for name, asked in beside.items()},
            "after": {name: shown(asked) for name, asked in after.items()},
            "pings": {"n": len(pings.seconds), "worst_s": pings.worst, "failed": pings.failed},
            "memory": flatness(watch.times, [float(own) for own in watch.own]),
            "peak_bytes": server.peak_bytes,
            "samples": [[round(at - began, 1), own] for at, own in zip(watch.times, watch.own, strict=True)],
            "log_bytes": log_bytes,
            "attacks": watch.attacks,
            "alive": alive,
            "exit_status": status,
            "stop_s": stop_s,
        }
    )


@dataclass
class Samples:
    """Memory over time, and what the attackers had done."""

    times: list[float] = field(default_factory=list)
    own: list[int] = field(default_factory=list)
    attacks: list[dict[str, Any]] = field(default_factory=list)

    def sample(self, server: Server, over: threading.Event) -> None:
        """Sample until ``over``."""
        while not over.wait(SAMPLE_S):
            self.times.append(time.monotonic())
            self.own.append(server.own_bytes)


def fill_store(
    server: Server, plan: Plan, say: Callable[[str], None], *, limit_s: float = FILL_LIMIT_S
) -> dict[str, Any]:
    """Ask about one state after another until the server gives up a kept one.

    Args:
        server: One without such a metric is taken to keep nothing.
        plan: How callers give their names.
        say: Takes progress.
        limit_s: Longest that it may take, in seconds.

    Returns:
        How many states were asked about, and the bytes that are kept, as JSON.

    Raises:
        SystemExit: A state was refused, or the store was not full in time.
    """
    before = _metric(server, EVICTIONS)
    if before is None:
        say("no store of prefixes is reported")
        return {"states": 0, "bytes": None}
    say("filling the store of prefixes")
    until, states = time.monotonic() + limit_s, 0
    while _metric(server, EVICTIONS) == before:
        if time.monotonic() > until:
            raise SystemExit(f"{states} states in {limit_s:.0f} s did not fill the store of prefixes")
        body = {
            "state": f"Order {states}. {FILL_STATE}",
            "model": "jev-latest",
            "questions": {"late": {"type": "noul", "instructions": "Is the parcel late?"}},
        }
        status, answer = target.ask(
            server.port,
            "POST",
            DECIDE.path,
            json.dumps(body).encode(),
            patience_s=DECIDE.patience_s,
            headers=_caller(plan, "filler"),
        )
        if status != 200:
            raise SystemExit(f"state {states} was not answered by the idle server: {status} {answer[:160]!r}")
        states += 1
    return {"states": states, "bytes": _metric(server, STORED)}


def _metric(server: Server, name: str) -> float | None:
    status, text = target.ask(server.port, "GET", "/metrics", None, patience_s=10.0)
    return metric(text.decode("utf-8", "replace"), name) if status == 200 else None


def _note_answers(server: Server, plan: Plan, load: Load) -> None:
    """Ask everything once, alone: the answers that all later ones are compared with."""
    for name, kind in KINDS.items():
        for number in range(8):
            asked = Asked()
            innocent.ask_until(server.port, kind, number, asked, load.expected[name], headers=_caller(plan, "alone"))
            if asked.lost:
                raise SystemExit(f"{name} {number} was not answered by the idle server: {asked.lost[0]}")


def _caller(plan: Plan, name: str) -> dict[str, str]:
    return {plan.caller_header: name}


def _loaded(server: Server, plan: Plan, load: Load, seconds: float) -> tuple[dict[str, Asked], innocent.Pings]:
    """Normal load: several callers' decisions, a chat and a stream at a time; one list of each kind."""

    def repeat(name: str, caller: str, pause_s: float) -> Callable[[], Asked]:
        def work() -> Asked:
            asked, until, rng = Asked(), time.monotonic() + seconds, random.Random(caller)
            while time.monotonic() < until:
                kind, expected = KINDS[name], load.expected[name]
                number = rng.randrange(8)
                innocent.ask_until(server.port, kind, number, asked, expected, headers=_caller(plan, caller))
                time.sleep(pause_s * rng.uniform(0.5, 1.5))
            return asked

        return work

    works = [repeat("decide", caller, THINKING_S) for caller in CALLERS]
    works += [repeat("chat", "writers", CHAT_PAUSE_S), repeat("stream", "readers", CHAT_PAUSE_S)]
    with innocent.pinging(server.port) as pings:
        *decisions, chats, streams = innocent.beside(works)
    together = Asked()
    for asked in decisions:
        together.seconds += asked.seconds
        together.lost += asked.lost
        together.wrong += asked.wrong
        together.refusals += asked.refusals
    return {"decide": together, "chat": chats, "stream": streams}, pings


def _attack_on(
    plan: Plan,
    server: Server,
    row: tuple[str, ...],
    seed: int,
    over: threading.Event,
    watch: Samples,
    say: Callable[[str], None],
) -> None:
    """One attack after another, in a shuffled order, until ``over`` or the server's end."""
    rng = random.Random(seed)
    for name in _shuffled(rng, row):
        if over.is_set() or not server.alive:
            return
        say(name)
        with attacking(plan, server, name, ATTACK_S) as cost:
            over.wait(ATTACK_S)
        watch.attacks.append({"name": name, **cost})
        over.wait(rng.uniform(*BETWEEN_S))


def _shuffled(rng: random.Random, row: tuple[str, ...]) -> Iterator[str]:
    while True:
        yield from rng.sample(row, len(row))


def _judged(figures: dict[str, Any]) -> dict[str, Any]:
    beside, quiet, pings, memory = figures["beside"], figures["quiet"], figures["pings"], figures["memory"]
    wrong = sum(kind["wrong"] for part in ("quiet", "beside", "after") for kind in figures[part].values())
    lost = sum(kind["asked"] - kind["answered"] for kind in beside.values())
    asked = sum(kind["asked"] for kind in beside.values())
    ratio = beside["decide"]["p95_s"] / quiet["decide"]["p95_s"]
    rate = figures["log_bytes"] / figures["elapsed_s"]

    def verdict(what: str, figure: str, limit: str, kept: bool) -> dict[str, Any]:
        return {"what": what, "figure": figure, "limit": limit, "kept": bool(kept)}

    figures["verdicts"] = [
        verdict("worst /ping", f"{pings['worst_s']:.2f} s", f"{PING_LIMIT_S:g} s", pings["worst_s"] <= PING_LIMIT_S),
        verdict("/ping not 200", f"{pings['failed']} of {pings['n']}", "0", pings["failed"] == 0),
        verdict(
            "decisions' p95 beside attacks, over the same load without",
            f"{ratio:.2f} ({beside['decide']['p95_s'] * 1000:.0f} over {quiet['decide']['p95_s'] * 1000:.0f} ms)",
            f"{SLOWDOWN_LIMIT:g}",
            ratio <= SLOWDOWN_LIMIT,
        ),
        verdict("innocent requests not answered", f"{lost} of {asked}", "0", lost == 0),
        verdict("answers unlike those given alone", str(wrong), "0", wrong == 0),
        verdict(
            "memory's growth with a full store, upper end of the interval",
            f"{memory['growth_share_at_most']:.1%} (peak {figures['peak_bytes'] >> 20} MiB)",
            "2 %",
            memory["flat"],
        ),
        verdict("log", f"{rate / 1000:.1f} kB/s", f"{LOG_BYTES_PER_S / 1000:g} kB/s", rate <= LOG_BYTES_PER_S),
        verdict("server at the end", f"status {figures['exit_status']}", "0", figures["exit_status"] == 0),
    ]
    return figures

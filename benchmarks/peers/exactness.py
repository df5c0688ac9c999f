"""Are answers under load the answers that were computed alone? And does a long mixed load leave anything behind?"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import httpx

from benchmarks.peers import figures, machine
from benchmarks.peers.asking import ANSWERED, Log, Patience, Record, ask, compare, tally
from benchmarks.peers.cases import WORKLOADS, Case, chat_prompt
from benchmarks.peers.servers import Peer, Plan, Running, running
from benchmarks.peers.workloads import Bench, Chats, chat, closed_loop, connected, kept_bytes

MIX = ("A", "A", "B", "C")
CANARIES = 20
# What a server fills at the start (caches, arenas) is not a leak.
SETTLING_SHARE = 0.25
FLAT_SHARE = 0.02
CHAT_WORDS = (150, 900, 2500)


def mixture(numbers: Iterator[int]) -> Iterator[Case]:
    """Cases of workloads A, B and C, mixed."""
    for number in numbers:
        yield WORKLOADS[MIX[number % len(MIX)]](number)


async def compare_with_alone(
    peer: Peer, plan: Plan, records: Sequence[Record], *, limit: int | None, patience: Patience
) -> int:
    """Ask for answers again, one by one, of a fresh server that reuses nothing, and note the differences.

    Args:
        peer: Whose answers they are.
        plan: How it was started.
        records: Their ``changed`` and ``flipped`` are set.
        limit: How many at most, spread evenly over ``records``; None for all.
        patience: Of the client.

    Returns:
        How many were compared.
    """
    chosen = evenly([record for record in records if record.outcome == ANSWERED], limit)
    if not chosen:
        return 0
    with running(peer, plan, alone=True) as fresh:
        async with connected(fresh) as client:
            for record in chosen:
                case = WORKLOADS[record.workload](record.number)
                again = await ask(client, peer, case, cell="alone", patience=patience)
                if again.outcome != ANSWERED:
                    raise SystemExit(f"{peer.name} did not answer alone: {again.reason}")
                compare(record, again.answers)
    return len(chosen)


def evenly(records: list[Record], limit: int | None) -> list[Record]:
    """At most ``limit`` of ``records``, spread evenly, in order."""
    if limit is None or len(records) <= limit:
        return records
    return [records[i * len(records) // limit] for i in range(limit)]


async def exactness(
    peer: Peer, plan: Plan, log: Log, *, decisions: int, clients: int, patience: Patience, first: int, limit_s: float
) -> dict[str, Any]:
    """At least ``decisions`` decisions of mixed requests from concurrent clients, beside chats; then each one alone.

    After ``limit_s`` seconds of load no more are asked: some peers let decisions wait until every chat is over.
    """
    cell = "exact"
    with running(peer, plan) as loaded:
        async with connected(loaded) as client:
            numbers = itertools.count(first)
            cases, done, started = mixture(numbers), 0, time.monotonic()

            async def one() -> None:
                nonlocal done
                while done < decisions and time.monotonic() - started < limit_s:
                    record = log.add(await ask(client, peer, next(cases), cell=cell, patience=patience))
                    done += len(record.answers)
                    if not record.answers:
                        await asyncio.sleep(0.2)

            chatting = asyncio.create_task(_endless_chats(client, first)) if peer.chats else None
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(clients):
                        group.create_task(one())
            finally:
                if chatting:
                    chatting.cancel()
    records = log.of(cell, peer.name)
    await compare_with_alone(peer, plan, records, limit=None, patience=patience)
    return {
        "decisions": sum(len(record.answers) for record in records),
        "latency_s": asdict(figures.latency([r.seconds for r in records if r.outcome == ANSWERED])),
        "clients": clients,
        "beside_chats": peer.chats,
        "tally": asdict(tally(records)),
    }


async def _endless_chats(client: httpx.AsyncClient, first: int) -> None:
    rng, done = random.Random(first), Chats()
    for number in itertools.count(first):
        await chat(client, chat_prompt(number, rng.choice(CHAT_WORDS)), done)


async def soak(
    bench: Bench, target: Running, *, seconds: float, clients: int, first: int, sample_s: float
) -> dict[str, Any]:
    """Mixed load for a long time: decisions of all workloads from ``clients``, and chats of different lengths.

    Some requests are asked before and again afterwards; memory is sampled all along. ``memory_own`` leaves out what the
    server keeps of prefixes: a store with a limit, which a long chat's snapshot fills and leaves again.
    """
    async with connected(target) as client:
        before = await _canaries(bench, target, client)
        numbers = itertools.count(first)
        async with machine.watching(target.pid, every_s=sample_s, kept=lambda: kept_bytes(target, client)) as watch:
            chatting = asyncio.create_task(_endless_chats(client, first))
            try:
                elapsed = await closed_loop(
                    bench, target, client, cell="soak", clients=clients, seconds=seconds, cases=mixture(numbers)
                )
            finally:
                chatting.cancel()
        await asyncio.sleep(1.0)
        after = await _canaries(bench, target, client)
    records = bench.log.of("soak", target.name)
    return {
        "elapsed_s": elapsed,
        "tally": asdict(tally(records)),
        "decisions": sum(len(record.answers) for record in records),
        "canaries": len(before),
        "canaries_changed": sum(a.answers != b.answers for a, b in zip(before, after, strict=True)),
        "memory": flatness(watch.times, [float(sample.resident) for sample in watch.samples]),
        "memory_own": flatness(
            watch.times, [float(sample.own - kept) for sample, kept in zip(watch.samples, watch.kept, strict=True)]
        ),
        "kept_bytes_peak": max(watch.kept),
        "samples": [
            [round(at - watch.times[0], 1), sample.resident, sample.own, kept]
            for at, sample, kept in zip(watch.times, watch.samples, watch.kept, strict=True)
        ],
    }


async def _canaries(bench: Bench, target: Running, client: httpx.AsyncClient) -> list[Record]:
    """The same requests each time; token counts are dropped, because the second time more may be reused."""
    asked = []
    for case in itertools.islice(mixture(itertools.count(800_000)), CANARIES):
        record = await ask(client, target.peer, case, cell="canary", patience=bench.patience)
        if record.outcome != ANSWERED:
            raise SystemExit(f"{target.name} did not answer: {record.reason}")
        record.answers = [replace(answer, evaluated=None, reused=None) for answer in record.answers]
        asked.append(record)
    return asked


def flatness(times: Sequence[float], values: Sequence[float]) -> dict[str, Any]:
    """Tell whether memory grew, once the first quarter of the time is over.

    It is flat when the trend, carried over the whole time that was looked at, is less than 2 % of the memory at the
    beginning of it, by the upper end of its interval.
    """
    start = times[0] + (times[-1] - times[0]) * SETTLING_SHARE
    kept = [(at, value) for at, value in zip(times, values, strict=True) if at >= start]
    trend = figures.slope([at for at, _ in kept], [value for _, value in kept])
    span, base = kept[-1][0] - kept[0][0], kept[0][1]
    growth = trend.high * span / base if base else 0.0
    return {
        "bytes_per_s": asdict(trend),
        "looked_at_s": span,
        "start_bytes": base,
        "end_bytes": kept[-1][1],
        "growth_share_at_most": growth,
        "flat": growth < FLAT_SHARE,
    }

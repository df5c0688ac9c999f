"""Workloads A to H. Each runs on peers that are up already and returns what it measured, by cell and peer."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import random
import statistics
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx

from benchmarks.peers import cases, figures, machine
from benchmarks.peers.asking import ANSWERED, Log, Patience, Record, ask, tally
from benchmarks.peers.cases import WORKLOADS, Case, chat_prompt, routing
from benchmarks.peers.servers import LLAMA, OURS, Floor, Running

WARM_UPS = 3
# Idle threads of llama.cpp spin for a moment after a decode; the next peer must not meet them.
PAUSE_S = 0.05
REST_S = 1.0
CHAT_TOKENS = 128
WORDS_PER_TOKEN = 0.86
SERVICE_S = 55.0
"""Seconds within which an answer is worth something behind SageMaker AI, which cuts calls off at 60."""


class Numbers:
    """Hands out ranges of request numbers, so that no two cells of a run share a request."""

    def __init__(self) -> None:
        self._next = 0
        self._warm_up = itertools.count(900_000)

    def cell(self) -> Iterator[int]:
        """Numbers for one cell; every peer starts it anew and so gets the same requests."""
        first = self._next
        self._next += 10_000
        return itertools.count(first)

    def warm_up(self) -> int:
        """A number that no cell has."""
        return next(self._warm_up)


@dataclass
class Bench:
    """The context of the workloads: the peers that are up, the destination of records, and each peer's protocol."""

    peers: Sequence[Running]
    log: Log
    numbers: Numbers
    say: Callable[[str], None]
    patience: Patience = field(default_factory=Patience)


@asynccontextmanager
async def connected(running: Running) -> AsyncIterator[httpx.AsyncClient]:
    """A client without a limit on connections; how long a call may take is up to the caller."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    async with httpx.AsyncClient(base_url=running.url, limits=limits, timeout=None, trust_env=False) as client:
        yield client


async def warm(bench: Bench, running: Running, client: httpx.AsyncClient, workload: str) -> None:
    """Bring a peer into its steady state: a few requests that are not counted."""
    for _ in range(WARM_UPS):
        case = WORKLOADS[workload](bench.numbers.warm_up())
        await ask(client, running.peer, case, cell="warm-up", patience=bench.patience)


async def evaluated_tokens(running: Running, client: httpx.AsyncClient) -> float | None:
    """Tokens that the peer has evaluated since it started, by its own count; None where it does not say."""
    names = {
        OURS: "steelyard_engine_decoded_tokens_total",
        LLAMA: "llamacpp:prompt_tokens_total",
    }
    if running.peer.kind not in names:
        return float((await client.get("/ping")).json()["evaluated_tokens"])
    return metric((await client.get("/metrics")).text, names[running.peer.kind])


async def kept_bytes(running: Running, client: httpx.AsyncClient) -> int:
    """The prefixes that the peer keeps, by its own count; 0 where it does not say."""
    if running.peer.kind != OURS:
        return 0
    return int(metric((await client.get("/metrics")).text, "steelyard_engine_prefix_bytes") or 0)


def metric(text: str, name: str) -> float | None:
    """A metric without labels in Prometheus' text format."""
    for line in text.splitlines():
        if line.startswith(name + " "):
            return float(line.split()[1])
    return None


def summary(records: list[Record], *, elapsed_s: float, tokens: float | None, watch: machine.Watch) -> dict[str, Any]:
    """One peer's figures in one cell."""
    done = [record for record in records if record.outcome == ANSWERED]
    decisions = sum(len(record.answers) for record in done)
    counts = [record.evaluated for record in done if record.evaluated is not None]
    counted = tally(records)
    return {
        "latency_s": asdict(figures.latency([record.seconds for record in done])),
        "decisions": decisions,
        "decisions_per_s": decisions / elapsed_s if elapsed_s else math.nan,
        "elapsed_s": elapsed_s,
        "evaluated_per_decision": tokens / decisions if tokens is not None and decisions else None,
        "evaluated_per_request_median": statistics.median(counts) if counts else None,
        "evaluated_per_request_max": max(counts) if counts else None,
        "tally": asdict(counted) | {"retried": counted.retried, "amplification": counted.amplification},
        "memory_peak": asdict(watch.peak),
        "memory_after": asdict(watch.last),
    }


# A, B, C: one request after another, the peers in turn.


async def in_turn(bench: Bench, workload: str, *, count: int, floor: Floor | None) -> dict[str, Any]:
    """``count`` requests, each sent to every peer a moment after the other, the order rotating.

    Right before and right after each of our requests the floor decodes tokens. How many a new state has is known only
    afterwards, so the decode before takes as many as the last request, and its time is scaled to the new count.
    """
    cell = workload
    records: dict[str, list[Record]] = {running.name: [] for running in bench.peers}
    floors: list[float] = []
    bare = _Bracket(floor)
    tokens: dict[str, float | None] = {}
    async with _all_connected(bench.peers) as clients, _all_watched(bench.peers) as watches:
        for running in bench.peers:
            await warm(bench, running, clients[running.name], workload)
        before = {r.name: await evaluated_tokens(r, clients[r.name]) for r in bench.peers}
        for index, number in enumerate(itertools.islice(bench.numbers.cell(), count)):
            case = WORKLOADS[workload](number)
            for running in rotated(bench.peers, index):
                if running.name == OURS:
                    await bare.before(case)
                record = await ask(clients[running.name], running.peer, case, cell=cell, patience=bench.patience)
                records[running.name].append(bench.log.add(record))
                await asyncio.sleep(PAUSE_S)
                if running.name == OURS:
                    floors.append(await bare.after(case, record))
            if (index + 1) % 20 == 0:
                bench.say(f"{workload}: {index + 1} of {count}")
        for running in bench.peers:
            after, start = await evaluated_tokens(running, clients[running.name]), before[running.name]
            tokens[running.name] = None if after is None or start is None else after - start
    result: dict[str, Any] = {
        running.name: summary(
            records[running.name],
            elapsed_s=sum(record.seconds for record in records[running.name]),
            tokens=tokens[running.name],
            watch=watches[running.name],
        )
        for running in bench.peers
    }
    return {"peers": result, "ratios": _paired_ratios(records, floors), "floor_s": _latency_of(floors)}


async def registered(bench: Bench, *, count: int) -> dict[str, dict[str, Any]]:
    """``count`` times one registered decision by every peer, and three of ours about another state, in turn.

    Returns:
        The cells ``H`` and ``H-3``. The second has our time for three over our time for one.
    """
    (ours,) = [running for running in bench.peers if running.name == OURS]
    first = next(bench.numbers.cell())
    three = first + 5_000
    records: dict[str, list[Record]] = {running.name: [] for running in bench.peers}
    of_three: list[Record] = []
    async with _all_connected(bench.peers) as clients, _all_watched(bench.peers) as watches:
        for running in bench.peers:
            await warm(bench, running, clients[running.name], "H")
        for index in range(count):
            turns = [(running, cases.registered(first + index), "H") for running in bench.peers]
            turns.append((ours, cases.registered(three + index, count=3), "H-3"))
            start = index % len(turns)
            for running, case, cell in [*turns[start:], *turns[:start]]:
                record = await ask(clients[running.name], running.peer, case, cell=cell, patience=bench.patience)
                (records[running.name] if cell == "H" else of_three).append(bench.log.add(record))
                await asyncio.sleep(PAUSE_S)
            if (index + 1) % 20 == 0:
                bench.say(f"H: {index + 1} of {count}")

    def told(found: list[Record], name: str) -> dict[str, Any]:
        counts = [record.evaluated for record in found if record.evaluated is not None]
        elapsed_s = sum(record.seconds for record in found)
        tokens = float(sum(counts)) if counts else None
        return summary(found, elapsed_s=elapsed_s, tokens=tokens, watch=watches[name])

    one = {running.name: told(records[running.name], running.name) for running in bench.peers}
    return {
        "H": {"peers": one, "ratios": _paired_ratios(records, []), "floor_s": None},
        "H-3": {
            "peers": {OURS: told(of_three, OURS)},
            "ratios": _paired_ratios({OURS: of_three, "one": records[OURS]}, []),
            "floor_s": None,
        },
    }


class _Bracket:
    """The floor's time for one of our requests: the mean of a decode before it and one after it."""

    def __init__(self, floor: Floor | None) -> None:
        self._floor = floor
        self._counts = (0, 0)
        self._per_token = math.nan

    async def before(self, case: Case) -> None:
        """Decode as many tokens as the last request evaluated."""
        evaluated, _ = self._counts
        self._per_token = await self._decode(case) / evaluated if evaluated else math.nan

    async def after(self, case: Case, record: Record) -> float:
        """Decode as many as this one did; the floor's seconds for it, NaN where nothing is known."""
        reused = record.answers[0].reused if record.answers else 0
        self._counts = (record.evaluated or 0, reused or 0)
        if record.outcome != ANSWERED or not self._counts[0]:
            return math.nan
        seconds = await self._decode(case)
        return seconds if math.isnan(self._per_token) else (seconds + self._per_token * self._counts[0]) / 2

    async def _decode(self, case: Case) -> float:
        evaluated, reused = self._counts
        if self._floor is None:
            return math.nan
        seconds = await asyncio.to_thread(self._floor.seconds, case.state, evaluated=evaluated, reused=reused)
        await asyncio.sleep(PAUSE_S)
        return seconds


def _paired_ratios(records: dict[str, list[Record]], floors: list[float]) -> dict[str, Any]:
    """Our time over each other peer's, request by request, and over the floor's."""
    ratios: dict[str, Any] = {}
    ours = records.get(OURS, [])
    for name, theirs in records.items():
        both = [
            (mine.seconds, other.seconds)
            for mine, other in zip(ours, theirs, strict=False)
            if mine.outcome == other.outcome == ANSWERED
        ]
        if name != OURS and both:
            ratios[name] = _ratio(both)
    both = [
        (mine.seconds, bare)
        for mine, bare in zip(ours, floors, strict=False)
        if mine.outcome == ANSWERED and not math.isnan(bare)
    ]
    if both:
        ratios["floor"] = _ratio(both)
    return ratios


def _ratio(both: list[tuple[float, float]]) -> dict[str, Any]:
    first, second = zip(*both, strict=True)
    p50 = figures.latency(first).p50 / figures.latency(second).p50
    return {"paired": asdict(figures.paired_ratio(first, second)), "of_p50": p50}


def _latency_of(seconds: list[float]) -> dict[str, Any] | None:
    known = [value for value in seconds if not math.isnan(value)]
    return asdict(figures.latency(known)) if known else None


def rotated(items: Sequence[Running], by: int) -> list[Running]:
    """``items`` starting at another one each time, so that nobody is always first."""
    start = by % len(items)
    return [*items[start:], *items[:start]]


# D: closed loops.


async def concurrent(bench: Bench, workload: str, *, clients: int, seconds: float, rounds: int) -> dict[str, Any]:
    """``clients`` that each send the next request when they have the last answer, ``seconds`` in all for each peer.

    The time is cut into ``rounds``, and the peers take turns. A round ends when the last answer is here; nobody is cut
    off, and the time until then counts.
    """
    cell = f"D-{workload}-{clients}"
    first = next(bench.numbers.cell())
    numbers = {running.name: itertools.count(first) for running in bench.peers}
    elapsed = dict.fromkeys(numbers, 0.0)
    tokens: dict[str, float | None] = dict.fromkeys(numbers, 0.0)
    async with _all_connected(bench.peers) as connections, _all_watched(bench.peers) as watches:
        for running in bench.peers:
            await warm(bench, running, connections[running.name], workload)
        for turn in range(rounds):
            for running in rotated(bench.peers, turn):
                client, name = connections[running.name], running.name
                before = await evaluated_tokens(running, client)
                elapsed[name] += await closed_loop(
                    bench, running, client, cell=cell, clients=clients, seconds=seconds / rounds,
                    cases=map(WORKLOADS[workload], numbers[name]),
                )  # fmt: skip
                after, so_far = await evaluated_tokens(running, client), tokens[name]
                known = None not in (before, after, so_far)
                tokens[name] = (so_far or 0) + (after or 0) - (before or 0) if known else None
                bench.say(f"{cell}, round {turn + 1} of {rounds}: {name} done")
                await asyncio.sleep(REST_S)
    result: dict[str, Any] = {}
    for running in bench.peers:
        name = running.name
        result[name] = summary(
            bench.log.of(cell, name), elapsed_s=elapsed[name], tokens=tokens[name], watch=watches[name]
        )
    return {"peers": result, "ratios": _loop_ratios(result, bench.log, cell)}


async def closed_loop(
    bench: Bench,
    running: Running,
    client: httpx.AsyncClient,
    *,
    cell: str,
    clients: int,
    seconds: float,
    cases: Iterator[Case],
) -> float:
    """Run the clients; the seconds until the last of them had its last answer."""
    started = time.monotonic()

    async def one() -> None:
        while time.monotonic() - started < seconds:
            bench.log.add(await ask(client, running.peer, next(cases), cell=cell, patience=bench.patience))

    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(one())
    return time.monotonic() - started


def _loop_ratios(result: dict[str, Any], log: Log, cell: str) -> dict[str, Any]:
    if OURS not in result:
        return {}
    mine = [record.seconds for record in log.of(cell, OURS) if record.outcome == ANSWERED]
    ratios = {}
    for name in result.keys() - {OURS}:
        theirs = [record.seconds for record in log.of(cell, name) if record.outcome == ANSWERED]
        ratios[name] = {
            "decisions_per_s": _over(result[OURS]["decisions_per_s"], result[name]["decisions_per_s"]),
            "p50": asdict(figures.percentile_ratio(mine, theirs, 50)),
            "p95": asdict(figures.percentile_ratio(mine, theirs, 95)),
        }
    return ratios


def _over(first: float, second: float) -> float:
    return first / second if second else math.inf


# E: decisions beside chats.


@dataclass
class Chats:
    """The work that a chat client got done. Seconds and tokens, summed over its chats."""

    chats: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    prompt_s: float = 0.0
    generate_s: float = 0.0
    failed: int = 0
    reasons: list[str] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Tokens of prompts and answers per second."""
        return _over(self.prompt_tokens + self.generated_tokens, self.prompt_s + self.generate_s)

    def report(self) -> dict[str, Any]:
        """JSON-ready, with the rates of both phases."""
        return asdict(self) | {
            "tokens_per_s": self.rate,
            "prompt_tokens_per_s": _over(self.prompt_tokens, self.prompt_s),
            "generated_tokens_per_s": _over(self.generated_tokens, self.generate_s),
        }


async def beside_chats(
    bench: Bench, running: Running, *, tokens: Sequence[int], seconds: float, numbers: Iterator[int]
) -> dict[str, Any]:
    """Decisions at a fifth of the peer's capacity, alone and beside chats; and the chats alone, before and after.

    Args:
        bench: Where records go.
        running: The peer.
        tokens: Prompt sizes, one chat client for each.
        seconds: Least time of each phase; a chat that has begun is finished.
        numbers: Of the requests.
    """
    cell = chats_cell(tokens)
    async with connected(running) as client, machine.watching(running.pid) as watch:
        await warm(bench, running, client, "A")
        capacity = await _capacity(bench, running, client)
        bench.say(f"{cell}, {running.name}: {capacity:.2f} decisions/s alone, {capacity / 5:.2f} are offered")
        cases = (routing(number) for number in numbers)
        stream = itertools.count(next(numbers))
        unloaded = await _offered(bench, running, client, f"{cell}-unloaded", capacity / 5, cases, until_s=seconds)
        before = await _chats(client, tokens, stream, seconds)
        bench.say(f"{cell}, {running.name}: chats alone {before.rate:.0f} tokens/s")
        chatting = asyncio.create_task(_chats(client, tokens, stream, seconds))
        loaded = await _offered(bench, running, client, f"{cell}-loaded", capacity / 5, cases, until=chatting)
        beside = await chatting
        after = await _chats(client, tokens, stream, seconds)
    alone = statistics.mean((before.rate, after.rate))
    slow, fast = (figures.latency(_seconds(records)) for records in (loaded, unloaded))
    return {
        "capacity_per_s": capacity,
        "unloaded": summary(unloaded, elapsed_s=_span(unloaded), tokens=None, watch=watch),
        "loaded": summary(loaded, elapsed_s=_span(loaded), tokens=None, watch=watch),
        "p95_loaded_over_unloaded": _over(slow.p95, fast.p95),
        "p95_interval": asdict(figures.percentile_ratio(_seconds(loaded), _seconds(unloaded), 95)),
        "chats_alone": [before.report(), after.report()],
        "chats_beside": beside.report(),
        "chats_beside_over_alone": _over(beside.rate, alone),
        "generated_beside_over_alone": _over(
            beside.report()["generated_tokens_per_s"],
            statistics.mean(chat.report()["generated_tokens_per_s"] for chat in (before, after)),
        ),
    }


def chats_cell(tokens: Sequence[int]) -> str:
    """The name of E's cell with chats of these prompt sizes: ``E-4k``, ``E-4k+16k``."""
    return "E-" + "+".join(f"{count / 1024:g}k" for count in tokens)


async def _capacity(bench: Bench, running: Running, client: httpx.AsyncClient, count: int = 12) -> float:
    """Decisions per second of one client that always has one in flight."""
    started = time.monotonic()
    for _ in range(count):
        await ask(client, running.peer, routing(bench.numbers.warm_up()), cell="capacity", patience=bench.patience)
    return count / (time.monotonic() - started)


async def _offered(
    bench: Bench,
    running: Running,
    client: httpx.AsyncClient,
    cell: str,
    rate: float,
    cases: Iterator[Case],
    *,
    until_s: float = math.inf,
    until: asyncio.Task[Any] | None = None,
) -> list[Record]:
    """Send decisions at ``rate`` per second, whether or not the last ones are answered, with random gaps.

    The gaps are the same in every phase. It ends after ``until_s`` seconds or when ``until`` is done, and waits for the
    answers that are missing.
    """
    rng, started, sent = random.Random("arrivals"), time.monotonic(), []
    due = started
    while time.monotonic() - started < until_s and not (until and until.done()):
        due += rng.expovariate(rate)
        if (pause := due - time.monotonic()) > 0:
            await asyncio.wait([until], timeout=pause) if until else await asyncio.sleep(min(pause, until_s))
            if until and until.done():
                break
        sent.append(asyncio.create_task(ask(client, running.peer, next(cases), cell=cell, patience=bench.patience)))
    return [bench.log.add(record) for record in await asyncio.gather(*sent)]


async def _chats(client: httpx.AsyncClient, tokens: Sequence[int], stream: Iterator[int], seconds: float) -> Chats:
    """One client for each of ``tokens``, chat after chat for ``seconds``; their sums."""
    done = Chats()
    started = time.monotonic()

    async def one(count: int) -> None:
        while True:
            await chat(client, chat_prompt(next(stream), round(count * WORDS_PER_TOKEN)), done)
            if time.monotonic() - started >= seconds:
                return

    async with asyncio.TaskGroup() as group:
        for count in tokens:
            group.create_task(one(count))
    return done


async def chat(client: httpx.AsyncClient, prompt: str, done: Chats) -> None:
    """One streamed chat; what it took is added to ``done``."""
    body = {
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": CHAT_TOKENS,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    started, first, usage = time.monotonic(), None, None
    try:
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.status_code != 200:
                await response.aread()
                done.failed += 1
                done.reasons.append(f"{response.status_code} {response.text[:200]}")
                await asyncio.sleep(1.0)
                return
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                chunk = json.loads(line.removeprefix("data: "))
                if "error" in chunk:
                    done.failed += 1
                    done.reasons.append(line[:200])
                    return
                usage = chunk.get("usage") or usage
                if first is None and any(choice["delta"].get("content") for choice in chunk.get("choices", ())):
                    first = time.monotonic()
    except httpx.TransportError as error:
        done.failed += 1
        done.reasons.append(f"{type(error).__name__}: {error}")
        return
    ended = time.monotonic()
    if usage is None or first is None:
        done.failed += 1
        done.reasons.append("a stream without usage or text")
        return
    done.chats += 1
    done.prompt_tokens += usage["prompt_tokens"]
    done.generated_tokens += usage["completion_tokens"]
    done.prompt_s += first - started
    done.generate_s += ended - first


# F: bursts.


async def bursts(
    bench: Bench, running: Running, *, over: float, numbers: Iterator[int], later_s: float = 10.0
) -> dict[str, Any]:
    """Two bursts beyond capacity, the second half as large and ``later_s`` after the first, from clients that retry.

    Args:
        bench: Where records go.
        running: The peer.
        over: The first burst, as a multiple of what the peer can answer within ``SERVICE_S``.
        numbers: Of the requests.
        later_s: Seconds between the bursts.
    """
    async with connected(running) as client, machine.watching(running.pid) as watch:
        await warm(bench, running, client, "A")
        capacity = await _capacity(bench, running, client)
        size = max(8, math.ceil(over * SERVICE_S * capacity))
        bench.say(f"F, {running.name}: {capacity:.2f} decisions/s alone, bursts of {size} and {size // 2}")
        before, started = await evaluated_tokens(running, client), time.monotonic()

        async def one(delay_s: float, case: Case) -> None:
            await asyncio.sleep(delay_s)
            bench.log.add(await ask(client, running.peer, case, cell="F", patience=bench.patience))

        async with asyncio.TaskGroup() as group:
            for index in range(size + size // 2):
                group.create_task(one(0.0 if index < size else later_s, routing(next(numbers))))
        elapsed, after = time.monotonic() - started, await evaluated_tokens(running, client)
    tokens = None if before is None or after is None else after - before
    figures_of_peer = summary(bench.log.of("F", running.name), elapsed_s=elapsed, tokens=tokens, watch=watch)
    return figures_of_peer | {"capacity_per_s": capacity, "bursts": [size, size // 2]}


def _seconds(records: list[Record]) -> list[float]:
    return [record.seconds for record in records if record.outcome == ANSWERED]


def _span(records: list[Record]) -> float:
    """Seconds from the first request to the last answer."""
    if not records:
        return 0.0
    return max(r.started_s + r.seconds for r in records) - min(r.started_s for r in records)


@asynccontextmanager
async def _all_connected(peers: Sequence[Running]) -> AsyncIterator[dict[str, httpx.AsyncClient]]:
    async with AsyncExitStack() as stack:
        yield {running.name: await stack.enter_async_context(connected(running)) for running in peers}


@asynccontextmanager
async def _all_watched(peers: Sequence[Running]) -> AsyncIterator[dict[str, machine.Watch]]:
    async with AsyncExitStack() as stack:
        yield {running.name: await stack.enter_async_context(machine.watching(running.pid)) for running in peers}

"""Measure Steelyard and its peers on this machine, in one run.

    python -m benchmarks.peers fetch                    # llama-server from source, the model; once
    python -m benchmarks.peers run A B C D E F H exact    # the default; results in build/benchmarks
    python -m benchmarks.peers run soak --soak 1800
    python -m benchmarks.peers run A D --quick --peers steelyard llama-server
    python -m benchmarks.peers report                   # the tables again, from what is there

Cells that are measured again replace their earlier figures in the same folder. The status is 1 when a promise that was
measured is not kept.
"""

from __future__ import annotations

import argparse
import asyncio
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.peers import cases, exactness, machine, report, servers, supplies, workloads
from benchmarks.peers.asking import Log, Patience, Record, tally
from benchmarks.peers.servers import DEFAULT_PEERS, LLAMA, OURS, PEERS, ROOT, WALKTHROUGH, Peer, Plan
from benchmarks.peers.workloads import Bench, Numbers
from steelyard_base.exit_codes import CommandError
from steelyard_runtime.engine import cores

ALL = ("A", "B", "C", "D", "E", "F", "H", "exact", "soak")
BUSY_CORES = 0.3


@dataclass(frozen=True)
class Amounts:
    """The amounts to measure. Seconds unless the name says otherwise."""

    in_turn_requests: int = 100
    loop: float = 60.0
    loop_rounds: int = 2
    clients: tuple[int, ...] = (1, 8, 32)
    chats: tuple[tuple[int, ...], ...] = ((4096,), (16384,))
    chat_phase: float = 90.0
    burst_over: float = 1.5
    patience: float = 240.0
    compared: int = 100
    exact_decisions: int = 1000
    exact_peers_decisions: int = 200
    exact_clients: int = 8
    exact_limit: float = 1800.0
    soak: float = 1800.0
    soak_sample: float = 5.0


QUICK = Amounts(
    in_turn_requests=4,
    loop=4.0,
    loop_rounds=1,
    clients=(1, 4),
    chats=((512,),),
    chat_phase=3.0,
    burst_over=0.1,
    patience=60.0,
    compared=3,
    exact_decisions=8,
    exact_peers_decisions=4,
    exact_clients=4,
    exact_limit=120.0,
    soak=20.0,
    soak_sample=0.5,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one of the subcommands."""
    given = _parser().parse_args(arguments)
    # So that the peers are stopped then, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if given.do == "fetch":
            return _fetch(given)
        if given.do == "report":
            if given.page:
                report.insert(given.page, report.load(given.out))
            return _verdicts(given.out, report.load(given.out))
        return asyncio.run(_run(given))
    except CommandError as error:
        print(f"{error}\n{error.hint or ''}", file=sys.stderr)
        return int(error.code)
    except KeyboardInterrupt:
        print("interrupted; the cells that were finished are in the results", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="do", required=True)
    fetch = commands.add_parser("fetch", help="get llama-server and the model")
    run = commands.add_parser("run", help="measure")
    again = commands.add_parser("report", help="judge and draw what is there")
    for command in (run, again):
        command.add_argument("--out", type=Path, default=Path("build/benchmarks"), help="folder of the results")
    again.add_argument("--page", type=Path, help="also write the tables between the marks of this Markdown page")
    for command in (run, fetch):
        command.add_argument("--threads", type=int, default=cores.threads(), help="for every peer's llama.cpp")
        command.add_argument("--model", type=Path, help="a GGUF file (default: the benchmark's model, fetched)")
    run.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=f"{', '.join(ALL)} (default: all but soak)")
    run.add_argument("--peers", nargs="+", choices=list(PEERS), default=list(DEFAULT_PEERS))
    run.add_argument("--source", type=Path, default=ROOT, help="the checkout whose server is measured")
    run.add_argument("--ours", default="", help="more arguments for steelyard serve, in one string")
    run.add_argument("--quick", action="store_true", help="tiny amounts: shows that everything works, measures nothing")
    run.add_argument("--requests", type=int, help="requests of A, B and C")
    run.add_argument("--seconds", type=float, help="of each cell of D")
    run.add_argument("--rounds", type=int, help="turns into which the seconds of D are cut")
    run.add_argument("--clients", type=int, nargs="+", help="of D")
    run.add_argument("--chats", nargs="+", help="of E: prompt tokens, a + between chats at the same time: 4096+16384")
    run.add_argument("--phase", type=float, help="least seconds of each phase of E")
    run.add_argument("--compared", type=int, help="answers of each cell of D and F that are computed again, alone")
    run.add_argument("--decisions", type=int, help="of the exactness run")
    run.add_argument("--peers-decisions", type=int, help="of the exactness run, for peers")
    run.add_argument("--soak", type=float, help="seconds of the soak")
    run.add_argument("--busy-machine", action="store_true", help="measure although other processes use the cores")
    return parser


def _amounts(given: argparse.Namespace) -> Amounts:
    wanted = {
        "in_turn_requests": given.requests,
        "loop": given.seconds,
        "loop_rounds": given.rounds,
        "clients": given.clients and tuple(given.clients),
        "chats": given.chats and tuple(tuple(map(int, chats.split("+"))) for chats in given.chats),
        "chat_phase": given.phase,
        "compared": given.compared,
        "exact_decisions": given.decisions,
        "exact_peers_decisions": given.peers_decisions,
        "soak": given.soak,
    }
    return replace(QUICK if given.quick else Amounts(), **{k: v for k, v in wanted.items() if v is not None})


def _fetch(given: argparse.Namespace) -> int:
    model = given.model or supplies.model(say)
    print(model)
    for layout in ("state-first", "options-first"):
        print(supplies.decision_copy(model, layout, say))
    print(supplies.llama_server(say, jobs=given.threads))
    return 0


def say(text: str) -> None:
    """Progress, with the time."""
    print(f"{datetime.now():%H:%M:%S} {text}", file=sys.stderr, flush=True)


async def _run(given: argparse.Namespace) -> int:
    chosen = given.workloads or [name for name in ALL if name != "soak"]
    if unknown := set(chosen) - set(ALL):
        raise SystemExit(f"unknown workloads: {', '.join(sorted(unknown))}; there are {', '.join(ALL)}")
    out = given.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    amounts = _amounts(given)
    model = given.model.absolute() if given.model else supplies.model(say)
    busy = machine.busy_cores()
    if busy > BUSY_CORES and not (given.busy_machine or given.quick):
        raise SystemExit(f"{busy:.2f} cores are busy; figures would mean nothing. Wait, or give --busy-machine.")
    plan = Plan(
        model=model,
        threads=given.threads,
        context_tokens=4096,
        chats=2,
        source=given.source.absolute(),
        logs=out / "logs",
        arguments=tuple(shlex.split(given.ours)),
    )
    results = report.load(out)
    started = datetime.now(UTC)
    about = {
        "command": shlex.join(["python", "-m", "benchmarks.peers", *sys.argv[1:]]),
        "started": started.isoformat(timespec="seconds"),
        "machine": machine.facts(),
        "busy_cores": busy,
        "threads": plan.threads,
        "model": {"name": model.name, "sha256": supplies.sha256_of(model)},
        "revision": supplies.revision(plan.source),
        "llama_server": supplies.LLAMA_CPP,
        "peers": {},
        "quick": given.quick,
        "workloads": chosen,
    }
    results["runs"].append(about)
    with (out / f"requests-{started:%Y%m%dT%H%M%S}.jsonl").open("w", encoding="utf-8") as sink:
        run = Run(plan, [PEERS[name] for name in given.peers], amounts, Log(sink), results, about, out)
        for name in chosen:
            say(f"workload {name}")
            await run.workload(name)
    return _verdicts(out, results)


def _verdicts(out: Path, results: report.Results) -> int:
    verdicts = report.write(out, results)
    print((out / "results.md").read_text(encoding="utf-8"))
    print(f"in {out}: results.json, results.md, results.png, requests-*.jsonl, logs/")
    return 1 if any(verdict.passed is False for verdict in verdicts) else 0


class Run:
    """One run: which peers, how much, and where the figures go. Each workload starts the peers it needs."""

    def __init__(
        self,
        plan: Plan,
        peers: list[Peer],
        amounts: Amounts,
        log: Log,
        results: report.Results,
        about: dict[str, Any],
        out: Path,
    ) -> None:
        self._plan, self._peers, self._amounts, self._log = plan, peers, amounts, log
        self._results, self._about, self._out = results, about, out
        self._numbers = Numbers()
        self._patience = Patience(total_s=amounts.patience)

    async def workload(self, name: str) -> None:
        """Measure one workload; its cells are written as soon as they are complete."""
        if name in ("A", "B", "C"):
            await self._in_turn(name)
        elif name == "D":
            await self._concurrent()
        else:
            others = {"E": self._beside_chats, "F": self._bursts, "H": self._registered}
            await {**others, "exact": self._exact, "soak": self._soak}[name]()

    def _keep(self, cell: str, content: dict[str, Any]) -> None:
        content["measured"] = self._about["started"]
        self._results["cells"][cell] = content
        report.write(self._out, self._results)

    @contextmanager
    def _up(self, peers: Sequence[Peer], plan: Plan | None = None) -> Iterator[Bench]:
        """The peers, running at the same time and idle until they are asked."""
        with ExitStack() as stack:
            running = [stack.enter_context(servers.running(peer, plan or self._plan)) for peer in peers]
            for one in running:
                facts = {"command": one.command, "start_s": one.start_s, "idle_cores": machine.idle_share(one.pid)}
                self._about["peers"][one.name] = facts
                say(f"{one.name} is up after {one.start_s:.1f} s and uses {facts['idle_cores']:.2f} cores when idle")
            yield Bench(running, self._log, self._numbers, say, self._patience)

    async def _in_turn(self, name: str) -> None:
        with self._up(self._peers) as bench, ExitStack() as stack:
            ours = any(peer.name == OURS for peer in self._peers)
            # The floor is one decode of one piece of text; a request with three questions is not.
            floor = stack.enter_context(servers.floor(self._plan)) if ours and name != "B" else None
            self._keep(name, await workloads.in_turn(bench, name, count=self._amounts.in_turn_requests, floor=floor))

    async def _concurrent(self) -> None:
        with self._up(self._peers) as bench:
            for name in ("A", "C"):
                for clients in self._amounts.clients:
                    content = await workloads.concurrent(
                        bench,
                        name,
                        clients=clients,
                        seconds=self._amounts.loop,
                        rounds=self._amounts.loop_rounds,
                    )
                    self._keep(f"D-{name}-{clients}", content)
        cells = [f"D-{name}-{clients}" for name in ("A", "C") for clients in self._amounts.clients]
        await self._compare(cells)

    async def _compare(self, cells: list[str]) -> None:
        """Compare answers of ``cells`` with the same peer's, computed alone by a fresh server."""
        for peer in self._peers:
            chosen: list[Record] = []
            for cell in cells:
                answered = [record for record in self._log.of(cell, peer.name) if record.answers]
                chosen += exactness.evenly(answered, self._amounts.compared)
            say(f"computing {len(chosen)} answers of {peer.name} again, alone")
            await exactness.compare_with_alone(peer, self._plan, chosen, limit=None, patience=self._patience)
            for cell in cells:
                counted = tally(self._log.of(cell, peer.name))
                figures = self._results["cells"][cell]["peers"][peer.name]["tally"]
                figures |= {"compared": counted.compared, "changed": counted.changed, "flipped": counted.flipped}
        report.write(self._out, self._results)

    async def _beside_chats(self) -> None:
        for tokens in self._amounts.chats:
            # Beside the prompt: the template's own tokens, the answer, and words that are longer than most.
            room = max(tokens) + max(tokens) // 4 + 512
            plan = replace(self._plan, context_tokens=room, chats=max(2, len(tokens)))
            peers: dict[str, Any] = {}
            first = self._numbers.cell()
            start = next(first)
            for peer in [peer for peer in self._peers if peer.chats]:
                with self._up([peer], plan) as bench:
                    numbers = iter(range(start, start + 10_000))
                    peers[peer.name] = await workloads.beside_chats(
                        bench, bench.peers[0], tokens=tokens, seconds=self._amounts.chat_phase, numbers=numbers
                    )
            self._keep(workloads.chats_cell(tokens), {"peers": peers})

    async def _bursts(self) -> None:
        peers: dict[str, Any] = {}
        start = next(self._numbers.cell())
        for peer in self._peers:
            with self._up([peer]) as bench:
                numbers = iter(range(start, start + 10_000))
                peers[peer.name] = await workloads.bursts(
                    bench, bench.peers[0], over=self._amounts.burst_over, numbers=numbers
                )
        self._keep("F", {"peers": peers})
        await self._compare(["F"])

    async def _registered(self) -> None:
        threads = self._plan.threads
        decisions = supplies.heads(self._plan.model, cases.REGISTERED, say, jobs=threads)
        plan = replace(self._plan, arguments=(*self._plan.arguments, "--decisions", str(decisions)))
        peers = [servers.REGISTERED, *(peer for peer in self._peers if peer.name != OURS)]
        with self._up(peers, plan) as bench:
            for cell, content in (await workloads.registered(bench, count=self._amounts.in_turn_requests)).items():
                self._keep(cell, content)

    async def _exact(self) -> None:
        peers: dict[str, Any] = {}
        start = next(self._numbers.cell())
        for peer in self._peers:
            ours = peer.kind == OURS
            say(f"exactness of {peer.name}")
            peers[peer.name] = await exactness.exactness(
                peer,
                self._plan,
                self._log,
                decisions=self._amounts.exact_decisions if ours else self._amounts.exact_peers_decisions,
                # The walkthrough's scorer takes one request at a time; more clients would only be refused.
                clients=1 if peer.kind == WALKTHROUGH else self._amounts.exact_clients,
                patience=self._patience,
                first=start,
                limit_s=self._amounts.exact_limit,
            )
        self._keep("exact", {"peers": peers})

    async def _soak(self) -> None:
        start = next(self._numbers.cell())
        peers: dict[str, Any] = {}
        for peer in [
            peer for peer in self._peers if peer.kind == OURS or (peer.kind == LLAMA and len(self._peers) == 1)
        ]:
            with self._up([peer]) as bench:
                peers[peer.name] = await exactness.soak(
                    bench,
                    bench.peers[0],
                    seconds=self._amounts.soak,
                    clients=4,
                    first=start,
                    sample_s=self._amounts.soak_sample,
                )
        self._keep("soak", {"peers": peers})


if __name__ == "__main__":
    sys.exit(main())

"""The peers as processes: started here, waited for, and always stopped."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import httpx

from benchmarks.peers import supplies, wire
from benchmarks.peers.cases import Case
from benchmarks.peers.wire import Answer

START_S = 180.0
STOP_S = 30.0
ROOT = Path(__file__).resolve().parents[2]
OURS, LLAMA, WALKTHROUGH = "steelyard", "llama-server", "walkthrough"


@dataclass(frozen=True)
class Plan:
    """The settings that every peer is started with.

    Attributes:
        model: The weights.
        threads: For llama.cpp, the same for everyone.
        context_tokens: The longest request, prompt and generated text together.
        chats: Chats generated at the same time.
        source: The checkout whose server is measured.
        arguments: More arguments for ``steelyard serve``.
        logs: Folder for what the peers print.
    """

    model: Path
    threads: int
    context_tokens: int
    chats: int
    source: Path
    logs: Path
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Peer:
    """One peer: its start and its protocol.

    Attributes:
        name: What tables call it.
        kind: One of ``OURS``, ``LLAMA`` and ``WALKTHROUGH``.
        path: Where decisions are asked for.
        ready: A path that answers 200 once it is ready.
        layout: For llama-server, which template its copy of the weights has.
        flags: More arguments.
        extra: Fields added to the body of a System One request.
        registered: Whether it is asked registered decisions, by their names.
    """

    name: str
    kind: str
    path: str
    ready: str
    layout: str = "state-first"
    flags: tuple[str, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)
    registered: bool = False

    @property
    def chats(self) -> bool:
        """Tell whether it answers ``/v1/chat/completions``."""
        return self.kind != WALKTHROUGH

    def body(self, case: Case) -> dict[str, Any]:
        """The request's body, in the contract that this peer speaks."""
        if self.registered:
            return wire.registered_body(case)
        return wire.decide_body(case) if self.kind == WALKTHROUGH else wire.systemone_body(case, self.extra)

    def answers(self, case: Case, body: Any) -> list[Answer]:
        """The answers in a body; raises ``UnreadableError``."""
        decides = self.registered or self.kind == WALKTHROUGH
        return wire.decide_answers(case, body) if decides else wire.systemone_answers(case, body)


LETTERS = {"x_readout": "letters-raw"}
"""llama-server's part: a layout is one of letters."""
PEERS = {
    peer.name: peer
    for peer in (
        Peer(OURS, OURS, "/v1/systemone", "/ping"),
        Peer("steelyard-state-first", OURS, "/v1/systemone", "/ping", extra={"x_layout": "state-first"} | LETTERS),
        Peer("steelyard-options-first", OURS, "/v1/systemone", "/ping", extra={"x_layout": "options-first"} | LETTERS),
        Peer(LLAMA, LLAMA, "/v1/systemone", "/health"),
        Peer("llama-server-8-slots", LLAMA, "/v1/systemone", "/health", flags=("--parallel", "8")),
        Peer("llama-server-1-slot", LLAMA, "/v1/systemone", "/health", flags=("--parallel", "1")),
        Peer("llama-server-options-first", LLAMA, "/v1/systemone", "/health", layout="options-first"),
        Peer(WALKTHROUGH, WALKTHROUGH, "/invocations", "/ping"),
    )
}
REGISTERED = replace(PEERS[OURS], path="/invocations", registered=True)
"""Ours, asked by name; in tables it is ours."""
DEFAULT_PEERS = (OURS, LLAMA, WALKTHROUGH)


@dataclass(frozen=True)
class Running:
    """A peer that is up. ``alone`` says that it reuses nothing between requests."""

    peer: Peer
    url: str
    pid: int
    command: list[str]
    start_s: float

    @property
    def name(self) -> str:
        """Its name in tables."""
        return self.peer.name


def command(peer: Peer, plan: Plan, *, port: int, alone: bool) -> list[str]:
    """The command line of ``peer``.

    Args:
        peer: Which.
        plan: What all of them get.
        port: Where it listens.
        alone: Without reuse between requests, where it has a switch for that: for answers to compare with.
    """
    threads = str(plan.threads)
    if peer.kind == WALKTHROUGH:
        place = [str(plan.model), "--port", str(port), "--threads", threads]
        return [supplies.python(), "-m", "benchmarks.peers.walkthrough", *place]
    if peer.kind == LLAMA:
        copy = supplies.decision_copy(plan.model, peer.layout, print)
        place = ["--model", str(copy), "--host", "127.0.0.1", "--port", str(port), "--threads", threads]
        room = ["--ctx-size", str(_llama_context(peer, plan))]
        return [
            *(str(supplies.llama_server(print, jobs=plan.threads)), *place, *room, "--metrics", "--no-ui"),
            *(*peer.flags, *(["--no-cache-prompt"] if alone else [])),
        ]
    place = ["--model", str(plan.model), "--port", str(port), "--threads", threads, "--log-level", "warning"]
    room = ["--context-tokens", str(plan.context_tokens), "--chats", str(plan.chats)]
    return [
        *(supplies.python(), "-m", "steelyard", "serve", *place, *room, *plan.arguments, *peer.flags),
        *(["--no-reuse-prefixes"] if alone else []),
    ]


def _llama_context(peer: Peer, plan: Plan) -> int:
    """Its slots share one cache by default, and otherwise divide it: enough for the chats and a decision per slot."""
    slots = int(peer.flags[peer.flags.index("--parallel") + 1]) if "--parallel" in peer.flags else 4
    return plan.context_tokens * (plan.chats + 1) if slots == 4 else plan.context_tokens * slots


def environment(peer: Peer, plan: Plan) -> dict[str, str]:
    """The child's environment: ours is imported from ``plan.source``, the walkthrough's scorer from this checkout."""
    paths = {OURS: [plan.source / "runtime", plan.source], WALKTHROUGH: [ROOT], LLAMA: []}[peer.kind]
    given = dict(os.environ)
    if paths:
        given["PYTHONPATH"] = os.pathsep.join(map(str, paths))
    return given


@contextmanager
def running(peer: Peer, plan: Plan, *, alone: bool = False) -> Iterator[Running]:
    """A peer, ready; stopped when the block ends, however it ends.

    Raises:
        SystemExit: It stopped before it was ready, or was not ready in time; the end of its log is quoted.
    """
    plan.logs.mkdir(parents=True, exist_ok=True)
    port = _free_port()
    arguments = command(peer, plan, port=port, alone=alone)
    log = plan.logs / f"{peer.name}{'-alone' if alone else ''}.log"
    with log.open("ab") as sink:
        started = time.monotonic()
        # A folder of its own: Python puts the current one before PYTHONPATH.
        process = subprocess.Popen(
            arguments,
            cwd=plan.logs,
            env=environment(peer, plan),
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        url = f"http://127.0.0.1:{port}"
        try:
            _wait(process, url + peer.ready, log)
            yield Running(peer, url, process.pid, arguments, time.monotonic() - started)
        finally:
            stop(process)


def stop(process: subprocess.Popen[Any]) -> None:
    """SIGTERM, time to end, SIGKILL; for the whole process group."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait(process: subprocess.Popen[Any], url: str, log: Path) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        if process.poll() is not None:
            raise SystemExit(f"the peer ended with {process.returncode} before it was ready:\n{_tail(log)}")
        try:
            if httpx.get(url, timeout=5.0).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise SystemExit(f"the peer was not ready after {START_S:g} s:\n{_tail(log)}")


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Floor:
    """The bare decode in a child process; see ``floor.py``."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.pid = process.pid
        assert process.stdin is not None
        assert process.stdout is not None
        self._in: IO[str] = process.stdin
        self._out: IO[str] = process.stdout

    def seconds(self, text: str, *, evaluated: int, reused: int) -> float:
        """Wall time of decoding ``evaluated`` tokens behind ``reused``."""
        self._in.write(json.dumps({"text": text, "evaluated": evaluated, "reused": reused}) + "\n")
        self._in.flush()
        return float(json.loads(self._out.readline())["seconds"])


@contextmanager
def floor(plan: Plan) -> Iterator[Floor]:
    """The floor's process, ready."""
    process = subprocess.Popen(
        [supplies.python(), "-m", "benchmarks.peers.floor", str(plan.model), "--threads", str(plan.threads)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=plan.logs,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise SystemExit("the floor's process ended before it was ready")
        yield Floor(process)
    finally:
        stop(process)

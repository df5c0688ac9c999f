"""The soak's store is full before memory is judged, and each limit is held."""

from __future__ import annotations

import http.server
import shlex
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.attack import soak, target
from benchmarks.attack.target import Plan
from benchmarks.peers.exactness import flatness

STORE_MIB = 8
COMMAND = (
    f"{shlex.quote(sys.executable)} -m steelyard serve --model {{model}} --port {{port}} --threads 1 "
    f"--prefix-cache-mib {STORE_MIB}"
)


def test_the_store_of_prefixes_is_full_before_memory_is_judged(gemma: Path, tmp_path: Path) -> None:
    plan, said = Plan(command=COMMAND, model=gemma, logs=tmp_path), []
    with target.serving(plan, "soak") as server:
        assert target.wait_ready(server), target.tail(server)
        filled = soak.fill_store(server, plan, said.append)
        again = soak.fill_store(server, plan, said.append)
    assert said == ["filling the store of prefixes"] * 2
    assert filled["states"] >= 2
    assert again["states"] >= 1
    assert STORE_MIB / 2 < filled["bytes"] / (1 << 20) <= STORE_MIB


def test_a_store_that_does_not_fill_or_is_not_there_is_told(tmp_path: Path) -> None:
    """The store of a server that counts no eviction, and a server of another kind, without metrics."""
    text = [f"{soak.EVICTIONS} 0\n".encode()]

    class Fake(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(200 if text else 404, text[0] if text else b"")

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self._answer(200, b"{}")

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    plan = Plan(command="", model=tmp_path, logs=tmp_path)
    with http.server.ThreadingHTTPServer((target.HOST, 0), Fake) as fake:
        threading.Thread(target=fake.serve_forever, daemon=True).start()
        server: Any = SimpleNamespace(port=fake.server_address[1])
        with pytest.raises(SystemExit, match="did not fill the store"):
            soak.fill_store(server, plan, lambda _: None, limit_s=0.05)
        text.clear()
        assert soak.fill_store(server, plan, lambda _: None) == {"states": 0, "bytes": None}
        fake.shutdown()


def figures(**changes: Any) -> dict[str, Any]:
    """Figures of a soak that keeps every limit, at the limit."""
    times = [float(at) for at in range(0, 600, 2)]

    def part(p95_s: float) -> dict[str, Any]:
        return {kind: {"asked": 9, "answered": 9, "wrong": 0, "p95_s": p95_s} for kind in ("decide", "chat", "stream")}

    return {
        "elapsed_s": 10.0,
        "quiet": part(0.5),
        "beside": part(0.5 * soak.SLOWDOWN_LIMIT),
        "after": part(0.5),
        "pings": {"n": 40, "worst_s": soak.PING_LIMIT_S, "failed": 0},
        "memory": flatness(times, [1e9 for _ in times]),
        "peak_bytes": 1 << 30,
        "log_bytes": 10 * soak.LOG_BYTES_PER_S,
        "exit_status": 0,
    } | changes


def missed(found: dict[str, Any]) -> list[str]:
    return [verdict["what"] for verdict in soak._judged(found)["verdicts"] if not verdict["kept"]]


def test_a_soak_at_every_limit_keeps_them() -> None:
    assert missed(figures()) == []


@pytest.mark.parametrize("growth", [0.03, 0.2])
def test_memory_that_grows_by_more_than_two_percent_is_not_flat(growth: float) -> None:
    times = [float(at) for at in range(0, 600, 2)]
    grown = flatness(times, [1e9 * (1 + growth * at / 600) for at in times])
    assert missed(figures(memory=grown)) == ["memory's growth with a full store, upper end of the interval"]


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"pings": {"n": 40, "worst_s": 2.1, "failed": 0}}, "worst /ping"),
        ({"pings": {"n": 40, "worst_s": 1.0, "failed": 1}}, "/ping not 200"),
        ({"log_bytes": 201_000}, "log"),
        ({"exit_status": -9}, "server at the end"),
    ],
)
def test_each_limit_is_held(changes: dict[str, Any], what: str) -> None:
    assert missed(figures(**changes)) == [what]


def test_one_lost_or_wrong_or_late_answer_is_found() -> None:
    found = figures()
    found["beside"]["chat"]["answered"] -= 1
    assert missed(found) == ["innocent requests not answered"]
    found = figures()
    found["after"]["stream"]["wrong"] = 1
    assert missed(found) == ["answers unlike those given alone"]
    found = figures()
    found["beside"]["decide"]["p95_s"] *= 1.01
    assert missed(found) == ["decisions' p95 beside attacks, over the same load without"]

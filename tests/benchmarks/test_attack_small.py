"""Every attack of ``benchmarks.attack``, for a second, on a real server: nobody is lost, nothing is wrong or grows."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tiny_models
from benchmarks.attack import attackers, gguf_edits, report, running, starts, target
from benchmarks.attack.target import Plan, Server

SECONDS = 1.0
QUIET_S = 0.2
# Generous: what is looked for is growth with every request, or with what one holds.
GROWTH_BYTES = 400 << 20
LOG_BYTES = 1 << 20
OPEN_FILES = 400
# These need a server of their own: few descriptors, an output that nobody reads.
ALONE = ("idle-connections", "bad-requests-unread-output")
# An attacker with a name for every connection has as many turns as names: a gateway gives names, not callers. The
# innocent caller may be told that the server is busy, or wait in vain, and is served as soon as they are gone.
MAY_REFUSE = ("many-names",)
WAITED = ('"error_type":"busy"', "TimeoutError")
REQUESTS = [name for name in running.NAMES if name not in ALONE]
BROKEN_FILES = ("gguf-epsilon-not-a-number", "gguf-equal-tokens")


COMMAND = f"{shlex.quote(sys.executable)} -m steelyard serve --model {{model}} --port {{port}} --threads 1"


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory, gemma: Path) -> Plan:
    """The embedded model, whose tokenizer is as slow on long runs as those of larger ones."""
    return Plan(command=COMMAND, model=gemma, logs=tmp_path_factory.mktemp("attack"))


@pytest.fixture(scope="module")
def tiny_plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    room = tmp_path_factory.mktemp("tiny")
    return Plan(command=COMMAND, model=tiny_models.write("llama", room / "model.gguf"), logs=room / "logs")


@pytest.fixture(scope="module")
def server(plan: Plan) -> Iterator[Server]:
    with target.serving(plan, "all", open_files=OPEN_FILES) as server:
        assert target.wait_ready(server), target.tail(server)
        yield server


@pytest.mark.parametrize("name", REQUESTS)
def test_innocent_callers_are_answered_beside_an_attack(plan: Plan, server: Server, name: str) -> None:
    measured = running.measure(plan, server, name, quiet_s=QUIET_S, seconds=SECONDS)
    assert measured["server"]["alive"], target.tail(server)
    assert measured["attacker"]["connections"] > 0
    lost = measured["decisions"]["lost"]
    if name in MAY_REFUSE:
        assert [each for each in lost if not any(how in each for how in WAITED)] == []
    else:
        assert lost == []
        assert measured["decisions"]["answered"] > 0
    assert measured["decisions"]["wrong"] == 0
    assert measured["ping"]["failed"] == 0
    assert measured["server"]["answers_afterwards"]
    assert measured["server"]["memory_growth_bytes"] < GROWTH_BYTES
    assert measured["server"]["log_bytes"] < LOG_BYTES
    if chats := measured["chats"]:
        assert chats["lost"] == []
        assert chats["wrong"] == 0


@pytest.mark.parametrize("name", ALONE)
def test_few_descriptors_and_an_output_that_nobody_reads_stop_nothing(plan: Plan, name: str) -> None:
    measured = running.attack(plan, name, quiet_s=QUIET_S, seconds=SECONDS)
    assert measured["decisions"]["lost"] == []
    assert measured["ping"]["failed"] == 0
    assert measured["server"]["exit_status"] == 0
    assert measured["server"]["log_bytes"] < LOG_BYTES


@pytest.mark.parametrize("name", BROKEN_FILES)
def test_a_broken_file_is_refused_in_a_few_lines(tiny_plan: Plan, name: str) -> None:
    found = starts.start(tiny_plan, name)
    assert found["outcome"].startswith("refused at the start") or "status 200" in found["outcome"], found
    assert found["lines"] < 40


def test_an_edit_that_changes_nothing_gives_the_same_file(tiny_plan: Plan, tmp_path: Path) -> None:
    gguf_edits.write_edited(tiny_plan.model, tmp_path / "same.gguf", lambda _head: None)
    assert (tmp_path / "same.gguf").read_bytes() == tiny_plan.model.read_bytes()


def test_the_tables_show_what_was_measured(tmp_path: Path) -> None:
    cell: dict[str, Any] = {
        "name": "spaces",
        "conditions": {"unread_output": False},
        "attacker": {"connections": 6, "bytes_sent": 2_000_000, "cpu_s": 0.5},
        "server": {
            "cpu_s": 7.0, "memory_growth_bytes": 3 << 20, "log_bytes": 4000, "alive": False, "exit_status": -6,
            "killed_for_memory": False, "answers_afterwards": False, "stop_s": 0.1,
        },
        "ping": {"n": 4, "worst_s": 2.5, "failed": 1},
        "quiet": {"p50_s": 0.01, "p95_s": 0.02},
        "decisions": {"p50_s": 0.1, "p95_s": 0.2, "answered": 3, "asked": 4, "wrong": 0},
        "chats": None,
    }  # fmt: skip
    results = {"runs": [], "attacks": {"spaces": cell}, "starts": {}}
    text = report.write(tmp_path, results)
    assert text.splitlines()[2] == (
        "| spaces | 6 | 2 | 0.5 | 7 | 3 | 4 | 2.5 | 1 of 4 | 10 | 100 | 20 | 200 | 10 | 3 of 4 | 0 | "
        "**ended with -6** |"
    )
    assert report.load(tmp_path) == results
    # An attack or a start that only one of two runs has is a row as well.
    before: dict[str, Any] = {"attacks": {}, "starts": {"signal-old": {"outcome": "ended"}}}
    after: dict[str, Any] = {"attacks": {"spaces": cell}, "starts": {"signal-new": {"outcome": "continues"}}}
    (row,) = [line for line in report.compared(before, after).splitlines() if line.startswith("| spaces ")]
    assert row in report.compared(after, before)
    assert "| signal-old | ended | - |\n| signal-new | - | continues |" in report.compared(before, after)


def test_an_attacker_counts_what_it_costs() -> None:
    port = target.free_port()
    attacker = attackers.Attacker(port, 0.3, "X-Steelyard-Caller")
    attackers.bad_requests(attacker)
    assert attacker.cost.answers["refused"] == attacker.cost.requests > 0
    assert attacker.cost.connections == attacker.cost.bytes_sent == 0

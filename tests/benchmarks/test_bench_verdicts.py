"""The promises: what was not measured is not kept, and a figure at its limit is."""

from __future__ import annotations

import copy
import json

import pytest

from benchmarks.peers import report
from benchmarks.peers.exactness import flatness
from benchmarks.peers.servers import LLAMA, OURS, WALKTHROUGH
from benchmarks.peers.verdicts import judge
from benchmarks.peers.workloads import metric

LATENCY = {"p50": 0.1, "p95": 0.2, "p99": 0.3, "mean": 0.1, "n": 10}
TALLY = {
    "requests": 100,
    "answered": 100,
    "attempts": 100,
    "refusals": 0,
    "refused": 0,
    "lost": 0,
    "compared": 50,
    "changed": 0,
    "flipped": 0,
    "retried": 0,
    "amplification": 1.0,
}
MEMORY = {"resident": 10**9, "own": 10**8}
PEER = {
    "latency_s": LATENCY,
    "decisions": 100,
    "decisions_per_s": 4.0,
    "elapsed_s": 25.0,
    "evaluated_per_decision": 60.0,
    "evaluated_per_request_median": 60,
    "evaluated_per_request_max": 66,
    "tally": TALLY,
    "memory_peak": MEMORY,
    "memory_after": MEMORY,
}


def ratio(value):
    return {"paired": {"value": value, "low": value * 0.98, "high": value * 1.02, "n": 100}, "of_p50": value}


def cells():
    """A run that keeps every promise."""
    both = {OURS: copy.deepcopy(PEER), LLAMA: copy.deepcopy(PEER)}
    loops = {
        "peers": copy.deepcopy(both),
        "ratios": {LLAMA: {"decisions_per_s": 1.8, "p95": {"value": 0.5, "low": 0.4, "high": 0.6, "n": 9}}},
    }
    chats = {
        "capacity_per_s": 4.0,
        "unloaded": PEER,
        "loaded": PEER,
        "p95_loaded_over_unloaded": 2.0,
        "chats_alone": [{"tokens_per_s": 100.0, "failed": 0}] * 2,
        "chats_beside": {"tokens_per_s": 85.0, "failed": 0},
        "chats_beside_over_alone": 0.85,
        "generated_beside_over_alone": 0.8,
    }
    exact = {"decisions": 1000, "clients": 8, "beside_chats": True, "tally": TALLY}
    memory = {"growth_share_at_most": 0.01, "flat": True, "start_bytes": 1e9, "end_bytes": 1e9}
    soak = {
        "elapsed_s": 1800.0,
        "decisions": 9000,
        "tally": TALLY,
        "canaries": 20,
        "canaries_changed": 0,
        "memory": memory,
        "memory_own": memory,
        "kept_bytes_peak": 10**7,
        "samples": [[0.0, 10**9, 10**8, 10**7], [5.0, 10**9, 10**8, 10**7]],
    }
    in_turn = {"peers": both, "floor_s": LATENCY}
    # Through JSON, so that no two cells share an object.
    return json.loads(
        json.dumps(
            {
                "A": in_turn | {"ratios": {LLAMA: ratio(0.5), WALKTHROUGH: ratio(0.33), "floor": ratio(1.05)}},
                "B": in_turn | {"ratios": {LLAMA: ratio(0.75), WALKTHROUGH: ratio(0.5)}, "floor_s": None},
                "C": in_turn | {"ratios": {LLAMA: ratio(1.0), WALKTHROUGH: ratio(0.75)}},
                "D-A-8": loops,
                "D-A-32": loops,
                "D-C-32": loops,
                "E-4k": {"peers": {OURS: chats}},
                "E-16k": {"peers": {OURS: chats, LLAMA: chats}},
                "F": {"peers": {OURS: copy.deepcopy(PEER) | {"bursts": [300, 150], "capacity_per_s": 4.0}}},
                "H": {"peers": {OURS: PEER | {"evaluated_per_request_median": 25}}, "ratios": {LLAMA: ratio(0.2)}},
                "H-3": {"peers": {OURS: PEER}, "ratios": {"one": ratio(1.15)}},
                "exact": {"peers": {OURS: exact, LLAMA: exact}},
                "soak": {"peers": {OURS: soak}},
            }
        )
    )


def test_a_run_at_the_limits_keeps_all_promises():
    assert [verdict.line for verdict in judge(cells()) if verdict.passed is not True] == []


def test_what_was_not_measured_is_not_kept():
    verdicts = judge({})
    assert len(verdicts) > 15
    assert {verdict.passed for verdict in verdicts} == {None}


@pytest.mark.parametrize(
    ("cell", "path", "value", "line"),
    [
        ("A", ("peers", OURS, "evaluated_per_request_median"), 71, "A: tokens"),
        ("A", ("ratios", "floor", "of_p50"), 1.06, "A: p50 over floor"),
        ("C", ("ratios", LLAMA, "of_p50"), 1.01, "C: p50 over llama-server"),
        ("D-A-8", ("ratios", LLAMA, "decisions_per_s"), 1.79, "D, 8 clients on A: decisions/s"),
        ("D-A-8", ("ratios", LLAMA, "p95", "value"), 0.51, "D, 8 clients on A: p95"),
        ("D-A-32", ("peers", OURS, "tally", "lost"), 1, "D-A-32: requests lost"),
        ("D-C-32", ("peers", OURS, "tally", "changed"), 1, "D-C-32: answers unlike"),
        ("E-4k", ("peers", OURS, "p95_loaded_over_unloaded"), 3.1, "E-4k: decisions"),
        ("E-16k", ("peers", OURS, "chats_beside_over_alone"), 0.79, "E-16k: chats"),
        ("F", ("peers", OURS, "tally", "lost"), 1, "F: neither"),
        ("F", ("peers", OURS, "tally", "amplification"), 2.0, "F: attempts"),
        ("H", ("peers", OURS, "evaluated_per_request_median"), 26, "H: tokens"),
        ("H", ("ratios", LLAMA, "of_p50"), 0.21, "H: p50 over llama-server"),
        ("H-3", ("ratios", "one", "of_p50"), 1.16, "H-3: p50 over one"),
        ("exact", ("peers", OURS, "tally", "changed"), 1, "exact: answers unlike"),
        ("exact", ("peers", OURS, "decisions"), 999, "exact: decisions"),
        ("soak", ("peers", OURS, "canaries_changed"), 1, "soak: last answers"),
        ("soak", ("peers", OURS, "memory", "growth_share_at_most"), 0.03, "soak: growth"),
        ("soak", ("peers", OURS, "memory_own", "growth_share_at_most"), 0.03, "soak: growth"),
        ("soak", ("peers", OURS, "elapsed_s"), 1700.0, "soak: seconds"),
    ],
)
def test_a_promise_that_is_broken_is_named(cell, path, value, line):
    found = cells()
    place = found[cell]
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    broken = [verdict for verdict in judge(found) if verdict.passed is False]
    assert len(broken) == 1
    assert broken[0].line.startswith(line)


def test_answers_that_were_not_compared_are_not_right():
    found = cells()
    found["D-A-32"]["peers"][OURS]["tally"]["compared"] = 0
    verdict = next(v for v in judge(found) if v.line == "D-A-32: answers unlike those alone")
    assert verdict.passed is None


def test_results_are_written_merged_and_drawn(tmp_path):
    machine = {"cpu": "c", "usable_cores": 2, "packages": {"llama-cpp-python": "1"}}
    run = {
        "command": "x",
        "started": "now",
        "machine": machine,
        "threads": 2,
        "model": {"name": "m", "sha256": "0" * 64},
        "revision": "r",
        "llama_server": "b",
        "busy_cores": 0.0,
    }
    everything = cells()
    report.write(tmp_path, {"runs": [run], "cells": {"A": everything.pop("A")}})
    results = report.load(tmp_path)
    results["cells"] |= everything
    report.write(tmp_path, results)
    assert set(json.loads((tmp_path / "results.json").read_text())["cells"]) == set(cells())
    text = (tmp_path / "results.md").read_text()
    assert "**no**" not in text
    assert "not measured" not in text
    for heading in ("## Promises", "## D: concurrent clients", "## E: ", "## F: ", "## Soak"):
        assert heading in text
    page = tmp_path / "page.md"
    page.write_text("above\n<!-- results: begin -->\nold\n<!-- results: end -->\nbelow\n")
    for _ in range(2):
        report.insert(page, results)
    inserted = page.read_text()
    assert inserted.startswith("above\n")
    assert inserted.endswith("-->\nbelow\n")
    assert "old" not in inserted
    assert inserted.count("### Promises") == 1
    page.unlink()
    assert (tmp_path / "results.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results.json", "results.md", "results.png"]


def test_memory_that_settles_is_flat_and_memory_that_grows_is_not():
    times = [float(at) for at in range(0, 1800, 5)]
    settles = flatness(times, [1e9 + min(at, 300.0) * 1e6 for at in times])
    grows = flatness(times, [1e9 + at * 1e5 for at in times])
    assert settles["flat"]
    assert not grows["flat"]
    assert grows["bytes_per_s"]["value"] == pytest.approx(1e5)


def test_a_metric_is_found_by_its_whole_name():
    text = "# HELP a b\nllamacpp:prompt_tokens_total_more 1\nllamacpp:prompt_tokens_total 42\n"
    assert metric(text, "llamacpp:prompt_tokens_total") == 42.0
    assert metric(text, "absent") is None

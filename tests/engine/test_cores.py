"""Cores: what the affinity, the topology and the container's quota leave."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from switchyard_runtime.engine import cores


def topology(root: Path, siblings: dict[int, str]) -> Path:
    for cpu, text in siblings.items():
        folder = root / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(text + "\n")
    return root


def test_hyperthreads_count_once(tmp_path: Path) -> None:
    sys = topology(tmp_path, {0: "0,4", 1: "1,5", 4: "0,4", 5: "1,5"})
    assert cores.physical_cores({0, 1, 4, 5}, sys=sys) == 2
    assert cores.physical_cores({4, 5}, sys=sys) == 2
    assert cores.physical_cores({0, 4}, sys=sys) == 1


def test_without_a_topology_every_cpu_counts(tmp_path: Path) -> None:
    assert cores.physical_cores({0, 1, 2}, sys=tmp_path) == 3


def test_quota_of_both_cgroup_versions(tmp_path: Path) -> None:
    assert cores.quota(root=tmp_path) == math.inf
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert cores.quota(root=tmp_path) == math.inf
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert cores.quota(root=tmp_path) == 1.5
    old = tmp_path / "v1" / "cpu"
    old.mkdir(parents=True)
    (old / "cpu.cfs_quota_us").write_text("-1")
    (old / "cpu.cfs_period_us").write_text("100000")
    assert cores.quota(root=tmp_path / "v1") == math.inf
    (old / "cpu.cfs_quota_us").write_text("400000")
    assert cores.quota(root=tmp_path / "v1") == 4


def test_a_fraction_of_a_core_is_still_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "quota", lambda: 0.5)
    assert cores.usable() == 1

"""Cores: what the affinity, the cpuset, the topology, the kinds of cores and the container's quota leave."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from steelyard_runtime.engine import cores


def machine(root: Path, files: dict[str, str]) -> Path:
    """A root folder with these files in it."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def topology(siblings: dict[int, str], *, name: str = "thread_siblings_list") -> dict[str, str]:
    return {f"sys/devices/system/cpu/cpu{cpu}/topology/{name}": text for cpu, text in siblings.items()}


HYPERTHREADS = {0: "0,4", 1: "1,5", 2: "2,6", 3: "3,7", 4: "0,4", 5: "1,5", 6: "2,6", 7: "3,7"}


@pytest.mark.parametrize("name", ["thread_siblings_list", "core_cpus_list"])
def test_hyperthreads_count_once(tmp_path: Path, name: str) -> None:
    root = machine(tmp_path, topology(HYPERTHREADS, name=name))
    assert cores.find(allowed=set(range(8)), root=root).physical == 4
    assert cores.find(allowed={4, 5}, root=root).physical == 2
    assert cores.find(allowed={0, 4}, root=root).physical == 1


def test_without_a_topology_every_cpu_counts(tmp_path: Path) -> None:
    found = cores.find(allowed={0, 1, 2}, root=tmp_path)
    assert found == cores.Cores(logical=3, physical=3, fast=3, quota=math.inf)


@pytest.mark.parametrize(("usable", "threads"), [(1, 1), (2, 2), (3, 2), (4, 3), (16, 15)])
def test_one_core_is_left_to_the_event_loop_where_there_are_more_than_two(usable: int, threads: int) -> None:
    found = cores.Cores(logical=2 * usable, physical=usable, fast=usable, quota=math.inf)
    assert (found.usable, found.threads) == (usable, threads)


@pytest.mark.parametrize(("quota", "usable"), [(0.5, 1), (1.0, 1), (1.9, 1), (4.0, 4), (99.0, 8), (math.inf, 8)])
def test_a_quota_counts_in_whole_cores_and_leaves_at_least_one(quota: float, usable: int) -> None:
    assert cores.Cores(logical=16, physical=8, fast=8, quota=quota).usable == usable


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, math.inf),
        ({"sys/fs/cgroup/cpu.max": "max 100000"}, math.inf),
        ({"sys/fs/cgroup/cpu.max": "150000 100000"}, 1.5),
        ({"sys/fs/cgroup/cpu.max": "nonsense"}, math.inf),
        ({"sys/fs/cgroup/cpu.max": "100 0"}, math.inf),
        ({"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, math.inf),
        ({"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "400000", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, 4),
    ],
)
def test_quota_of_both_cgroup_versions(tmp_path: Path, files: dict[str, str], quota: float) -> None:
    assert cores.quota(root=machine(tmp_path, files)) == quota


def test_of_nested_groups_the_tightest_quota_counts(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        {
            "proc/self/cgroup": "0::/system.slice/server.service",
            "sys/fs/cgroup/system.slice/cpu.max": "200000 100000",
            "sys/fs/cgroup/system.slice/server.service/cpu.max": "max 100000",
        },
    )
    assert cores.quota(root=root) == 2


def test_a_version_1_quota_lies_under_the_joint_mount_of_its_controllers(tmp_path: Path) -> None:
    inside = "sys/fs/cgroup/cpu,cpuacct/docker/abc"
    root = machine(
        tmp_path,
        {
            "proc/self/cgroup": "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc",
            f"{inside}/cpu.cfs_quota_us": "300000",
            f"{inside}/cpu.cfs_period_us": "100000",
        },
    )
    assert cores.quota(root=root) == 3


def test_in_a_container_the_path_seen_from_outside_leads_to_the_root(tmp_path: Path) -> None:
    root = machine(
        tmp_path, {"proc/self/cgroup": "0::/../../kubepods/pod1/abc", "sys/fs/cgroup/cpu.max": "250000 100000"}
    )
    assert cores.quota(root=root) == 2.5


@pytest.mark.parametrize("name", ["cpuset.cpus.effective", "cpuset/cpuset.effective_cpus"])
def test_a_cpuset_narrows_the_affinity(tmp_path: Path, name: str) -> None:
    root = machine(tmp_path, {f"sys/fs/cgroup/{name}": "2-3,8"})
    assert cores.find(allowed=set(range(4)), root=root).logical == 2


def test_a_cpuset_that_contradicts_the_affinity_is_passed_over(tmp_path: Path) -> None:
    root = machine(tmp_path, {"sys/fs/cgroup/cpuset.cpus.effective": "8-9"})
    assert cores.find(allowed={0, 1}, root=root).logical == 2


def test_efficiency_cores_do_not_count(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        topology({0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3", 4: "4", 5: "5"})
        | {"sys/devices/cpu_core/cpus": "0-3", "sys/devices/cpu_atom/cpus": "4-5"},
    )
    found = cores.find(allowed=set(range(6)), root=root)
    assert (found.logical, found.physical, found.fast) == (6, 4, 2)
    assert cores.find(allowed={4, 5}, root=root).fast == 2, "slow cores are all there is"


def test_slow_cores_by_capacity_do_not_count(tmp_path: Path) -> None:
    capacities = {0: 400, 1: 400, 2: 1024, 3: 1000}
    root = machine(
        tmp_path, {f"sys/devices/system/cpu/cpu{cpu}/cpu_capacity": str(value) for cpu, value in capacities.items()}
    )
    assert cores.find(allowed=set(range(4)), root=root).fast == 2


def test_this_machine_has_at_least_one() -> None:
    found = cores.find()
    assert 1 <= found.threads <= found.usable <= found.fast <= found.physical <= found.logical

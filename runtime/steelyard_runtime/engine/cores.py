"""The number of cores that llama.cpp may use. Threads beyond the free cores collapse throughput: they spin at barriers.

Everything is read from files under ``root``, so that tests can bring their own machine.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Set
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")
SPARED_ABOVE = 2
"""With more cores than this, one is left to the event loop; with two, it would cost half of the speed."""
FAST_SHARE = 0.8
"""A core of less than this share of the fastest core's capacity is a slow one: every barrier would wait for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cores:
    """The processors that this process may run on.

    Attributes:
        logical: Logical processors that the affinity and the cpuset allow.
        physical: Distinct physical cores among them; hyperthreads count once.
        fast: The physical ones without the efficiency cores, where the machine has cores of two kinds.
        quota: Cores' worth of time that the container may use; infinity without a limit.
    """

    logical: int
    physical: int
    fast: int
    quota: float

    @property
    def usable(self) -> int:
        """Fast physical cores within the quota, of which a fraction does not count; at least 1."""
        return max(1, math.floor(min(self.quota, self.fast)))

    @property
    def threads(self) -> int:
        """Threads for llama.cpp: the usable cores, without one for the event loop where there are more than two."""
        return self.usable - 1 if self.usable > SPARED_ABOVE else self.usable


def find(*, allowed: Set[int] | None = None, root: Path = ROOT) -> Cores:
    """Ask the operating system. What it does not tell counts as no limit, or as one core per logical processor.

    Args:
        allowed: Logical processors of the affinity mask; this process's own when None.
        root: Where ``/sys`` and ``/proc`` are.
    """
    mask = _affinity() if allowed is None else allowed
    cpus = (mask & cpuset(root=root)) or mask
    groups = physical_cores(cpus, root=root)
    return Cores(
        logical=len(cpus), physical=len(groups), fast=len(fast_cores(groups, root=root)), quota=quota(root=root)
    )


def usable() -> int:
    """Fast physical cores that this process may run on, within its quota; at least 1."""
    return find().usable


def threads() -> int:
    """Threads for llama.cpp when nothing else is asked for; at least 1."""
    return find().threads


def _affinity() -> Set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def physical_cores(cpus: Set[int], *, root: Path = ROOT) -> list[frozenset[int]]:
    """The logical ``cpus``, grouped by physical core; each for itself where the topology is not readable."""
    groups: dict[frozenset[int], set[int]] = {}
    for cpu in sorted(cpus):
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        # The first name is the newer one; old kernels have only the second.
        siblings = _cpu_list(topology / "core_cpus_list") or _cpu_list(topology / "thread_siblings_list")
        groups.setdefault(frozenset(siblings or {cpu}), set()).add(cpu)
    return [frozenset(group) for group in groups.values()]


def fast_cores(groups: list[frozenset[int]], *, root: Path = ROOT) -> list[frozenset[int]]:
    """The cores of the fastest kind among ``groups``; all of them where Linux does not tell kinds apart.

    Intel's efficiency cores are listed under ``cpu_atom``; on Arm each processor has a capacity.
    """
    efficient = _cpu_list(root / "sys/devices/cpu_atom/cpus")
    fast = [group for group in groups if not group & efficient] or groups
    capacities = [max((_capacity(cpu, root=root) for cpu in group), default=0) for group in fast]
    least = FAST_SHARE * max(capacities, default=0)
    return [group for group, capacity in zip(fast, capacities, strict=True) if capacity >= least]


def _capacity(cpu: int, *, root: Path) -> int:
    return _integer(root / f"sys/devices/system/cpu/cpu{cpu}/cpu_capacity") or 0


def quota(*, root: Path = ROOT) -> float:
    """Cores' worth of time that the control groups allow, the tightest of nested ones; infinity without a limit."""
    limits = [_quota_v2(folder) for folder in _groups(root, "")]
    limits += [_quota_v1(folder) for folder in _groups(root, "cpu")]
    return min(limits, default=math.inf)


def cpuset(*, root: Path = ROOT) -> frozenset[int]:
    """Logical processors that the control group allows; all that the machine could have where it sets none."""
    # The innermost group's effective set already holds what its parents leave it.
    for folder in (*_groups(root, ""), *_groups(root, "cpuset")):
        if found := _cpu_list(folder / "cpuset.cpus.effective") or _cpu_list(folder / "cpuset.effective_cpus"):
            return found
    return frozenset(range(1 << 16))


def _quota_v2(folder: Path) -> float:
    try:
        limit, period = (folder / "cpu.max").read_text().split()
        return math.inf if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return math.inf


def _quota_v1(folder: Path) -> float:
    limit, period = _integer(folder / "cpu.cfs_quota_us"), _integer(folder / "cpu.cfs_period_us")
    return math.inf if limit is None or period is None or limit <= 0 or period <= 0 else limit / period


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's control group and of its parents, innermost first.

    In a container the file system's root often is the group itself, and its path, seen from outside, leads nowhere;
    then only the root is read.

    Args:
        root: Where ``/sys`` and ``/proc`` are.
        controller: A controller of version 1, or "" for version 2.
    """
    base = root / "sys/fs/cgroup"
    mounts = [base / "unified", base] if not controller else []
    path = Path("/")
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, found = line.split(":", 2)
        if controller in controllers.split(","):
            path = Path(found)
            mounts += [base / controllers] if controller else []
    if controller:
        mounts.append(base / controller)
    for mount in dict.fromkeys(mounts):
        inner = [part for part in path.parts if part not in ("/", "..")]
        for depth in range(len(inner), -1, -1):
            folder = mount.joinpath(*inner[:depth])
            if folder.is_dir():
                yield folder


def _lines(path: Path) -> list[str]:
    try:
        return [line for line in path.read_text().splitlines() if line.count(":") >= 2]
    except OSError:
        return []


def _integer(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _cpu_list(path: Path) -> frozenset[int]:
    """Numbers of a list such as ``0-3,8``; empty when the file is not there or not such a list."""
    try:
        spans = [span.split("-") for span in path.read_text().strip().split(",") if span]
        return frozenset(cpu for span in spans for cpu in range(int(span[0]), int(span[-1]) + 1))
    except (OSError, ValueError):
        return frozenset()

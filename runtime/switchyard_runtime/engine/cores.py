"""How many cores llama.cpp may use. Threads beyond the free cores collapse throughput: they spin at barriers."""

from __future__ import annotations

import math
import os
from pathlib import Path


def physical_cores(cpus: set[int], *, sys: Path = Path("/sys/devices/system/cpu")) -> int:
    """Distinct physical cores among logical ``cpus``; the number of cpus where the topology is not readable."""
    cores = set()
    for cpu in cpus:
        siblings = sys / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        try:
            cores.add(siblings.read_text().strip())
        except OSError:
            return len(cpus)
    return max(1, len(cores))


def quota(*, root: Path = Path("/sys/fs/cgroup")) -> float:
    """Cores that the container's quota allows; infinity without one. Reads cgroup v2, then v1."""
    try:
        limit, period = (root / "cpu.max").read_text().split()
        return math.inf if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        pass
    try:
        limit_us = int((root / "cpu/cpu.cfs_quota_us").read_text())
        period_us = int((root / "cpu/cpu.cfs_period_us").read_text())
        return math.inf if limit_us <= 0 or period_us <= 0 else limit_us / period_us
    except (OSError, ValueError):
        return math.inf


def usable() -> int:
    """Physical cores that this process may run on, within its quota; at least 1."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    return max(1, min(physical_cores(allowed), math.floor(quota()) if quota() < math.inf else 1 << 16))

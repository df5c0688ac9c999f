"""Resources that a process and its children use, from ``/proc``."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True)
class Sample:
    """Resources that a process tree has used so far.

    Attributes:
        at: Monotonic time, in seconds.
        cpu_s: Processor time, in seconds.
        memory_bytes: Resident memory.
    """

    at: float
    cpu_s: float
    memory_bytes: int


def sample(pid: int) -> Sample | None:
    """The use of a process and its children; None where it cannot be read, or when it has ended."""
    ticks, pages = 0, 0
    try:
        for each in _tree(pid):
            fields = (_PROC / str(each) / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            # Counted from the state, the third field of proc(5): utime, stime and rss are the 14th, 15th and 24th.
            ticks += int(fields[11]) + int(fields[12])
            pages += int(fields[21])
    except (OSError, IndexError, ValueError):
        return None
    return Sample(time.monotonic(), ticks / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE"))


def cpu_percent(earlier: Sample, later: Sample) -> float:
    """Processor use between two samples: 100 is one core, as in CloudWatch."""
    elapsed = later.at - earlier.at
    return 100 * (later.cpu_s - earlier.cpu_s) / elapsed if elapsed > 0 else 0.0


def memory_percent(taken: Sample) -> float:
    """Memory of a sample as a share of this machine's."""
    return 100 * taken.memory_bytes / (os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def _tree(pid: int) -> list[int]:
    children = (_PROC / str(pid) / "task" / str(pid) / "children").read_text(encoding="utf-8").split()
    return [pid, *(each for child in children for each in _tree(int(child)))]

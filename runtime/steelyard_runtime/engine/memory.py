"""The memory of this process by kind, where the system reports it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_STATUS = Path("/proc/self/status")
_FIELDS = {"RssAnon": "anonymous", "RssFile": "mapped", "VmHWM": "peak"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Bytes in memory: the process's own, those of mapped files (the weights), and the most there ever were."""

    anonymous: int
    mapped: int
    peak: int

    def __str__(self) -> str:
        own, mapped, peak = (f"{value / 1e6:.0f} MB" for value in (self.anonymous, self.mapped, self.peak))
        return f"{own} of memory, {mapped} of mapped files, at most {peak} together"


def used(status: Path = _STATUS) -> MemoryUse | None:
    """Read Linux's figures of this process; None elsewhere."""
    try:
        lines = status.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = {}
    for line in lines:
        name, _, value = line.partition(":")
        if name in _FIELDS:
            found[_FIELDS[name]] = int(value.split()[0]) * 1024
    return MemoryUse(**found) if len(found) == len(_FIELDS) else None

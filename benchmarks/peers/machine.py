"""The machine that is measured on, and what its processes use: read from ``/proc``, so Linux only."""

from __future__ import annotations

import asyncio
import os
import platform
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from steelyard_runtime.engine import cores

PROC = Path("/proc")


def facts() -> dict[str, Any]:
    """CPU, cores, memory and versions."""
    info = dict(_pairs((PROC / "cpuinfo").read_text(encoding="utf-8").split("\n\n")[0]))
    memory = dict(_pairs((PROC / "meminfo").read_text(encoding="utf-8")))
    flags = info.get("flags", "").split()
    return {
        "cpu": info.get("model name", platform.processor()),
        "cpu_family_model_stepping": [info.get(name, "") for name in ("cpu family", "model", "stepping")],
        "cpu_flags": [flag for flag in flags if flag.startswith(("avx", "amx", "fma", "f16c"))],
        "cpus": os.cpu_count(),
        "usable_cores": cores.usable(),
        "memory": memory.get("MemTotal", ""),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in ("llama-cpp-python", "httpx", "numpy", "uvicorn", "starlette")},
    }


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            yield name.strip(), value.strip()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"


@dataclass(frozen=True)
class Memory:
    """Bytes of a process group: all that is resident, and of that what is its own (weights are mapped, not its own)."""

    resident: int
    own: int


def group(leader: int) -> list[int]:
    """The processes of a process group."""
    found = []
    for entry in PROC.iterdir():
        if entry.name.isascii() and entry.name.isdigit():
            try:
                # The fields after the command's closing bracket: state, parent, group, ...
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == leader:
                found.append(int(entry.name))
    return found


def memory(leader: int) -> Memory:
    """Of the process group of ``leader``; a process that ends meanwhile counts as nothing."""
    resident = own = 0
    for pid in group(leader):
        try:
            pairs = dict(_pairs((PROC / str(pid) / "status").read_text()))
        except OSError:
            continue
        resident += _bytes(pairs.get("VmRSS"))
        own += _bytes(pairs.get("RssAnon"))
    return Memory(resident, own)


def _bytes(kilobytes: str | None) -> int:
    return int(kilobytes.split()[0]) * 1024 if kilobytes else 0


def cpu_seconds(leader: int) -> float:
    """Processor time used so far by the process group of ``leader``."""
    ticks = 0
    for pid in group(leader):
        try:
            fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        # Its own time, and that of its children which have ended and were waited for.
        ticks += sum(int(field) for field in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def idle_share(leader: int, seconds: float = 2.0) -> float:
    """Cores that a process group uses while nobody asks it for anything."""
    before = cpu_seconds(leader)
    time.sleep(seconds)
    return (cpu_seconds(leader) - before) / seconds


@dataclass
class Watch:
    """Samples of a process group's memory; times are seconds on the monotonic clock.

    ``kept`` are the bytes that a bounded store inside held at the same times, by the process' own account.
    """

    times: list[float] = field(default_factory=list)
    samples: list[Memory] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)

    @property
    def peak(self) -> Memory:
        """The largest of each figure."""
        return Memory(
            max((sample.resident for sample in self.samples), default=0),
            max((sample.own for sample in self.samples), default=0),
        )

    @property
    def last(self) -> Memory:
        """The newest sample."""
        return self.samples[-1] if self.samples else Memory(0, 0)


async def _nothing_kept() -> int:
    return 0


@asynccontextmanager
async def watching(
    leader: int, *, every_s: float = 1.0, kept: Callable[[], Awaitable[int]] = _nothing_kept
) -> AsyncIterator[Watch]:
    """Sample while the block runs, once at its start and once at its end.

    Args:
        leader: Of the process group.
        every_s: Seconds between samples.
        kept: Asks the process how many bytes its store holds.
    """
    watch = Watch()

    async def sample() -> None:
        held = await kept()
        watch.kept.append(held)
        watch.times.append(time.monotonic())
        watch.samples.append(memory(leader))

    async def repeat() -> None:
        while True:
            await asyncio.sleep(every_s)
            await sample()

    await sample()
    task = asyncio.create_task(repeat())
    try:
        yield watch
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await sample()


def busy_cores(seconds: float = 2.0) -> float:
    """Cores that are in use on the whole machine, this process included."""
    before, started = _busy(), time.monotonic()
    time.sleep(seconds)
    return (_busy() - before) / (time.monotonic() - started)


def _busy() -> float:
    fields = [int(value) for value in (PROC / "stat").read_text().splitlines()[0].split()[1:]]
    idle = fields[3] + fields[4]
    return (sum(fields[:8]) - idle) / os.sysconf("SC_CLK_TCK")

"""Start of an endpoint's container, or of a process in its place."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from steelyard_localcloud.options import Options

MODEL_FOLDER = "/opt/ml/model"


@dataclass(frozen=True)
class Launch:
    """The start of an endpoint's server.

    Attributes:
        command: Words of the command line.
        environment: The whole environment of that command.
        ping_path: Path that a health check gets.
        invocation_path: Path that an invocation is posted to.
        notes: Lines for the endpoint's log: what differs from AWS.
        pid_file: File in which the command writes the id of the container's first process; None without a container.
            Its server then listens in the container's own network, and a relay leads to it.
        afterwards: Command that removes whatever the first one left behind, however it ended; empty for none.
    """

    command: list[str]
    environment: dict[str, str]
    ping_path: str
    invocation_path: str
    notes: list[str]
    pid_file: Path | None = None
    afterwards: list[str] = field(default_factory=list)


def variables(given: dict[str, str], options: Options, notes: list[str]) -> dict[str, str]:
    """A server's variables: the model's, and over them the local cloud's, with threads that this machine has.

    An instance has more cores than this machine; more threads than cores would only spin.
    """
    merged = {**given, **options.environment}
    threads, cores = merged.get("STEELYARD_THREADS", "0"), _cores()
    if re.fullmatch(r"[0-9]{1,9}", threads) and int(threads) > cores:
        merged["STEELYARD_THREADS"] = str(cores)
        notes.append(f"STEELYARD_THREADS={threads} is cut to this machine's {cores} cores")
    return merged


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

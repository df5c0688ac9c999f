r"""Attack a server on loopback, and measure what it costs whom.

    python -m benchmarks.attack                              # all attacks; results in build/attack
    python -m benchmarks.attack empty-lists spaces           # some of them
    python -m benchmarks.attack starts                       # files and signals instead of requests
    python -m benchmarks.attack soak --minutes 30            # mixed attacks beside normal load
    python -m benchmarks.attack compare --before build/before   # the tables of two runs, side by side
    python -m benchmarks.attack --server 'env PYTHONPATH=/old/runtime:/old python -m old serve --model {model} \
        --port {port} --threads 1' --out build/before        # another checkout's server, the same attackers

Everything is bounded in number and in time: an attack takes ``--seconds`` and at most a minute more for a server that
does not start, answer or stop. The status is 1 when the server did not survive, or the soak's limits are not kept.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.attack import report, soak, starts
from benchmarks.attack.running import NAMES, attack
from benchmarks.attack.target import Plan
from benchmarks.peers import machine, supplies
from steelyard.models.catalogue import find
from steelyard.models.pull import pull

EMBEDDED_MODEL = "gemma-3-270m"
SERVER = f"{shlex.quote(sys.executable)} -m steelyard serve --model {{model}} --port {{port}} --threads 1"
GROUPS = {"attacks": list(NAMES), "starts": list(starts.STARTS)}
ALL = [name for group in GROUPS.values() for name in group]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for, and write the results."""
    given = _parser().parse_args(arguments)
    # So that the server is stopped then, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if given.what == ["compare"]:
        tables = report.compared(report.load(given.before), report.load(given.out))
        if given.page:
            report.insert(given.page, tables)
        print(tables)
        return 0
    model = given.model.absolute() if given.model else pull(find(EMBEDDED_MODEL))
    out = given.out.absolute()
    plan = Plan(command=given.server, model=model, logs=out / "logs", caller_header=given.caller_header)
    results = report.load(out)
    results["runs"].append(_about(given, model))
    if given.what == ["soak"]:
        results["soak"] = soak.soak(plan, minutes=given.minutes, seed=given.seed, say=say)
        print(report.write(out, results))
        return 0 if all(verdict["kept"] for verdict in results["soak"]["verdicts"]) else 1
    names = [name for word in given.what or list(GROUPS) for name in GROUPS.get(word, [word])]
    if unknown := sorted(set(names) - set(ALL)):
        raise SystemExit(f"unknown attacks: {', '.join(unknown)}; there are {', '.join(ALL)}")
    for name in names:
        say(name)
        if name in NAMES:
            results["attacks"][name] = attack(plan, name, quiet_s=given.quiet, seconds=given.seconds)
        else:
            results["starts"][name] = starts.start(plan, name)
        report.write(out, results)
    print(report.write(out, results))
    print(f"in {out}: attack.json, attack.md, logs/")
    return 0 if all(_survived(results["attacks"][name]) for name in names if name in NAMES) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.attack", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="*", help=f"attacks, starts, soak, compare, or some of {', '.join(ALL)}")
    parser.add_argument("--server", default=SERVER, help="the server's command, with {model} and {port}")
    parser.add_argument("--caller-header", default="X-Steelyard-Caller", help="the header that names a caller")
    parser.add_argument("--model", type=Path, help="a GGUF file (default: the embedded model)")
    parser.add_argument("--out", type=Path, default=Path("build/attack"), help="folder of the results")
    parser.add_argument("--before", type=Path, default=Path("build/before"), help="folder of the run to compare with")
    parser.add_argument("--page", type=Path, help="write them between the marks of this Markdown page, too")
    parser.add_argument("--quiet", type=float, default=4.0, help="seconds of each attack's quiet decisions")
    parser.add_argument("--seconds", type=float, default=10.0, help="seconds of each attack, at most 60")
    parser.add_argument("--minutes", type=float, default=30.0, help="of the soak")
    parser.add_argument("--seed", type=int, default=1, help="of the soak's order of attacks")
    return parser


def _about(given: argparse.Namespace, model: Path) -> dict[str, Any]:
    return {
        "command": shlex.join(["python", "-m", "benchmarks.attack", *sys.argv[1:]]),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine.facts(),
        "model": {"name": model.name, "sha256": supplies.sha256_of(model)},
        "server": given.server,
    }


def _survived(cell: dict[str, Any]) -> bool:
    return "failed" not in cell and bool(cell["server"]["alive"]) and cell["decisions"]["wrong"] == 0


def say(text: str) -> None:
    """Progress, with the time."""
    print(f"{datetime.now():%H:%M:%S} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

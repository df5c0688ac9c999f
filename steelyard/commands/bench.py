"""``steelyard bench``: measure this machine."""

from __future__ import annotations

import dataclasses
import math
import os
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from steelyard.benchmarking import profile
from steelyard.benchmarking.comparison import Comparison, Estimate, MeasureError
from steelyard.benchmarking.tuning import CONFIRMATION, ROUNDS, Findings, default_settings, stages, tune
from steelyard.benchmarking.workload import EngineSettings, Facts, Workbench
from steelyard.commands.app import App
from steelyard.commands.options import DEFAULT_MODEL, ModelName
from steelyard.models import storage
from steelyard.terminal import console
from steelyard_base.exit_codes import CommandError, ExitCode
from steelyard_runtime.engine import cores, model_files

app = App(help="Measure this machine.")

BUSY_SHARE = 0.25
"""Load per core above which a machine counts as busy."""


@app.callback()
def _bench() -> None:
    """Measure this machine."""


@app.command("tune")
def tune_command(
    *,
    model: ModelName = DEFAULT_MODEL,
    out: Annotated[
        Path | None, typer.Option("--out", help="Where the profile goes; without it, to standard output.")
    ] = None,
    gpu_layers: Annotated[int, typer.Option("--gpu-layers", min=-1, help="As for the server; 0 is the CPU.")] = 0,
    minutes: Annotated[
        float, typer.Option("--minutes", min=0.1, max=600, help="Longest search; what was found is then confirmed.")
    ] = 15.0,
    q8_cache: Annotated[
        bool,
        typer.Option("--q8-cache", help="Also try cells of 8 bits: less memory, and answers that differ a little."),
    ] = False,
    report: Annotated[
        Path | None, typer.Option("--report", help="Where all figures go; in the cache when not given.")
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start anew instead of continuing an interrupted search.")
    ] = False,
) -> None:
    """Find threads, batch size, flash attention (and KV type) for a model on this machine, and write a profile.

    The profile is a settings file for `steelyard serve --config`. It is written only when it is faster than the
    server's own choice beyond noise. Ctrl-C keeps the finished stages; run it again to continue.
    """
    path, files, sha256 = _model(model)
    if out is not None and not out.parent.is_dir():
        raise CommandError(f"the folder of {out} does not exist", code=ExitCode.USAGE)
    found = cores.find()
    _warn_if_busy(found)
    with Workbench(path, gpu_layers=gpu_layers) as bench:
        with console.err.status(f"loading {files.first.name}"):
            facts = _facts(bench)
        default = default_settings(found, trained_context=facts.trained_context)
        key = _key(sha256, facts, found, gpu_layers=gpu_layers, q8_cache=q8_cache)
        kept = report or storage.cache_folder() / "benchmarks" / f"tune-{sha256[:16]}.json"
        findings = Findings(default=default, best=default) if fresh else _earlier(kept, key, default)
        plan = stages(found, trained_context=facts.trained_context, q8_cache=q8_cache)
        _search(bench, findings, plan, minutes=minutes, keep=lambda: _keep(kept, findings, key, {}))
        extra = _checks(bench, findings)
    _keep(kept, findings, key, extra)
    console.note(f"all figures: {kept}")
    if extra and not extra["exact"] and (extra["default_exact"] or "exact_note" in extra):
        console.note(f"{findings.best} is faster, but it was not shown that its answers are exact; no profile")
        return
    _offer(findings, out, notes=_notes(files, sha256, facts, found, extra))


def _model(model: str) -> tuple[Path, model_files.ModelFiles, str]:
    path, _ = storage.resolve(model)
    try:
        files = model_files.resolve(path)
        with console.err.status(f"hashing {files.first.name}"):
            return files.first, files, model_files.sha256(files)
    except model_files.ModelFileError as error:
        raise CommandError(str(error), code=ExitCode.MODEL) from error


def _warn_if_busy(found: cores.Cores) -> None:
    """A busy machine has other best settings than a quiet one."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load > BUSY_SHARE * found.physical:
        console.note(
            f"other work is running here (load {load:.1f} on {found.physical} cores); "
            "what is measured now is this busy machine, and it takes longer"
        )


def _facts(bench: Workbench) -> Facts:
    try:
        return bench.facts()
    except MeasureError as error:
        raise CommandError(f"the model cannot be measured: {error}", code=ExitCode.MODEL) from error


def _key(sha256: str, facts: Facts, found: cores.Cores, *, gpu_layers: int, q8_cache: bool) -> dict[str, Any]:
    """Return what the figures depend on: a change of any of it starts the search afresh."""
    return {
        "model_sha256": sha256,
        "llama_cpp": facts.llama_cpp,
        "machine": platform.machine(),
        "physical_cores": found.physical,
        "usable_cores": found.usable,
        "gpu_layers": gpu_layers,
        "q8_cache": q8_cache,
    }


def _earlier(kept: Path, key: dict[str, Any], default: EngineSettings) -> Findings:
    try:
        text = kept.read_text(encoding="utf-8")
    except OSError:
        return Findings(default=default, best=default)
    findings = profile.from_json(text, key=key, default=default)
    if CONFIRMATION in findings.comparisons or not findings.comparisons:
        # A finished search is measured again: whoever asks twice wants to know.
        return Findings(default=default, best=default)
    console.note(f"going on from an interrupted search: {', '.join(findings.comparisons)} done")
    return findings


def _search(bench: Workbench, findings: Findings, plan: Any, *, minutes: float, keep: Any) -> None:
    ends = time.monotonic() + 60 * minutes
    with _bar() as on_round:
        try:
            for name in tune(bench, findings, plan, out_of_time=lambda: time.monotonic() > ends, on_round=on_round):
                keep()
                _told_stage(name, findings)
        except MeasureError as error:
            raise CommandError(f"the server's own settings cannot be measured: {error}") from error
        except KeyboardInterrupt:
            keep()
            console.note(f"finished: {', '.join(findings.comparisons) or 'nothing yet'}; run it again to continue")
            raise
    for name, why in findings.failed.items():
        console.note(f"{name} could not be measured: {why}")


@contextmanager
def _bar() -> Iterator[Any]:
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[now]}"), TimeElapsedColumn())
    with Progress(*columns, console=console.err, disable=not console.err.is_terminal) as progress:
        tasks: dict[str, Any] = {}

        def on_round(name: str, number: int, estimates: dict[EngineSettings, Estimate]) -> None:
            if name not in tasks:
                tasks[name] = progress.add_task(name, total=ROUNDS, now="")
            best = min(estimates.values(), key=lambda found: found.ratio, default=None)
            now = f"best so far {100 * (1 - best.ratio):+.1f} %" if best else ""
            progress.update(tasks[name], completed=number, now=now)

        yield on_round


def _told_stage(name: str, findings: Findings) -> None:
    """One finished stage as a table on standard error."""
    found = findings.comparisons[name]
    table = Table(title=Text(f"{name}: compared with {found.incumbent}"), title_justify="left", show_edge=False)
    for heading in ("settings", "time", "99 % interval", "rounds", ""):
        table.add_column(heading, overflow="fold")
    for settings, estimate in sorted(found.estimates.items(), key=lambda pair: pair[1].ratio):
        span = f"{estimate.low:.3f} to {estimate.high:.3f}" if math.isfinite(estimate.low) else "too few rounds"
        table.add_row(
            settings.beside(found.incumbent),
            f"{estimate.ratio:.3f}",
            span,
            str(estimate.rounds),
            _mark(settings, found),
        )
    for settings, why in found.failures.items():
        table.add_row(settings.beside(found.incumbent), "", "", "", why)
    console.err.print(table)


def _mark(settings: EngineSettings, found: Comparison[EngineSettings]) -> str:
    if settings == found.winner:
        return "taken"
    estimate = found.estimates[settings]
    if estimate.better:
        return "beaten"
    return "slower" if estimate.low > 1 else "no gain beyond noise"


def _checks(bench: Workbench, findings: Findings) -> dict[str, Any]:
    """Check what a change of settings does to the answers: whether they stay exact, and how far the logits move."""
    if findings.gain is None:
        return {}
    extra: dict[str, Any] = {}
    with console.err.status("checking that answers stay exact"):
        for name, settings in (("exact", findings.best), ("default_exact", findings.default)):
            try:
                extra[name] = bench.exact(settings)
            except MeasureError as error:
                extra |= {name: False, f"{name}_note": str(error)}
        try:
            extra["difference_from_default"] = dataclasses.asdict(bench.difference(findings.best, findings.default))
        except MeasureError as error:
            extra["difference_from_default"] = {"failed": str(error)}
    return extra


def _notes(
    files: model_files.ModelFiles, sha256: str, facts: Facts, found: cores.Cores, extra: dict[str, Any]
) -> dict[str, str]:
    notes = {
        "model": f"{files.first.name}, {facts.description}, sha256 {sha256}",
        "machine": f"{platform.machine()}, {found.physical} physical cores, {found.usable} usable",
        "llama.cpp": facts.llama_cpp,
    }
    if extra:
        moved = extra["difference_from_default"]
        notes["exact"] = "yes, to the bit" if extra["exact"] else "no, like the default settings"
        notes["largest difference of a logit from the default settings"] = (
            f"{moved['largest']:.3g}, {moved['changed']} of {moved['prompts']} likeliest tokens changed"
            if "largest" in moved
            else f"not measured: {moved['failed']}"
        )
    return notes


def _offer(findings: Findings, out: Path | None, *, notes: dict[str, str]) -> None:
    """Write the profile, if there is a gain to speak of."""
    gain = findings.gain
    if gain is None:
        console.note(f"nothing was faster than the server's own choice beyond noise ({findings.default}); no profile")
        return
    text = profile.profile(findings, notes=notes)
    if out is None:
        sys.stdout.write(text)
    else:
        try:
            storage.write_atomically(out, text)
        except OSError as error:
            raise CommandError(f"{out} cannot be written: {error.strerror or error}") from error
        console.note(f"{out}: {profile.in_words(gain)}; use it with: steelyard serve --config {out}")


def _keep(kept: Path, findings: Findings, key: dict[str, Any], extra: dict[str, Any]) -> None:
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        storage.write_atomically(kept, profile.to_json(findings, key=key, facts=extra))
    except OSError as error:
        raise CommandError(f"{kept} cannot be written: {error.strerror or error}") from error

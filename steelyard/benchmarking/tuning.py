"""The search for a machine's best settings: one setting after another, each change proven before it is taken.

Stages go from the setting that matters most to the one that matters least. The last one compares what was found with
what the server does without a profile; only that comparison decides whether a profile is offered.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from steelyard.benchmarking.comparison import Comparison, Estimate, MeasureError, Seconds, compare
from steelyard.benchmarking.workload import EngineSettings, Workload
from steelyard_runtime.engine.cores import Cores
from steelyard_runtime.settings import Settings

BATCH_TOKENS = (128, 256, 512, 1024)
ROUNDS = 32
WEIGHTS: Mapping[Workload, float] = {"decision": 0.7, "chat": 0.3}
"""Decisions are what the server is for; a chat's tokens count too."""
LONG_WEIGHTS: Mapping[Workload, float] = {"long": 1.0}
CONFIRMATION = "confirmation"

OnRound = Callable[[str, int, dict[EngineSettings, Estimate]], None]


class Bench(Protocol):
    """Measures settings; ``workload.Workbench`` does."""

    def measure(self, settings: EngineSettings, workloads: list[Workload]) -> Seconds:
        """Seconds of each workload."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One setting's alternatives to what the incumbent has, and the workloads that it matters to."""

    name: str
    challengers: tuple[EngineSettings, ...]
    weights: Mapping[Workload, float] = field(default_factory=lambda: WEIGHTS)


@dataclass(slots=True, kw_only=True)
class Findings:
    """Findings so far; kept when the search is interrupted.

    Attributes:
        default: What the server does without a profile.
        best: The best settings that were proven.
        comparisons: Of the finished stages, by name.
        failed: Why a stage could not be measured at all, by name.
    """

    default: EngineSettings
    best: EngineSettings
    comparisons: dict[str, Comparison[EngineSettings]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def gain(self) -> Estimate | None:
        """The proven gain of ``best`` over ``default``; None without a finished confirmation, or without a gain."""
        confirmed = self.comparisons.get(CONFIRMATION)
        found = confirmed.estimates.get(self.best) if confirmed else None
        return found if found is not None and found.better else None


def default_settings(cores: Cores, *, trained_context: int) -> EngineSettings:
    """Return the settings that the server would take on this machine."""
    defaults = {name: info.default for name, info in Settings.model_fields.items()}
    return EngineSettings(
        threads=cores.threads,
        batch_tokens=min(defaults["batch_tokens"], trained_context),
        flash_attention=defaults["flash_attention"],
        cache_type=defaults["cache_type"],
    )


def thread_counts(cores: Cores) -> list[int]:
    """Numbers of threads worth trying, never more than the cores that are really there and allowed.

    Examples:
        >>> thread_counts(Cores(logical=16, physical=8, fast=8, quota=float("inf")))
        [8, 7, 6, 4]
        >>> thread_counts(Cores(logical=2, physical=2, fast=2, quota=float("inf")))
        [2, 1]
    """
    limit = cores.usable
    # Slower cores are tried too where there are some: whether they help is a matter of the machine.
    whole = max(limit, min(cores.physical, int(min(cores.quota, cores.physical))))
    wanted = (whole, limit, limit - 1, limit * 3 // 4, limit // 2)
    return sorted({count for count in wanted if count >= 1}, reverse=True)


def stages(
    cores: Cores, *, trained_context: int, q8_cache: bool
) -> list[tuple[str, Callable[[EngineSettings], Stage]]]:
    """The stages in order; each is made for the incumbent that it finds."""

    def threads(now: EngineSettings) -> Stage:
        return _stage("threads", now, [{"threads": count} for count in thread_counts(cores)])

    def batch(now: EngineSettings) -> Stage:
        sizes = [{"batch_tokens": size} for size in BATCH_TOKENS if size <= trained_context]
        return dataclasses.replace(_stage("batch_tokens", now, sizes), weights=LONG_WEIGHTS)

    def flash(now: EngineSettings) -> Stage:
        return _stage("flash_attention", now, [{"flash_attention": value} for value in ("on", "off")])

    def cache(now: EngineSettings) -> Stage:
        return _stage("cache_type", now, [{"cache_type": "q8_0"}])

    made: list[tuple[str, Callable[[EngineSettings], Stage]]] = [
        ("threads", threads),
        ("flash_attention", flash),
        ("batch_tokens", batch),
    ]
    return [*made, ("cache_type", cache)] if q8_cache else made


def _stage(name: str, now: EngineSettings, changes: Sequence[dict[str, Any]]) -> Stage:
    made = [dataclasses.replace(now, **change) for change in changes]
    return Stage(name=name, challengers=tuple(settings for settings in dict.fromkeys(made) if settings != now))


def tune(
    bench: Bench,
    findings: Findings,
    plan: Sequence[tuple[str, Callable[[EngineSettings], Stage]]],
    *,
    out_of_time: Callable[[], bool],
    on_round: OnRound = lambda _name, _round, _estimates: None,
) -> Iterator[str]:
    """Work through the stages that ``findings`` lacks, yielding each one's name when its finding is there.

    Stopping in between loses the running stage only. Once time is up the stages left are passed over, but what was
    found is still confirmed.

    Raises:
        MeasureError: Not even the default settings can be measured.
    """
    for name, make in plan:
        if name in findings.comparisons or out_of_time():
            continue
        _compare(bench, findings, make(findings.best), rounds=ROUNDS, out_of_time=out_of_time, on_round=on_round)
        yield name
    if findings.best != findings.default and CONFIRMATION not in findings.comparisons:
        # In the workloads of every setting that changed, so that a gain in one is weighed against a loss in another.
        weights = dict(WEIGHTS)
        if findings.best.batch_tokens != findings.default.batch_tokens:
            weights |= {"long": 0.5}
        confirmation = Stage(name=CONFIRMATION, challengers=(findings.best,), weights=weights)
        _compare(
            bench,
            findings,
            confirmation,
            incumbent=findings.default,
            rounds=ROUNDS,
            out_of_time=lambda: False,
            on_round=on_round,
        )
        yield CONFIRMATION


def _compare(
    bench: Bench,
    findings: Findings,
    stage: Stage,
    *,
    rounds: int,
    out_of_time: Callable[[], bool],
    on_round: OnRound,
    incumbent: EngineSettings | None = None,
) -> None:
    workloads = list(stage.weights)
    weights: dict[str, float] = {str(name): weight for name, weight in stage.weights.items()}
    try:
        found = compare(
            incumbent or findings.best,
            stage.challengers,
            measure=lambda settings: bench.measure(settings, workloads),
            weights=weights,
            rounds=rounds,
            out_of_time=out_of_time,
            on_round=lambda number, estimates: on_round(stage.name, number, estimates),
        )
    except MeasureError as error:
        if not findings.comparisons:
            raise
        findings.failed[stage.name] = str(error)
        return
    findings.comparisons[stage.name] = found
    if stage.name != CONFIRMATION:
        findings.best = found.winner

"""Results of a search: a settings file for the server, and a report of every comparison."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from steelyard.benchmarking.comparison import Comparison, Estimate
from steelyard.benchmarking.tuning import Findings
from steelyard.benchmarking.workload import EngineSettings

FORMAT = 1


def changes(findings: Findings) -> dict[str, int | str]:
    """The settings of ``best`` that differ from the server's own choice; the others stay its choice elsewhere too."""
    default, best = dataclasses.asdict(findings.default), dataclasses.asdict(findings.best)
    return {name: value for name, value in best.items() if value != default[name]}


def profile(findings: Findings, *, notes: Mapping[str, str]) -> str:
    """The settings file, as TOML, with where it comes from in comments.

    Args:
        findings: With a proven gain.
        notes: Names and values for the comment, such as model and machine.

    Raises:
        ValueError: Nothing was proven to be faster.
    """
    gain = findings.gain
    if gain is None:
        raise ValueError("no settings were proven to be faster, so there is no profile")
    lines = ["# Made by `steelyard bench tune`. Use it with: steelyard serve --config THIS_FILE"]
    lines += [f"# {name}: {' '.join(value.split())}" for name, value in notes.items()]
    lines.append(f"# gain: {in_words(gain)}")
    lines += [f"{name} = {json.dumps(value)}" for name, value in changes(findings).items()]
    return "\n".join(lines) + "\n"


def in_words(found: Estimate) -> str:
    """An estimate for people, such as ``12.0 % less time (8.1 to 15.3, 16 rounds)``."""
    saved = [100 * (1 - value) for value in (found.ratio, found.high, found.low)]
    if found.low == -float("inf"):
        return f"{saved[0]:.1f} % less time (too few rounds to be sure, {found.rounds})"
    return f"{saved[0]:.1f} % less time ({saved[1]:.1f} to {saved[2]:.1f}, {found.rounds} rounds)"


def to_json(findings: Findings, *, key: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    """The report. ``key`` is what its figures are valid for; ``facts`` are whatever else a reader wants to know."""
    document = {
        "format": FORMAT,
        "key": dict(key),
        "default": dataclasses.asdict(findings.default),
        "best": dataclasses.asdict(findings.best),
        "proven": findings.gain is not None,
        "comparisons": {name: _comparison(found) for name, found in findings.comparisons.items()},
        "failed": findings.failed,
        "facts": dict(facts),
    }
    return json.dumps(document, indent=2) + "\n"


def from_json(text: str, *, key: Mapping[str, Any], default: EngineSettings) -> Findings:
    """The findings of an earlier run; none when they are of another model, machine or version, or not readable."""
    fresh = Findings(default=default, best=default)
    try:
        document = json.loads(text)
        if document["format"] != FORMAT or document["key"] != dict(key):
            return fresh
        if EngineSettings(**document["default"]) != default:
            return fresh
        return Findings(
            default=default,
            best=EngineSettings(**document["best"]),
            comparisons={name: _read(found) for name, found in document["comparisons"].items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return fresh


def _comparison(found: Comparison[EngineSettings]) -> dict[str, Any]:
    return {
        "incumbent": dataclasses.asdict(found.incumbent),
        "winner": dataclasses.asdict(found.winner),
        "estimates": [
            {"settings": dataclasses.asdict(settings), **dataclasses.asdict(estimate)}
            for settings, estimate in found.estimates.items()
        ],
        "failures": [
            {"settings": dataclasses.asdict(settings), "reason": why} for settings, why in found.failures.items()
        ],
    }


def _read(found: dict[str, Any]) -> Comparison[EngineSettings]:
    estimates = {}
    for entry in found["estimates"]:
        settings = EngineSettings(**entry.pop("settings"))
        estimates[settings] = Estimate(**entry)
    return Comparison(
        incumbent=EngineSettings(**found["incumbent"]),
        winner=EngineSettings(**found["winner"]),
        estimates=estimates,
        failures={EngineSettings(**entry["settings"]): entry["reason"] for entry in found["failures"]},
    )

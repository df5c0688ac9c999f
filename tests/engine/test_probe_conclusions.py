"""What the engine makes of the probe's findings: exactness is worth more than a saved prefix."""

from __future__ import annotations

import math

from switchyard_runtime.engine.probe import Stage, conclude


def stage(name: str, noise: float) -> Stage:
    return Stage(stage=name, memory="hybrid", noise=noise, comparisons=8)


def test_shared_prefixes_are_used_when_they_change_nothing() -> None:
    probe = conclude({"recompute": stage("recompute", 0.0), "share": stage("share", 0.0)}, memory="hybrid", died="")
    assert (probe.prefix_sharing, probe.exact, probe.noise_floor, probe.comparisons) == (True, True, 0.0, 16)


def test_shared_prefixes_that_change_logits_are_not_used() -> None:
    probe = conclude({"recompute": stage("recompute", 0.0), "share": stage("share", 0.25)}, memory="hybrid", died="")
    assert (probe.prefix_sharing, probe.exact, probe.noise_floor) == (False, True, 0.0)
    assert "0.25" in probe.note


def test_noise_without_sharing_is_stated() -> None:
    probe = conclude({"recompute": stage("recompute", 0.5), "share": stage("share", 0.7)}, memory="dense", died="")
    assert (probe.prefix_sharing, probe.exact, probe.noise_floor) == (False, False, 0.5)


def test_a_child_that_died_while_sharing_still_counts() -> None:
    probe = conclude({"recompute": stage("recompute", 0.0)}, memory="recurrent", died="exit status -6")
    assert (probe.prefix_sharing, probe.exact, probe.comparisons) == (False, True, 8)
    assert "exit status -6" in probe.note


def test_a_child_that_said_nothing_promises_nothing() -> None:
    probe = conclude({}, memory="dense", died="no answer within 600 s")
    assert (probe.prefix_sharing, probe.exact, probe.comparisons) == (False, False, 0)
    assert math.isnan(probe.noise_floor)

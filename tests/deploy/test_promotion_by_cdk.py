"""A promotion and a rollback by the CDK's own command line; an alarm takes the promotion back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from alarms import rollback_alarm_goes_off
from test_promotion import BASE, ENVIRONMENTS, Clouds, Templates
from world import Assembled, World

from steelyard import cli
from steelyard.cdk.program import Cdk
from steelyard.commands import promotion
from steelyard.deploy.local_cloud import reached
from steelyard.environments.files import parse_environment
from steelyard.releases.manifest import load_release
from steelyard.releases.record import newest_events
from steelyard_base.exit_codes import ExitCode

STACK = "Steelyard-target-Endpoint-decision"
PULLED = {"images": {"account": "000000000000", "repository": "steelyard-old"}}


@pytest.fixture
def clouds(bootstrapped: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Clouds]:
    """``old`` has the first release, ``new`` the second, and ``target`` got the first from ``old``."""
    for name, more in (("old", {}), ("new", PULLED), ("target", PULLED)):
        monkeypatch.setitem(ENVIRONMENTS, name, parse_environment({**BASE, **more}, name=name, source="the test"))
    monkeypatch.setattr(promotion, "load_environment", ENVIRONMENTS.__getitem__)
    with reached(bootstrapped.cloud.environment()):
        clouds = Clouds(bootstrapped.cloud, tmp_path, bootstrapped=True)
        clouds.deploy("old", "first")
        clouds.deploy("new", "second")
        monkeypatch.setattr(promotion, "Cdk", lambda **given: Templates(**given, assembly=tmp_path / "cdk.out"))
        assert promote("old") == 0

        def program(*, environment: str, release: str) -> Cdk:
            return Assembled(
                environment=environment,
                release=release,
                assembly=tmp_path / "cdk.out",
                wanted=ENVIRONMENTS[environment],
                content=load_release(release),
            )

        monkeypatch.setattr(promotion, "Cdk", program)
        yield clouds


def promote(origin: str) -> int:
    return cli.run(["release", "promote", "--from", origin, "--to", "target", "--yes", "--no-check", "--no-ask"])


def test_an_alarm_takes_a_promotion_back_and_a_rollback_follows(
    clouds: Clouds, capfd: pytest.CaptureFixture[str]
) -> None:
    with rollback_alarm_goes_off(clouds.cloud, STACK) as alarms:
        assert promote("new") == ExitCode.FAILED
    said = capfd.readouterr().err
    assert "cdk deploy failed with exit code 1" in said
    assert alarms
    told = "steelyard-target-decision: "
    (sentence,) = [line for line in said.splitlines() if line.startswith(told)]
    assert any(name in sentence for name in alarms)
    assert "what ran before goes on" in said
    assert clouds.serves("target") == "first"
    (event, *_) = newest_events(clouds.aws, ENVIRONMENTS["target"], bucket=clouds.place("target").bucket(), most=1)
    assert (event.action, event.release_id, event.outcome) == ("promote", "second", "failed")
    assert event.fault is not None
    assert any(name in event.fault for name in alarms)
    assert cli.run(["release", "rollback", "--env", "target", "--yes", "--no-ask"]) == 0
    assert clouds.serves("target") == "first"
    (event, *_) = newest_events(clouds.aws, ENVIRONMENTS["target"], bucket=clouds.place("target").bucket(), most=1)
    assert (event.action, event.release_id, event.outcome) == ("rollback", "first", "done")

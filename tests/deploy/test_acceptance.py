"""``steelyard acceptance``: what it asks, that it cleans up whatever happens, and what it reports."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from world import Assembled, Wanted, World, digest

from steelyard.aws.session import Aws
from steelyard.cdk.program import Cdk
from steelyard.commands.acceptance import cost_sentence
from steelyard.deploy.acceptance import STEPS, Result, Skipped, Step, Trial, run, trial_of, write_report
from steelyard.deploy.endpoints import stacks_of
from steelyard.deploy.local_cloud import reached
from steelyard.environments.files import environment_names, load_environment, write_environment
from steelyard.environments.schema import Environment
from steelyard.releases.manifest import ReleasedModel, parse_release
from steelyard_base.exit_codes import CommandError


@dataclass(frozen=True)
class FromWorld:
    """The tiny model, and placeholders for images."""

    world: World

    def provide_model(self, aws: Aws, model: ReleasedModel, *, bucket: str) -> None:
        assert model.key == self.world.wanted.model.key
        self.world.publish(bucket, self.world.wanted.model)

    def provide_image(self, digest: str, *, repository: str) -> None:
        self.world.cloud.register_image(repository, digest)


SCALED = {
    "instance_type": "ml.c7i.xlarge",
    "scaling": {"min_instances": 1, "max_instances": 2, "target_concurrency": 4},
}


def of_decision(wanted: Wanted) -> Environment:
    """The environment of the other tests with its decision endpoint only, which scales."""
    environment = replace(wanted, instances=SCALED).environment()
    return environment.model_copy(update={"endpoints": {"decision": environment.endpoints["decision"]}})


@pytest.mark.timeout(900)  # beside other work; eight deployments of AWS's own command line take most of it
def test_every_step_and_nothing_left(bootstrapped: World, tmp_path: Path) -> None:
    world = bootstrapped
    release = parse_release(Wanted(world.wanted.model, digest()).release_data(), source="it")
    before, said = world.everything(), []
    with reached(world.cloud.environment()):
        copy = trial_of(of_decision(world.wanted), account="000000000000", sample=True)

        def assembled(wanted: Environment) -> Cdk:
            return Assembled(
                environment=wanted.name, release="it", assembly=tmp_path / "cdk.out", wanted=wanted, content=release
            )

        trial = Trial(
            aws=Aws("us-east-1"),
            environment=copy,
            release=release,
            cdk=assembled,
            supplies=FromWorld(world),
            say=said.append,
            other_type="ml.c6i.xlarge",
        )
        results = run(trial, STEPS)
    found = {each.step: each for each in results}
    assert list(found) == [*(each.name for each in STEPS), "remove"]
    assert [each for each in results if each.state != "passed"] == []
    assert [each for each in results if each.differs] == []
    assert "The account-level service limit 'ml.c7i.xlarge for endpoint usage' is 20" in found["quota"].answered
    assert "did not pass the ping health check" in found["broken-update"].answered
    assert "must be deregistered as scalable targets" in found["other-types"].answered
    assert [each for each in said if "first a deployment without its scaling" in each]
    assert world.everything() == before
    data, page = write_report(results, tmp_path / "report", where="the test")
    assert [each["step"] for each in json.loads(data.read_text())] == [each.step for each in results]
    assert "| quota | passed |" in page.read_text()
    assert page.read_text().endswith("\n\nNothing.\n")


def fake(removed: list[str], monkeypatch: pytest.MonkeyPatch) -> Trial:
    """A trial whose removal is counted, and reaches nothing."""
    monkeypatch.setattr("steelyard.deploy.acceptance.remove", lambda _: removed.append("removed") or "nothing is left")
    nothing: Any = None
    return Trial(aws=nothing, environment=nothing, release=nothing, cdk=nothing, supplies=nothing, say=lambda _: None)


def step(name: str, work: Callable[[Trial], str], rehearsed: str | None = None) -> Step:
    return Step(name=name, question="?", work=work, rehearsed=rehearsed)


def refusing(_: Trial) -> str:
    raise CommandError("no", hint="do this")


def skipping(_: Trial) -> str:
    raise Skipped("there is none")


def breaking(_: Trial) -> str:
    nothing: dict[str, str] = {}
    return nothing["EndpointConfigName"]


def test_what_differs_fails_and_is_skipped_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    removed: list[str] = []
    steps = [
        step("a", lambda _: "as here", "^as here$"),
        step("b", lambda _: "otherwise", "^as here$"),
        step("c", refusing, "^as here$"),
        step("d", skipping),
        step("e", breaking),
    ]
    results = run(fake(removed, monkeypatch), steps)
    assert [(each.step, each.state, each.answered, each.differs) for each in results] == [
        ("a", "passed", "as here", False),
        ("b", "passed", "otherwise", True),
        ("c", "failed", "no do this", True),
        ("d", "skipped", "there is none", False),
        ("e", "failed", "KeyError: 'EndpointConfigName'", True),
        ("remove", "passed", "nothing is left", False),
    ]
    assert removed == ["removed"]


@pytest.mark.parametrize(("work", "said"), [(refusing, "no do this"), (breaking, "KeyError: 'EndpointConfigName'")])
def test_without_a_first_deployment_there_is_nothing_to_ask(
    work: Callable[[Trial], str], said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    removed: list[str] = []
    results = run(fake(removed, monkeypatch), [step("deploy", work), step("update", lambda _: "never")])
    assert [each.step for each in results] == ["deploy", "remove"]
    assert removed == ["removed"]
    _, page = write_report(results, tmp_path, where="it")
    assert page.read_text().endswith(f"## What the local cloud would have answered otherwise\n\n- deploy: {said}\n")


def test_an_interruption_removes_the_trial_too(monkeypatch: pytest.MonkeyPatch) -> None:
    removed: list[str] = []

    def interrupted(_: Trial) -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(fake(removed, monkeypatch), [step("deploy", interrupted)])
    assert removed == ["removed"]


def canary(percent: int) -> dict[str, Any]:
    size = {"Type": "CAPACITY_PERCENT", "Value": percent}
    return {"BlueGreenUpdatePolicy": {"TrafficRoutingConfiguration": {"Type": "CANARY", "CanarySize": size}}}


ROLLING = {"RollingUpdatePolicy": {"MaximumBatchSize": {"Type": "CAPACITY_PERCENT", "Value": 50}}}
AT_ONCE = {"BlueGreenUpdatePolicy": {"TrafficRoutingConfiguration": {"Type": "ALL_AT_ONCE"}}}
OF_PROD = {"decision-cpu": canary(10), "decision-gpu": ROLLING, "chat": AT_ONCE}


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        ({}, None),
        ({"decision-cpu": canary(50)}, "decision-cpu is declared with CANARY 10, and SageMaker keeps CANARY 50: "),
        ({"decision-gpu": AT_ONCE}, "decision-gpu is declared with ROLLING 50, and SageMaker keeps ALL_AT_ONCE: "),
        ({"chat": {}}, "chat is declared with ALL_AT_ONCE, and SageMaker keeps no policy: "),
    ],
)
def test_the_policies_that_are_kept_are_those_of_the_environment(
    kept: dict[str, Any], said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    described = {name: {"LastDeploymentConfig": each} for name, each in (OF_PROD | kept).items()}
    monkeypatch.setattr(Trial, "described", lambda _, name: described[name])
    (policies,) = [each for each in STEPS if each.name == "policies"]
    trial = replace(fake([], monkeypatch), environment=load_environment("prod"))
    found = run(trial, [policies])[0]
    assert found.state == ("passed" if said is None else "failed")
    assert found.answered.startswith(said or "{")


@pytest.mark.parametrize("name", ["dev", "prod"])
def test_the_other_network_is_one_that_the_environment_has_not(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    environment = load_environment(name)
    deployed: list[Environment] = []
    removed: list[str] = []
    monkeypatch.setattr(Trial, "deploy", lambda _, wanted: deployed.append(wanted))
    monkeypatch.setattr("steelyard.deploy.acceptance.stacks_of", lambda *_: {})
    (network,) = [each for each in STEPS if each.name == "vpc"]
    trial = replace(fake(removed, monkeypatch), environment=trial_of(environment, account="1" * 12, sample=False))
    assert run(trial, [network])[0].state == "passed"
    assert removed == ["removed", "removed"]  # it, and the trial
    (copy,) = deployed
    assert (copy.network.kind == "none") is (environment.network.kind != "none")
    assert load_environment(str(write_environment(copy, tmp_path))) == copy


@pytest.mark.parametrize("name", environment_names())
def test_a_trial_shares_nothing_but_the_images(name: str, tmp_path: Path) -> None:
    environment = load_environment(name)
    copy = trial_of(environment, account="111122223333", sample=False)
    assert copy.stack_name("Artifacts") == f"Steelyard-{name}-trial-Artifacts"
    assert (copy.removal_policy, copy.alarms.emails, copy.budget) == ("destroy", (), None)
    assert copy.artifacts.bucket_name is None
    assert copy.images.repository == environment.repository_name
    assert copy.images.account in ("111122223333", environment.images.account)
    assert copy.endpoints == environment.endpoints
    # The app reads it from a file.
    assert load_environment(str(write_environment(copy, tmp_path))) == copy


def test_the_cost_is_that_of_both_fleets_at_full_scale() -> None:
    dev = trial_of(load_environment("dev"), account="111122223333", sample=False)
    prices = {"ml.c7i.xlarge": Decimal("0.25")}
    assert cost_sentence(dev, prices) == "it may take 3 hours, and cost 3.00 USD for instances at the most"
    assert "no price of ml.c7i.xlarge is known" in cost_sentence(dev, {})


def test_the_command_names_what_is_wrong(bootstrapped: World) -> None:
    unknown = bootstrapped.steelyard("acceptance", "--local", "--only", "everything")
    assert unknown.returncode == 2
    assert "there is no step 'everything'; there are deploy, policies" in unknown.stderr
    unnamed = bootstrapped.steelyard("acceptance")
    assert unnamed.returncode == 2
    assert "no release is named, and the sample is for the local cloud only" in unnamed.stderr


def test_a_report_tells_what_belongs_into_the_local_cloud(tmp_path: Path) -> None:
    result = Result(step="a", question="?", state="passed", seconds=1.5, answered="x | y\nz", differs=True)
    _, page = write_report([result, replace(result, step="b", differs=False)], tmp_path, where="it")
    assert "| a | passed | 1.5 | x \\| y z |" in page.read_text()
    assert page.read_text().endswith("otherwise\n\n- a: x \\| y z\n")


def test_no_stack_of_a_trial_is_one_of_the_environment(bootstrapped: World) -> None:
    with reached(bootstrapped.cloud.environment()):
        trial = trial_of(bootstrapped.wanted.environment(), account="000000000000", sample=True)
        assert stacks_of(Aws("us-east-1"), trial) == {}

"""A first deployment that fails where what is stored is retained: it is repeated, and nothing is in the way."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from world import PROCESSES, Wanted, World

from steelyard.aws.session import Aws
from steelyard.deploy import deployment
from steelyard.environments.files import parse_environment
from steelyard.environments.schema import Environment
from steelyard_base.exit_codes import CommandError
from steelyard_localcloud.cloud import LocalCloud

STACK, ENDPOINT = "Steelyard-dev-Endpoint-decision", "steelyard-dev-decision"


@dataclass(frozen=True)
class Kept(Wanted):
    """An environment that is retained, with one endpoint."""

    def environment(self) -> Environment:
        data = super().environment().model_dump(mode="json", exclude={"name"})
        data["removal_policy"] = "retain"
        del data["endpoints"]["chat"]
        return parse_environment(data, name="dev", source="the test")


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A cloud of its own: what is retained stays in it."""
    with LocalCloud(tmp_path / "cloud", environment=PROCESSES, longest_wait_s=0.2, longest_startup_s=15.0) as cloud:
        for name, value in cloud.environment().items():
            monkeypatch.setenv(name, value)
        (tmp_path / "world").mkdir()
        world = World(cloud, tmp_path / "world")
        done = world.cdk("bootstrap", "aws://000000000000/us-east-1")
        assert done.code == 0, done.said
        yield world


def deploy(world: World, wanted: Wanted, *stacks: str) -> Any:
    assembly = world.synth(wanted)
    return world.cdk("deploy", *(stacks or ["--all"]), "--require-approval", "never", "--app", str(assembly))


def test_a_first_deployment_that_failed_is_repeated(kept: World) -> None:
    wanted = Kept(kept.model("llama"), "sha256:" + "0" * 64)
    assert deploy(kept, wanted, "Steelyard-dev-Artifacts", "Steelyard-dev-Build").code == 0
    broken = kept.cloud.register_image("steelyard-dev", command=[sys.executable, "-c", "raise SystemExit(3)"])
    kept.provide(Kept(wanted.model, broken))
    failed = deploy(kept, Kept(wanted.model, broken))
    assert failed.code != 0
    assert "did not pass the ping health check" in failed.said
    assert kept.status(STACK) == "ROLLBACK_COMPLETE"
    # Nothing with a name is left to collide with.
    groups = kept.client("logs").describe_log_groups(logGroupNamePrefix="/aws/sagemaker/Endpoints/")["logGroups"]
    assert groups == []

    mended = Kept(wanted.model, kept.cloud.register_image("steelyard-dev"))
    refused = deploy(kept, mended)
    assert "TerminationProtection is enabled" in refused.said
    said: list[str] = []
    deployment.unprotect_failed(Aws("us-east-1"), mended.environment(), said.append)
    assert said == [f"the first deployment of {STACK} failed (ROLLBACK_COMPLETE); it is deployed anew"]
    done = deploy(kept, mended)
    assert done.code == 0, done.said
    assert sum(kept.ask()["result"]["probabilities"]) == pytest.approx(1)
    # Alive, it is protected again, and nothing more is lifted.
    deployment.unprotect_failed(Aws("us-east-1"), mended.environment(), said.append)
    assert len(said) == 1
    (stack,) = kept.client("cloudformation").describe_stacks(StackName=STACK)["Stacks"]
    assert stack["EnableTerminationProtection"] is True

    # An answer proves nothing: the old version gives one as well after an update that was taken back.
    deployment.check_serving(Aws("us-east-1"), mended.environment(), mended.release(), "decision")
    other = mended.environment(), Kept(wanted.model, broken).release()
    with pytest.raises(CommandError, match=f"it runs the image sha256:.*and the release has {broken}"):
        deployment.check_serving(Aws("us-east-1"), *other, "decision")
    sagemaker = kept.client("sagemaker")
    declared = sagemaker.describe_endpoint(EndpointName=ENDPOINT)["EndpointConfigName"]
    variants = sagemaker.describe_endpoint_config(EndpointConfigName=declared)["ProductionVariants"]
    sagemaker.create_endpoint_config(EndpointConfigName="by-hand", ProductionVariants=variants)
    sagemaker.update_endpoint(EndpointName=ENDPOINT, EndpointConfigName="by-hand")
    sagemaker.get_waiter("endpoint_in_service").wait(EndpointName=ENDPOINT, WaiterConfig={"Delay": 1})
    with pytest.raises(CommandError, match="the configuration by-hand is in service, and the stack declares"):
        deployment.check_serving(Aws("us-east-1"), mended.environment(), mended.release(), "decision")

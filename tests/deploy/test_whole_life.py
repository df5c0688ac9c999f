"""From nothing to dev, staging and prod with one release; changes that work and that do not; and back to nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from world import PROCESSES, QUESTION, Assembled, World, digest

from steelyard.aws.session import Aws
from steelyard.deploy import adoption, deployment, kept, removal
from steelyard.deploy.endpoints import stacks_of
from steelyard.environments.files import parse_environment
from steelyard.environments.schema import Environment
from steelyard.releases.compatibility import check_release
from steelyard.releases.manifest import Release, ReleasedModel, parse_release
from steelyard.releases.plan import plan_for
from steelyard_base.exit_codes import CommandError
from steelyard_constructs.hardware import Hardware
from steelyard_localcloud.cloud import LocalCloud

ARCHITECTURES = {Hardware.CPU: "x86_64", Hardware.GRAVITON: "arm64"}
REPOSITORY = "steelyard-dev"
"""Where dev builds the images of all three."""

REMOVED = "Steelyard-dev-Endpoint-removed"
BUILT_ELSEWHERE = {"images": {"account": "000000000000", "repository": REPOSITORY}}
ENDPOINT = {"kind": "decision", "threads": 1}
ON_GRAVITON = {**ENDPOINT, "hardware": "graviton", "instance_type": "ml.c7g.xlarge"}
SCALED = {
    "instances": 2,
    "rolling": {"percent": 50, "wait_s": 60},
    "scaling": {"min_instances": 2, "max_instances": 3, "target_concurrency": 4},
}
FILES: dict[str, dict[str, Any]] = {
    "dev": {
        "removal_policy": "destroy",
        "promotes_to": ["staging", "prod"],
        "builds": {"models": ["gemma-3-270m"], "images": ["cpu", "graviton"]},
        "endpoints": {"decision": {**ENDPOINT, "hardware": "cpu", "instance_type": "ml.c7i.xlarge"}},
    },
    "staging": {
        "removal_policy": "retain",
        "network": {"kind": "created"},
        "artifacts": {"bucket_name": "models-of-staging"},
        **BUILT_ELSEWHERE,
        "endpoints": {"decision": ON_GRAVITON},
    },
    "prod": {"removal_policy": "retain", **BUILT_ELSEWHERE, "endpoints": {"decision": {**ON_GRAVITON, **SCALED}}},
}


def environment(name: str, **endpoint: Any) -> Environment:
    """An environment, with changes of its endpoint."""
    data = {"region": "us-east-1", "log_retention_days": 1, **FILES[name]}
    data["endpoints"] = {"decision": {**data["endpoints"]["decision"], **endpoint}}
    return parse_environment(data, name=name, source="the test")


class Interrupted(Assembled):
    """Ctrl-C after the deployment that takes the scaling away."""

    def deploy_template(self, stack: str, template: Mapping[str, Any]) -> None:
        super().deploy_template(stack, template)
        raise KeyboardInterrupt


@dataclass(frozen=True)
class Life:
    """A local cloud, what was built once, and what was said."""

    world: World
    folder: Path
    said: list[str] = field(default_factory=list)
    aws: Aws = field(default_factory=lambda: Aws("us-east-1"))

    def built(self, **images: str) -> Release:
        """The release that dev builds for all three: what its plan says, each part a stand-in."""
        targets = [environment(name) for name in FILES["dev"]["promotes_to"]]
        plan = plan_for(environment("dev"), targets=targets)
        model = self.world.wanted.model.released()
        made = {
            hardware.value: {
                "digest": images.get(hardware.value, digest()),
                "architecture": ARCHITECTURES[hardware],
                "llama_cpp": "b10433",
            }
            for hardware in plan.images
        }
        data = {
            "format": "steelyard-release/1",
            "id": f"built-{digest()[-8:]}",
            "sample": True,
            "models": dict.fromkeys(plan.models, model),
            "images": {"decision": made},
        }
        release = parse_release(data, source="the test")
        for each in (environment("dev"), *targets):
            check_release(each, release)
        return release

    def cdk(self, wanted: Environment, release: Release, *, kind: type[Assembled] = Assembled) -> Assembled:
        return kind(
            environment=wanted.name,
            release=release.id,
            assembly=self.folder / "cdk.out",
            wanted=wanted,
            content=release,
        )

    def deploy(self, wanted: Environment, release: Release, *, kind: type[Assembled] = Assembled) -> None:
        deployment.deploy(
            self.aws,
            wanted,
            release,
            self.cdk(wanted, release, kind=kind),
            self.said.append,
            note=self.said.append,
            supplies=self,
        )

    def destroy(self, wanted: Environment, release: Release) -> None:
        removal.destroy(self.aws, wanted, self.cdk(wanted, release), self.said.append, note=self.said.append)

    def provide_model(self, aws: Aws, model: ReleasedModel, *, bucket: str) -> None:
        assert model.key == self.world.wanted.model.key
        self.world.publish(bucket, self.world.wanted.model)

    def provide_image(self, digest: str, *, repository: str) -> None:
        self.world.cloud.register_image(repository, digest)

    def answers(self, name: str) -> list[str]:
        """The options that the endpoint of an environment decided between."""
        decided: list[str] = self.world.ask(f"steelyard-{name}-decision", QUESTION)["result"]["option_ids"]
        return decided

    def types(self, name: str) -> str:
        found = self.world.client("sagemaker").describe_endpoint_config(EndpointConfigName=self.config(name))
        return str(found["ProductionVariants"][0]["InstanceType"])

    def config(self, name: str) -> str:
        found = self.world.client("sagemaker").describe_endpoint(EndpointName=f"steelyard-{name}-decision")
        return str(found["EndpointConfigName"])

    def unprotect(self, wanted: Environment) -> None:
        """What a person does before a retained environment is destroyed."""
        for stack in stacks_of(self.aws, wanted):
            self.world.client("cloudformation").update_termination_protection(
                StackName=stack, EnableTerminationProtection=False
            )

    def left(self) -> set[str]:
        """What is in the cloud beside what the CDK's bootstrap made."""
        return {each for each in self.world.everything() if "cdk-hnb659fds" not in each and "CDKToolkit" not in each}

    def targets(self) -> list[str]:
        found = self.world.client("application-autoscaling").describe_scalable_targets(ServiceNamespace="sagemaker")
        return [each["ResourceId"] for each in found["ScalableTargets"]]


@pytest.fixture
def life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Life]:
    """A cloud of its own, prepared for the CDK: what is retained stays in it."""
    with LocalCloud(
        tmp_path / "cloud",
        environment=PROCESSES,
        longest_wait_s=0.1,
        longest_startup_s=15.0,
        interfaces_linger_s=1.0,
    ) as cloud:
        for name, value in cloud.environment().items():
            monkeypatch.setenv(name, value)
        (tmp_path / "world").mkdir()
        yield Life(World(cloud, tmp_path / "world"), tmp_path)


@pytest.mark.timeout(900)  # beside other work; half a dozen deployments of AWS's own command line take most of it
def test_the_whole_life(life: Life, capfd: pytest.CaptureFixture[str]) -> None:
    assert life.left() == set()
    release = life.built()
    assert set(release.images["decision"]) == {Hardware.CPU, Hardware.GRAVITON}
    life.deploy(environment("dev"), release)
    assert life.answers("dev") == ["yes", "no"]
    a_first_deployment_that_failed_is_repeated(life, release)
    life.deploy(environment("prod"), release)
    assert life.answers("prod") == ["yes", "no"]
    changes_of_a_scaled_endpoint(life, release, capfd)
    what_was_retained_is_adopted(life, release)
    for name in ("prod", "staging"):
        remove_for_good(life, environment(name), release)
    down_leaves_nothing_of_dev(life)
    assert life.left() == set()


def broken(life: Life) -> Release:
    """A release whose containers end at once."""
    command = [sys.executable, "-c", "raise SystemExit(3)"]
    return life.built(graviton=life.world.cloud.register_image(REPOSITORY, digest(), command=command))


def a_first_deployment_that_failed_is_repeated(life: Life, release: Release) -> None:
    staging, stack = environment("staging"), "Steelyard-staging-Endpoint-decision"
    with pytest.raises(CommandError, match="cdk deploy failed"):
        life.deploy(staging, broken(life))
    assert life.world.status(stack) == "ROLLBACK_COMPLETE"
    # Nothing with a name is left to collide with, though it is to be retained.
    assert not [each for each in life.left() if each.startswith("log group /aws/sagemaker/Endpoints/steelyard-staging")]
    life.said.clear()
    life.deploy(staging, release)
    assert f"the first deployment of {stack} failed (ROLLBACK_COMPLETE); it is deployed anew" in life.said
    assert life.answers("staging") == ["yes", "no"]
    (found,) = life.world.client("cloudformation").describe_stacks(StackName=stack)["Stacks"]
    assert found["EnableTerminationProtection"] is True
    an_answer_proves_nothing(life, staging, release)


def an_answer_proves_nothing(life: Life, staging: Environment, release: Release) -> None:
    """The old version gives one as well after an update that was taken back."""
    with pytest.raises(CommandError, match=r"it runs the image sha256:.*and the release has sha256:"):
        deployment.check_serving(life.aws, staging, life.built(), "decision")
    sagemaker, name = life.world.client("sagemaker"), staging.endpoint_name("decision")
    declared = life.config("staging")
    variants = sagemaker.describe_endpoint_config(EndpointConfigName=declared)["ProductionVariants"]
    sagemaker.create_endpoint_config(EndpointConfigName="by-hand", ProductionVariants=variants)
    sagemaker.update_endpoint(EndpointName=name, EndpointConfigName="by-hand")
    sagemaker.get_waiter("endpoint_in_service").wait(EndpointName=name, WaiterConfig={"Delay": 1})
    with pytest.raises(CommandError, match="the configuration by-hand is in service, and the stack declares"):
        deployment.check_serving(life.aws, staging, release, "decision")
    sagemaker.update_endpoint(EndpointName=name, EndpointConfigName=declared)
    sagemaker.get_waiter("endpoint_in_service").wait(EndpointName=name, WaiterConfig={"Delay": 1})
    sagemaker.delete_endpoint_config(EndpointConfigName="by-hand")


def changes_of_a_scaled_endpoint(life: Life, release: Release, capfd: pytest.CaptureFixture[str]) -> None:
    before, prod = life.config("prod"), environment("prod", instance_type="ml.c8g.xlarge")
    # AWS changes no type under a scalable target: plain cdk deploy is told so before anything changes.
    cdk = life.cdk(prod, release)
    cdk.synth()
    with pytest.raises(CommandError):
        cdk.deploy("Steelyard-prod-Endpoint-decision")
    assert "is scaled, and AWS changes no instance types under that; steelyard up" in capfd.readouterr().err
    assert (life.config("prod"), life.types("prod")) == (before, "ml.c7g.xlarge")
    # An update of the release and of the types, half of the instances at a time: two deployments. The second is made
    # by the next call where the first one's was interrupted.
    built = life.built()
    with pytest.raises(KeyboardInterrupt):
        life.deploy(prod, built, kind=Interrupted)
    assert [each for each in life.said if "first a deployment without its scaling" in each]
    assert life.targets() == []
    assert (life.config("prod"), life.types("prod")) == (before, "ml.c7g.xlarge")
    life.deploy(prod, built)
    assert life.types("prod") == "ml.c8g.xlarge"
    serving = life.world.client("sagemaker").describe_endpoint(EndpointName="steelyard-prod-decision")
    assert serving["LastDeploymentConfig"]["RollingUpdatePolicy"]["MaximumBatchSize"]["Value"] == 50
    assert serving["ProductionVariants"][0]["CurrentInstanceCount"] == 2
    assert life.targets() == ["endpoint/steelyard-prod-decision/variant/primary"]
    # An update that fails is taken back.
    updated = life.config("prod")
    with pytest.raises(CommandError, match="cdk deploy failed"):
        life.deploy(prod, broken(life))
    assert "did not pass the ping health check" in capfd.readouterr().err
    assert life.world.status("Steelyard-prod-Endpoint-decision") == "UPDATE_ROLLBACK_COMPLETE"
    assert life.config("prod") == updated
    # And the release of before is deployed again.
    life.deploy(prod, release)
    assert life.answers("prod") == ["yes", "no"]


def what_was_retained_is_adopted(life: Life, release: Release) -> None:
    staging, group = environment("staging"), "/aws/sagemaker/Endpoints/steelyard-staging-decision"
    life.unprotect(staging)
    life.said.clear()
    life.destroy(staging, release)
    # In a VPC the endpoints go first: SageMaker's interfaces outlive them.
    assert life.said.index("cdk destroy: the endpoints") < life.said.index("cdk destroy --all")
    assert stacks_of(life.aws, staging) == {}
    assert [each for each in life.said if each.startswith(f"kept {group}: a stack declared it")] != []
    for each in kept.kept_resources(life.aws, staging):
        assert any(said.startswith("kept ") and each.name in said for said in life.said), each
    assert any(each.startswith("kept s3 models-of-staging: ") for each in life.said)
    found = {each.name: each.arn for each in adoption.adopted(life.aws, staging)}
    assert found.keys() == {"models-of-staging", group}
    data = staging.model_dump(mode="json", exclude={"name"})
    for field_name, value, said in (
        ("removal_policy", "destroy", "CloudFormation adopts only what it is to retain"),
        ("encryption", {"kind": "created"}, "encryption is 'created', which makes another one"),
    ):
        other = parse_environment({**data, field_name: value}, name="staging", source="the test")
        with pytest.raises(CommandError, match=said) as refused:
            adoption.adopted(life.aws, other)
        assert f"--delete {found[group]}" in str(refused.value.hint)
    logs = life.world.client("logs")
    written = logs.describe_log_streams(logGroupName=group)["logStreams"]
    life.deploy(staging, release)
    assert life.answers("staging") == ["yes", "no"]
    assert len(logs.describe_log_streams(logGroupName=group)["logStreams"]) > len(written) > 0
    assert "models-of-staging" in life.world.outputs("Steelyard-staging-Artifacts")["BucketName"]


def remove_for_good(life: Life, retained: Environment, release: Release) -> None:
    life.unprotect(retained)
    life.destroy(retained, release)
    kinds = {each.service for each in kept.kept_resources(life.aws, retained)}
    assert {"s3", "logs"} <= kinds
    for each in kept.kept_resources(life.aws, retained):
        kept.delete(life.aws, each)
    assert kept.kept_resources(life.aws, retained) == []


def down_leaves_nothing_of_dev(life: Life) -> None:
    """With versions, delete markers and images inside, and the stack of an endpoint that the file no longer has."""
    world, s3 = life.world, life.world.client("s3")
    bucket = world.bucket()
    for number in range(3):
        s3.put_object(Bucket=bucket, Key="models/other/file", Body=b"version %d" % number)
    s3.delete_object(Bucket=bucket, Key="models/other/file")
    world.cloud.register_image(REPOSITORY, digest(), tag="another")
    leave_a_removed_endpoint(world)
    standing = world.everything()
    refused = world.steelyard("down", stdin="n\n")
    assert refused.returncode == 1
    assert "Destroy dev in account 000000000000, us-east-1: Steelyard-dev-Artifacts, " in refused.stderr
    assert "nothing was destroyed" in refused.stderr
    assert world.everything() == standing
    done = world.steelyard("down", "--yes")
    assert done.returncode == 0, done.stderr
    assert f"deleting {REMOVED}, which environments/dev.toml no longer has" in done.stderr
    assert done.stderr.index(f"deleting {REMOVED}") < done.stderr.index("cdk destroy --all")
    assert "no stack of dev is left" in done.stderr


def leave_a_removed_endpoint(world: World) -> None:
    """The stack of an endpoint whose section was removed: it still imports from the others."""
    exports = world.client("cloudformation").list_exports()["Exports"]
    (bucket,) = [each["Name"] for each in exports if each["Value"] == world.bucket()][:1]
    topic = {"Type": "AWS::SNS::Topic", "Properties": {"DisplayName": {"Fn::ImportValue": bucket}}}
    template = json.dumps({"Resources": {"Topic": topic}})
    client = world.client("cloudformation")
    client.create_stack(StackName=REMOVED, TemplateBody=template)
    client.get_waiter("stack_create_complete").wait(StackName=REMOVED, WaiterConfig={"Delay": 1})

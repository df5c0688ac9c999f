"""An account with the stacks that a release is built with, in miniature: the same outputs, projects that build at once.

Their buildspecs end in the same exports as those of ``images/``, and wait for a file where a test says so.
"""

from __future__ import annotations

import io
import json
import sys
import uuid
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import small_builds

from steelyard.environments.files import parse_environment
from steelyard.environments.schema import Environment
from steelyard.releases.assemble import Order
from steelyard.releases.bases import Bases, load_bases
from steelyard.releases.manifest import ReleaseSource
from steelyard.releases.plan import plan_for
from steelyard.releases.source import Checkout, asset_hash
from steelyard_localcloud.cloud import LocalCloud

DLC = "763104351884.dkr.ecr.us-east-1.amazonaws.com/llama-cpp"
REPOSITORY = "steelyard-dev"
SOURCE = ReleaseSource(commit="1" * 40, dirty=False)
PROGRAM = Path(small_builds.__file__)

_SPEC = """\
version: 0.2
env:
  shell: bash
  exported-variables: [{exported}]
phases:
  build:
    commands:
      - echo "building $WHAT"
      - while [ -e "$HELD" ]; do sleep 0.05; done
      - if [ -e "$BROKEN" ]; then echo "the compiler says no"; exit 7; fi
      - {python} {program} $WHAT > exports
      - . ./exports
"""


@dataclass
class Account:
    """One environment's account: its bucket, its registry, its projects."""

    cloud: LocalCloud
    folder: Path
    projects: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.bucket = f"artifacts-{uuid.uuid4().hex[:12]}"
        self.client = self.cloud.client
        self.client("s3").create_bucket(Bucket=self.bucket)
        self.base = small_builds.push_image(
            self.cloud.details.registry,
            DLC,
            login=(self.cloud.details.access_key_id, self.cloud.details.secret_access_key),
            labels={},
        )
        self.client("ecr").create_repository(repositoryName=REPOSITORY)
        self._role = self._make_role()
        self.asset = asset_hash()
        self.deploy_source(self.asset)
        self._declare()

    def close(self) -> None:
        """Make room for the next one in the same cloud."""
        for what in ("model", "image"):
            self.held(what).unlink(missing_ok=True)
        self.client("ecr").delete_repository(repositoryName=REPOSITORY, force=True)
        cloudformation = self.client("cloudformation")
        for stack in ("Steelyard-dev-Artifacts", "Steelyard-dev-Build"):
            cloudformation.delete_stack(StackName=stack)
            cloudformation.get_waiter("stack_delete_complete").wait(StackName=stack, WaiterConfig={"Delay": 1})

    def held(self, what: str) -> Path:
        """While this file is there, the builds of ``what`` wait."""
        return self.folder / f"held-{what}"

    def broken(self, what: str) -> Path:
        """While this file is there, the builds of ``what`` fail."""
        return self.folder / f"broken-{what}"

    def environment(self) -> Environment:
        """The environment dev, as far as releases need it."""
        endpoint = {"hardware": "cpu", "instance_type": "ml.c7i.xlarge"}
        data = {
            "region": "us-east-1",
            "removal_policy": "destroy",
            "builds": {"models": ["gemma-3-270m"], "images": ["cpu"]},
            "endpoints": {"decision": {"kind": "decision", **endpoint}, "chat": {"kind": "chat", **endpoint}},
        }
        return parse_environment(data, name="dev", source="the test")

    def bases_file(self, **changes: str) -> Path:
        """A file of base images with the base of this account's published registry."""
        base = {
            "repository": "llama-cpp",
            "digest": self.base,
            "architecture": "x86_64",
            "llama_cpp": "b10433",
            **changes,
        }
        path = self.folder / f"bases-{uuid.uuid4().hex}.toml"
        path.write_text("[cpu]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in base.items()))
        return path

    def bases(self, **changes: str) -> Bases:
        return load_bases(self.bases_file(**changes))

    def order(self, **changes: Any) -> Order:
        environment = self.environment()
        checkout = Checkout(source=changes.pop("source", SOURCE), asset=self.asset)
        given = {"plan": plan_for(environment), "bases": self.bases(), "checkout": checkout, **changes}
        return Order(environment=environment, bucket=self.bucket, **given)

    def builds(self, output: str) -> list[dict[str, Any]]:
        """All builds of a project, the oldest first."""
        client = self.client("codebuild")
        ids = client.list_builds_for_project(projectName=self.projects[output], sortOrder="ASCENDING")["ids"]
        found = client.batch_get_builds(ids=ids)["builds"] if ids else []
        return sorted(found, key=lambda build: ids.index(build["id"]))

    def deploy_source(self, asset: str) -> None:
        """Have the projects build from this source, as a deployment by some checkout does."""
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("README.md", asset)
        self._source = f"{self.bucket}/sources/{asset}.zip"
        self.client("s3").put_object(Bucket=self.bucket, Key=f"sources/{asset}.zip", Body=archive.getvalue())
        self.make_project("ModelProjectGemma3270m", "model", MODEL="gemma-3-270m")
        self.make_project("ImageProjectCpu", "image")

    def make_project(self, output: str, what: str, **variables: str) -> None:
        """A project; one that is there gets the variables too, and with them another outcome."""
        name = f"{output}-{self.bucket[-6:]}"
        group = f"/aws/codebuild/{name}"
        exported = ["MODEL_KEY", "MODEL_MANIFEST_SHA256"]
        if what == "image":
            exported = [
                *("IMAGE_DIGEST", "IMAGE_MEDIA_TYPE", "IMAGE_BASE_DIGEST", "IMAGE_LLAMA_CPP", "IMAGE_INTERFACE"),
                *("IMAGE_SBOM_KEY", "IMAGE_SBOM_SHA256"),
            ]
        spec = _SPEC.format(python=sys.executable, program=PROGRAM, exported=", ".join(exported))
        registry = "000000000000.dkr.ecr.us-east-1.amazonaws.com"
        given = {
            "WHAT": what,
            "ARTIFACT_BUCKET": self.bucket,
            "HELD": str(self.held(what)),
            "BROKEN": str(self.broken(what)),
            "REGISTRY": self.cloud.details.registry,
            "REPOSITORY_PATH": f"{registry}/{REPOSITORY}",
            "BASE_IMAGE": f"{DLC}@{self.base}",
            "SOURCE_REVISION": "unset",
            **variables,
        }
        if output not in self.projects:
            self.client("logs").create_log_group(logGroupName=group)
            self.projects[output] = name
            make = self.client("codebuild").create_project
        else:
            make = self.client("codebuild").update_project
        make(
            name=name,
            source={"type": "S3", "location": self._source, "buildspec": spec},
            artifacts={"type": "NO_ARTIFACTS"},
            environment={
                "type": "LINUX_CONTAINER",
                "image": "aws/codebuild/amazonlinux-x86_64-standard:5.0",
                "computeType": "BUILD_GENERAL1_MEDIUM",
                "environmentVariables": [{"name": key, "value": value} for key, value in given.items()],
            },
            serviceRole=self._role,
            logsConfig={"cloudWatchLogs": {"status": "ENABLED", "groupName": group}},
        )

    def _make_role(self) -> str:
        iam, name = self.client("iam"), f"builds-{self.bucket[-6:]}"
        trust = {"Effect": "Allow", "Principal": {"Service": "codebuild.amazonaws.com"}, "Action": "sts:AssumeRole"}
        allowed = {"Effect": "Allow", "Action": ["s3:*", "ecr:*", "logs:*"], "Resource": "*"}
        arn: str = iam.create_role(RoleName=name, AssumeRolePolicyDocument=_policy(trust))["Role"]["Arn"]
        iam.put_role_policy(RoleName=name, PolicyName="Builds", PolicyDocument=_policy(allowed))
        return arn

    def _declare(self) -> None:
        """The two stacks, with nothing in them but the outputs that tell where everything is."""
        for stack, outputs in (
            ("Steelyard-dev-Artifacts", {"BucketName": self.bucket}),
            ("Steelyard-dev-Build", self.projects),
        ):
            template = {
                "Resources": {"Nothing": {"Type": "AWS::SNS::Topic"}},
                "Outputs": {name: {"Value": value} for name, value in outputs.items()},
            }
            self.client("cloudformation").create_stack(StackName=stack, TemplateBody=json.dumps(template))
            self.client("cloudformation").get_waiter("stack_create_complete").wait(
                StackName=stack, WaiterConfig={"Delay": 1}
            )


def _policy(statement: dict[str, Any]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})

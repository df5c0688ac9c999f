"""One environment in a local cloud, deployed and changed by the real ``cdk deploy``."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aws_cdk as cdk

import tiny_models
from stacks.environment_app import add_environment, pinned_context
from steelyard.cdk.nodejs import cdk_command, with_packaged_node
from steelyard.cdk.program import Cdk
from steelyard.environments.files import parse_environment
from steelyard.environments.schema import Environment
from steelyard.releases.manifest import Release, parse_release, sealed
from steelyard_localcloud.cloud import LocalCloud

REPOSITORY = "steelyard-dev"
ENDPOINT_TYPES = ("AWS::SageMaker::Model", "AWS::SageMaker::EndpointConfig", "AWS::SageMaker::Endpoint")
DECISION = "steelyard-dev-decision"
CHAT = "steelyard-dev-chat"
DECISION_STACK = "Steelyard-dev-Endpoint-decision"

QUESTION = {
    "decision": {
        "id": "ticket",
        "state": "the ticket is a refund",
        "question": "is it true?",
        "options": [{"id": "yes", "description": "true"}, {"id": "no", "description": "false"}],
    }
}
GREETING = {"messages": [{"role": "user", "content": "the answer"}], "max_tokens": 4, "temperature": 0}

# Processes of tests share two cores; see tests/conftest.py.
PROCESSES = {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "1", "STEELYARD_DEADLINE_S": "600"}


@dataclass(frozen=True)
class Model:
    """A model in the release: an entry of the manifest, and its file here."""

    path: Path
    name: str
    manifest: bytes

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.manifest).hexdigest()

    @property
    def key(self) -> str:
        return f"models/{self.name}/{self.sha256}/"

    def released(self) -> dict[str, Any]:
        content = self.path.read_bytes()
        return {
            "name": self.name,
            "key": self.key,
            "manifest_sha256": self.sha256,
            "file": self.path.name,
            "files": [
                {
                    "name": self.path.name,
                    "role": "weights",
                    "size": len(content),
                    "sha256": hashlib.sha256(content).hexdigest(),
                }
            ],
        }


@dataclass(frozen=True)
class Wanted:
    """What is to be deployed. A test changes one thing of what stands."""

    model: Model
    image: str
    variables: Mapping[str, str] = field(default_factory=dict)
    instances: Mapping[str, Any] = field(default_factory=lambda: {"instance_type": "ml.c7i.xlarge"})

    def environment(self) -> Environment:
        endpoint = {"hardware": "cpu", "threads": 1, "caller": {"whole_account": True}}
        data = {
            "region": "us-east-1",
            "removal_policy": "destroy",
            "log_retention_days": 1,
            "builds": {"models": ["gemma-3-270m"], "images": ["cpu"]},
            "endpoints": {
                "decision": {"kind": "decision", "environment": dict(self.variables), **self.instances, **endpoint},
                "chat": {"kind": "chat", "instance_type": "ml.c7i.xlarge", **endpoint},
            },
        }
        return parse_environment(data, name="dev", source="the test")

    def release_data(self, identifier: str = "tiny") -> dict[str, Any]:
        image = {"architecture": "x86_64", "llama_cpp": "b10433"}
        return {
            "format": "steelyard-release/1",
            "id": identifier,
            "sample": True,
            "models": {"decision": self.model.released(), "chat": self.model.released()},
            "images": {
                "decision": {"cpu": {"digest": self.image, **image}},
                "chat": {"cpu": {"digest": f"sha256:{'c' * 64}", "repository": "llama-cpp", **image}},
            },
        }

    def sealed_data(self) -> dict[str, Any]:
        """The same as a release that was built, and not as a sample: nothing stands in for what is missing."""
        data = self.release_data()
        media_type = "application/vnd.docker.distribution.manifest.v2+json"
        for images in data["images"].values():
            images["cpu"]["media_type"] = media_type
        sbom = {"key": "images/sbom.cdx.json", "sha256": "e" * 64}
        data["images"]["decision"]["cpu"]["build"] = {
            "base_digest": f"sha256:{'c' * 64}",
            "interface": "b10429",
            "sbom": sbom,
        }
        content = {name: each for name, each in data.items() if name not in ("id", "sample")}
        return sealed({**content, "source": {"commit": "1" * 40, "dirty": False}})

    def release(self) -> Release:
        return parse_release(self.release_data(), source="the test")


@dataclass(frozen=True, kw_only=True)
class Assembled(Cdk):
    """The CDK's command line, with templates that are made in this process."""

    wanted: Environment
    content: Release

    def synth(self) -> None:
        shutil.rmtree(self.assembly, ignore_errors=True)
        app = cdk.App(
            context=pinned_context(),
            outdir=str(self.assembly),
            analytics_reporting=False,
            builtin_cloud_formation_validation=False,
        )
        add_environment(app, self.wanted, self.content)
        app.synth()


@dataclass(frozen=True)
class Done:
    """A run of the CDK's command line."""

    code: int
    said: str


class World:
    """A local cloud, bootstrapped, and the environment ``dev`` in it."""

    def __init__(self, cloud: LocalCloud, folder: Path) -> None:
        self.cloud = cloud
        self._folder = folder
        self._clients: dict[str, Any] = {}
        self._assemblies = 0
        self.models = 0
        self.wanted = Wanted(self.model("llama"), digest(), {"STEELYARD_DECISION_RECORDS": "log"})
        self.stands = False

    def client(self, service: str) -> Any:
        """A client, as the administrator."""
        if service not in self._clients:
            self._clients[service] = self.cloud.client(service)
        return self._clients[service]

    def variables(self) -> dict[str, str]:
        """The environment of child processes."""
        return with_packaged_node({**os.environ, **self.cloud.environment(), "CI": "true"})

    def model(self, kind: str, *, seed: int = 0) -> Model:
        """A tiny model."""
        name = f"tiny-{kind}-{seed}"
        path = self._folder / name / "model.gguf"
        path.parent.mkdir(exist_ok=True)
        return self.named(tiny_models.write(kind, path, seed=seed), name)

    def broken_model(self) -> Model:
        """A model whose file ends too early."""
        path = self._folder / "broken" / "model.gguf"
        path.parent.mkdir(exist_ok=True)
        return self.named(tiny_models.write_truncated(path), "tiny-broken")

    def named(self, path: Path, name: str) -> Model:
        file = hashlib.sha256(path.read_bytes()).hexdigest()
        return Model(path, name, json.dumps({"name": name, "file": file}).encode())

    def cdk(self, *words: str) -> Done:
        """Run the CDK's command line."""
        done = subprocess.run(
            [*cdk_command(), *words],
            cwd=self._folder,
            env=self.variables(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=240,
        )
        return Done(done.returncode, done.stdout)

    def steelyard(self, *words: str, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
        """Run our command, with the variables that ``steelyard cloud env`` prints."""
        return subprocess.run(
            [sys.executable, "-m", "steelyard", *words],
            env={**os.environ, **self.cloud.environment(), "COLUMNS": "200", **variables},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=240,
        )

    def ensure(self) -> None:
        """Deploy what is wanted, unless it stands."""
        if not self.stands:
            assembly = self.synth(self.wanted)
            self._must("deploy", "Steelyard-dev-Artifacts", "Steelyard-dev-Build", assembly=assembly)
            self.provide(self.wanted)
            self._must("deploy", "--all", assembly=assembly)
            self.stands = True

    def change(self, **changes: Any) -> Wanted:
        """What stands, with changes."""
        return replace(self.wanted, **changes)

    def deploy(self, wanted: Wanted) -> Done:
        """Deploy all stacks, as a person does."""
        self.provide(wanted)
        assembly = self.synth(wanted)
        done = self.cdk("deploy", "--all", "--require-approval", "never", "--app", str(assembly))
        if done.code == 0:
            self.wanted = wanted
        return done

    def synth(self, wanted: Wanted) -> Path:
        """The templates. Made in this process, which saves the start of another one; nothing else differs."""
        self._assemblies += 1
        folder = self._folder / f"cdk.out-{self._assemblies}"
        app = cdk.App(context=pinned_context(), outdir=str(folder), analytics_reporting=False)
        add_environment(app, wanted.environment(), wanted.release())
        app.synth()
        return folder

    def provide(self, wanted: Wanted) -> None:
        """Put the model into the bucket and the image into the registry, where they are missing."""
        self.publish(self.bucket(), wanted.model)
        known = self.client("ecr").list_images(repositoryName=REPOSITORY)["imageIds"]
        if wanted.image not in [each["imageDigest"] for each in known]:
            self.cloud.register_image(REPOSITORY, wanted.image)

    def publish(self, bucket: str, model: Model) -> None:
        """Put a model into a bucket."""
        s3, file = self.client("s3"), hashlib.sha256(model.path.read_bytes()).hexdigest()
        s3.upload_file(str(model.path), bucket, model.key + model.path.name, ExtraArgs={"Metadata": {"sha256": file}})
        s3.put_object(Bucket=bucket, Key=model.key + "model-manifest.json", Body=model.manifest)

    def bucket(self) -> str:
        return self.outputs("Steelyard-dev-Artifacts")["BucketName"]

    def outputs(self, stack: str) -> dict[str, str]:
        found = self.client("cloudformation").describe_stacks(StackName=stack)["Stacks"][0]
        return {each["OutputKey"]: each["OutputValue"] for each in found.get("Outputs", [])}

    def status(self, stack: str) -> str:
        status: str = self.client("cloudformation").describe_stacks(StackName=stack)["Stacks"][0]["StackStatus"]
        return status

    def updated(self) -> Any:
        """When the stack of the decision endpoint was last touched."""
        found = self.client("cloudformation").describe_stacks(StackName=DECISION_STACK)["Stacks"][0]
        return found.get("LastUpdatedTime"), found["StackStatus"]

    def resource(self, stack: str, kind: str, logical: str) -> str:
        """Physical name of the one resource of a stack with this type and beginning of its logical identifier."""
        found = self.client("cloudformation").list_stack_resources(StackName=stack)["StackResourceSummaries"]
        names = [
            each["PhysicalResourceId"]
            for each in found
            if each["ResourceType"] == kind and each["LogicalResourceId"].startswith(logical)
        ]
        assert len(names) == 1, [each["LogicalResourceId"] for each in found]
        return str(names[0])

    def serving(self) -> dict[str, Any]:
        """What makes up the decision endpoint now: names by type, its process, when it was made."""
        found = self.client("cloudformation").list_stack_resources(StackName=DECISION_STACK)["StackResourceSummaries"]
        names = {each["ResourceType"]: each["PhysicalResourceId"] for each in found}
        endpoint = self.client("sagemaker").describe_endpoint(EndpointName=DECISION)
        return {
            **{kind: names[kind] for kind in ENDPOINT_TYPES},
            "status": endpoint["EndpointStatus"],
            "made": endpoint["CreationTime"],
            "config": endpoint["EndpointConfigName"],
        }

    def ask(self, endpoint: str = DECISION, body: Any = None) -> dict[str, Any]:
        """One invocation through boto3."""
        answer = self.client("sagemaker-runtime").invoke_endpoint(
            EndpointName=endpoint, Body=json.dumps(body or QUESTION), ContentType="application/json"
        )
        told: dict[str, Any] = json.loads(answer["Body"].read())
        return told

    @contextmanager
    def traffic(self) -> Iterator[list[Any]]:
        """Decisions asked throughout the block; yields what came of each: the answer, or the exception."""
        outcomes: list[Any] = []
        stop = threading.Event()

        def ask() -> None:
            while not stop.wait(0.05):
                try:
                    outcomes.append(self.ask()["result"])
                except Exception as error:
                    outcomes.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        try:
            yield outcomes
            settled = len(outcomes) + 2
            deadline = time.monotonic() + 60
            while len(outcomes) < settled and time.monotonic() < deadline:
                time.sleep(0.02)
        finally:
            stop.set()
            thread.join()

    def everything(self) -> set[str]:
        """What is in the cloud: stacks, buckets, repositories, models, configurations, endpoints, alarms, log groups,
        roles, functions, projects, topics, dashboards and processes."""
        sagemaker = self.client("sagemaker")
        stacks = self.client("cloudformation").describe_stacks()["Stacks"]
        found = {f"stack {each['StackName']}" for each in stacks if each["StackStatus"] != "DELETE_COMPLETE"}
        listed = {
            "bucket": [each["Name"] for each in self.client("s3").list_buckets()["Buckets"]],
            "repository": [
                each["repositoryName"] for each in self.client("ecr").describe_repositories()["repositories"]
            ],
            "model": [each["ModelName"] for each in sagemaker.list_models()["Models"]],
            "config": [each["EndpointConfigName"] for each in sagemaker.list_endpoint_configs()["EndpointConfigs"]],
            "endpoint": [each["EndpointName"] for each in sagemaker.list_endpoints()["Endpoints"]],
            "alarm": [each["AlarmName"] for each in self.client("cloudwatch").describe_alarms()["MetricAlarms"]],
            "dashboard": [
                each["DashboardName"] for each in self.client("cloudwatch").list_dashboards()["DashboardEntries"]
            ],
            "log group": [each["logGroupName"] for each in self.client("logs").describe_log_groups()["logGroups"]],
            "role": [each["RoleName"] for each in self.client("iam").list_roles()["Roles"]],
            "function": [each["FunctionName"] for each in self.client("lambda").list_functions()["Functions"]],
            "project": self.client("codebuild").list_projects()["projects"],
            "topic": [each["TopicArn"] for each in self.client("sns").list_topics()["Topics"]],
            "process": [str(pid) for pid in self.cloud.processes()],
        }
        return found | {f"{kind} {name}" for kind, names in listed.items() for name in names}

    def _must(self, *words: str, assembly: Path) -> None:
        done = self.cdk(*words, "--require-approval", "never", "--app", str(assembly))
        assert done.code == 0, done.said


def digest() -> str:
    """A digest that no image has yet."""
    return f"sha256:{uuid.uuid4().hex}{uuid.uuid4().hex}"

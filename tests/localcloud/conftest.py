"""One local cloud for all of these tests, with a bucket, a repository, a tiny model and a scripted container in it."""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import echo_container
from endpoint_template import BUCKET, REPOSITORY, delete, deploy, endpoint_template, image_uri

import tiny_models
from steelyard_localcloud.cloud import LocalCloud

ONE_THREAD = {"STEELYARD_THREADS": "1", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Furnished:
    """A local cloud and what lies in it.

    Attributes:
        cloud: The local cloud.
        echo: URI of the scripted container's image.
        decision: URI of an image behind which our server runs.
        cloudformation: Client, as the administrator.
        sagemaker: Client, as the administrator.
        runtime: Client, as the administrator.
        s3: Client, as the administrator.
    """

    cloud: LocalCloud
    echo: str
    decision: str
    cloudformation: Any
    sagemaker: Any
    runtime: Any
    s3: Any

    def invoke(self, endpoint: str, body: Any = None, **parameters: Any) -> dict[str, Any]:
        """What the scripted container says."""
        given = {"ContentType": "application/json", **parameters}
        answer = self.runtime.invoke_endpoint(EndpointName=endpoint, Body=json.dumps(body or {}), **given)
        told: dict[str, Any] = json.loads(answer["Body"].read())
        return told

    def image(self, **options: Any) -> str:
        """URI of another image, with a digest of its own."""
        digest = f"sha256:{uuid.uuid4().hex}{uuid.uuid4().hex}"
        return image_uri(self.cloud.register_image(REPOSITORY, digest, **options))


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.write("llama", tmp_path_factory.mktemp("tiny") / "model.gguf")


@pytest.fixture(scope="session")
def furnished(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Furnished]:
    home = tmp_path_factory.mktemp("cloud")
    options = {"invocation_timeout_s": 2.0, "stream_timeout_s": 4.0, "longest_wait_s": 1.5, "longest_startup_s": 20.0}
    options["interfaces_linger_s"] = 1.0
    quotas = {"ml.g5.xlarge": 2, "ml.g6.xlarge": 2, "ml.g6e.xlarge": 2, "ml.m5.large": 1}
    with LocalCloud(
        home, environment=ONE_THREAD, quotas=quotas, types_without_capacity=["ml.g5.xlarge"], **options
    ) as cloud:
        s3 = cloud.client("s3")
        s3.create_bucket(Bucket=BUCKET)
        s3.upload_file(str(tiny_model), BUCKET, "tiny/model.gguf")
        s3.put_object(Bucket=BUCKET, Key="small/a.txt", Body=b"a")
        s3.put_object(Bucket=BUCKET, Key="small/sub/b.txt", Body=b"b")
        s3.put_object(Bucket=BUCKET, Key="broken/model.gguf", Body=b"GGUF but no more")
        cloud.client("ecr").create_repository(repositoryName=REPOSITORY)
        command = [sys.executable, echo_container.__file__]
        yield Furnished(
            cloud=cloud,
            echo=image_uri(cloud.register_image(REPOSITORY, command=command)),
            decision=image_uri(cloud.register_image(REPOSITORY)),
            cloudformation=cloud.client("cloudformation"),
            sagemaker=cloud.client("sagemaker"),
            runtime=cloud.client("sagemaker-runtime"),
            s3=s3,
        )


@pytest.fixture
def name() -> str:
    """A name for a stack and its endpoint that no other test has."""
    return f"test-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def stack(furnished: Furnished, name: str) -> Iterator[Callable[..., str]]:
    """Deploys the stack ``name`` with the arguments of ``endpoint_template``, and removes it after the test."""

    def deploy_endpoint(**arguments: Any) -> str:
        given = {"image": furnished.echo, "prefix": "small/", **arguments}
        return deploy(furnished.cloudformation, name, endpoint_template(name=name, **given))

    yield deploy_endpoint
    existing = {each["StackName"] for each in furnished.cloudformation.describe_stacks()["Stacks"]}
    if name in existing:
        assert delete(furnished.cloudformation, name) == "DELETE_COMPLETE"


@pytest.fixture(scope="module")
def echo(furnished: Furnished) -> Iterator[str]:
    """Name of an endpoint with the scripted container, for tests that do not change it."""
    name = f"echo-{uuid.uuid4().hex[:8]}"
    described = endpoint_template(name=name, image=furnished.echo, prefix="small/", environment={"VERSION": "1"})
    assert deploy(furnished.cloudformation, name, described) == "CREATE_COMPLETE"
    yield name
    assert delete(furnished.cloudformation, name) == "DELETE_COMPLETE"


def wait_until(condition: Callable[[], bool], *, limit_s: float = 20.0) -> None:
    """Wait for a condition; the limit only ends a test that would hang."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)

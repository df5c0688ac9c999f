"""The built image behind an endpoint of the local cloud: pushed, deployed, asked, replaced and deleted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "localcloud"))

from endpoint_template import BUCKET, REPOSITORY, REPOSITORY_URI, delete, deploy, endpoint_template, image_uri, reasons

from served_image import podman, pushed
from steelyard_localcloud.cloud import LocalCloud
from steelyard_localcloud.sagemaker.podman import LABEL

pytestmark = pytest.mark.containers

QUESTION = {
    "decision": {
        "id": "a",
        "state": "The parcel never arrived.",
        "question": "Which queue?",
        "options": [{"id": "refund", "description": "money back"}, {"id": "other", "description": "anything else"}],
    }
}
SYSTEM_ONE = {"state": "The parcel never arrived.", "model": "jev-latest", "questions": {"late": {"type": "noul"}}}
CHAT = {"messages": [{"role": "user", "content": "Name a colour."}], "max_tokens": 4, "seed": 1}


@pytest.fixture(scope="module")
def cloud(gemma: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCloud]:
    environment = {"STEELYARD_THREADS": "2", "OMP_WAIT_POLICY": "passive", "STEELYARD_DEADLINE_S": "600"}
    with LocalCloud(tmp_path_factory.mktemp("cloud"), environment=environment, invocation_timeout_s=300.0) as cloud:
        s3 = cloud.client("s3")
        s3.create_bucket(Bucket=BUCKET)
        s3.upload_file(str(gemma), BUCKET, "gemma/gemma-3-270m.gguf")
        cloud.client("ecr").create_repository(repositoryName=REPOSITORY)
        yield cloud


def test_endpoint_from_the_built_image(cloud: LocalCloud, cpu_image: str, tmp_path: Path) -> None:
    cloudformation, runtime = cloud.client("cloudformation"), cloud.client("sagemaker-runtime")

    def ask(body: dict[str, object]) -> dict[str, object]:
        answer = runtime.invoke_endpoint(EndpointName="real", ContentType="application/json", Body=json.dumps(body))
        told: dict[str, object] = json.loads(answer["Body"].read())
        return told

    first = image_uri(pushed(cloud, cpu_image, REPOSITORY_URI))
    described = endpoint_template(name="real", image=first, prefix="gemma/")
    assert deploy(cloudformation, "real", described) == "CREATE_COMPLETE", reasons(cloudformation, "real")
    decided = ask(QUESTION)
    assert decided["result"]["option_ids"] == ["refund", "other"]
    assert 0 <= ask(SYSTEM_ONE)["answers"]["late"]["noul"] <= 1
    assert ask(CHAT)["choices"][0]["message"]["role"] == "assistant"

    (tmp_path / "Dockerfile").write_text(f"FROM {cpu_image}\nLABEL steelyard.test=second\n", encoding="utf-8")
    name = "localhost/steelyard-test-cpu:second"
    subprocess.run(["docker", "build", "--quiet", "--tag", name, tmp_path], check=True, stdout=subprocess.DEVNULL)
    second = image_uri(pushed(cloud, name, REPOSITORY_URI))
    assert second != first

    stop, logits, failures = threading.Event(), [], []

    def keep_asking() -> None:
        while not stop.is_set():
            try:
                logits.append(ask(QUESTION)["result"]["option_logits"])
            except Exception as error:
                failures.append(repr(error))

    asking = threading.Thread(target=keep_asking)
    asking.start()
    changed = endpoint_template(name="real", image=second, prefix="gemma/")
    updated = deploy(cloudformation, "real", changed)
    stop.set()
    asking.join()
    assert (updated, failures) == ("UPDATE_COMPLETE", [])
    # The same library and the same model: the same bits.
    assert [*logits, ask(QUESTION)["result"]["option_logits"]] == [decided["result"]["option_logits"]] * (
        len(logits) + 1
    )
    (variant,) = cloud.client("sagemaker").describe_endpoint(EndpointName="real")["ProductionVariants"]
    assert variant["DeployedImages"][0]["ResolvedImage"] == second

    assert delete(cloudformation, "real") == "DELETE_COMPLETE"
    tools = {**os.environ, **cloud.environment()}
    assert podman("ps", "--all", "--quiet", "--filter", f"label={LABEL}", environment=tools) == ""
    assert str(cloud.options.home) not in Path("/proc/self/mounts").read_text()

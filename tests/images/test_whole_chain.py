"""From nothing to an answer with real images, by the documented commands only, and back to nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from steelyard_localcloud.cloud import LocalCloud, running_cloud
from steelyard_localcloud.containers.storage import own_storage

pytestmark = [pytest.mark.containers, pytest.mark.timeout(2400)]

ROOT = Path(__file__).resolve().parents[2]
MODEL = "gemma-3-270m"


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCloud]:
    cloud = LocalCloud(tmp_path_factory.mktemp("chain") / "cloud", environment={"OMP_WAIT_POLICY": "passive"})
    cloud.start(detached=True)
    yield cloud
    cloud.stop()


@pytest.fixture(scope="module")
def bases(cloud: LocalCloud, base, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``images/bases.toml`` is on AWS: the digest of the published container, here of its stand-in."""
    digest = cloud.publish_base(base.reference, "llama-cpp", storage=own_storage())
    file = tmp_path_factory.mktemp("bases") / "bases.toml"
    base_of = {"repository": "llama-cpp", "digest": digest, "architecture": "x86_64", "llama_cpp": base.llama_cpp}
    lines = [f'{name} = "{value}"' for name, value in base_of.items()]
    file.write_text("\n".join(["[cpu]", *lines, ""]), encoding="utf-8")
    return file


def steelyard(*words: object, cloud: LocalCloud | None = None) -> str:
    """Run a command as a person would; its output."""
    environment = {**os.environ, **(cloud.environment() if cloud else {}), "NO_COLOR": "1", "COLUMNS": "200"}
    command = [sys.executable, "-m", "steelyard", *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"{words}: {done.stdout[-4000:]}\n{done.stderr[-6000:]}"
    return done.stdout


def test_from_a_pinned_model_to_a_deployed_image_and_back(
    cloud: LocalCloud, bases: Path, gemma: Path, tmp_path: Path
) -> None:
    home = cloud.options.home
    steelyard("model", "pull", MODEL)
    steelyard("model", "verify", MODEL)
    steelyard("model", "package", MODEL, "--to", tmp_path / "package")
    assert sorted(each.name for each in (tmp_path / "package").iterdir()) == [gemma.name, "model-manifest.json"]

    steelyard("up", "--local", "--build", "--allow-dirty", "--home", home, "--bases", bases)
    [built] = (home / "releases").glob("*.json")
    release = json.loads(built.read_text(encoding="utf-8"))
    assert release["images"]["decision"]["cpu"]["build"]["interface"] == "b10429"

    bucket = release_bucket(cloud)
    pushed = steelyard("model", "push", MODEL, "--bucket", bucket, "--region", cloud.details.region, cloud=cloud)
    assert release["models"]["decision"]["key"] in pushed

    steelyard("release", "show", built)
    assert "differs" not in steelyard("release", "verify", built, "--env", "dev", cloud=cloud)
    answer = steelyard("invoke", "decision", "examples/ticket.json", "--json", cloud=cloud)
    assert "llama.h of b10429" in answer, "it comes from the image, not from a process of this checkout"

    steelyard("down", "--local", "--home", home, "--yes")
    assert running_cloud(home) is None
    assert not home.exists()


def release_bucket(cloud: LocalCloud) -> str:
    """The artifact bucket, as the stack says."""
    stacks = cloud.client("cloudformation").describe_stacks()["Stacks"]
    outputs = {each["OutputKey"]: each["OutputValue"] for stack in stacks for each in stack.get("Outputs", [])}
    return str(outputs["BucketName"])

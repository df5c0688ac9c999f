"""A decision that is fitted for an image, in a release with it, deployed as a container and asked by name."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "localcloud"))
sys.path.insert(0, str(Path(__file__).parents[1] / "releases"))

import small_builds
from endpoint_template import BUCKET, REPOSITORY, REPOSITORY_URI, deploy, endpoint_template, image_uri, reasons

import tiny_models
from served_image import pushed
from steelyard import cli
from steelyard.aws.session import Aws
from steelyard.decisions import fitting, metrics
from steelyard.deploy.local_cloud import reached
from steelyard.environments.files import parse_environment
from steelyard.releases.compatibility import check_release
from steelyard.releases.manifest import Release, parse_release, sealed
from steelyard.releases.packing import for_builds, pack, place
from steelyard.releases.served import served_by
from steelyard_base.exit_codes import CommandError
from steelyard_localcloud.cloud import LocalCloud
from steelyard_runtime.decisions.head import load_head

pytestmark = pytest.mark.containers

NAME = "parcel-status"
TEXTS = {
    "lost": "parcel {} vanished and nobody knows where",
    "late": "delivery {} is slow and came after the promised day",
    "none_of_these": "lovely weather {} today isn't it",
}
ENDPOINT = {"kind": "decision", "hardware": "cpu", "instance_type": "ml.c7i.xlarge", "decisions": [f"{NAME}@1"]}


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[LocalCloud]:
    environment = {"STEELYARD_THREADS": "1", "OMP_WAIT_POLICY": "passive", "STEELYARD_DEADLINE_S": "600"}
    with LocalCloud(tmp_path / "cloud", environment=environment) as cloud:
        cloud.client("s3").create_bucket(Bucket=BUCKET)
        cloud.client("ecr").create_repository(repositoryName=REPOSITORY)
        yield cloud


def release_of(cloud: LocalCloud, model: Path, image: str, *, llama_cpp: str, folder: Path) -> Release:
    """A release of a model, an image and the decision, as it is built; the model is in the bucket."""
    body = model.read_bytes()
    published = small_builds.publish_model(cloud.client("s3"), bucket=BUCKET, name="tiny", file=body)
    file = {"name": model.name, "role": "weights", "size": len(body), "sha256": small_builds.sha256(body)}
    build = {"base_digest": image, "interface": "b10429", "sbom": {"key": "sbom.json", "sha256": "e" * 64}}
    decided = for_builds(pack([f"{NAME}@1"], folder=folder), {llama_cpp})
    return parse_release(
        sealed(
            {
                "source": {"commit": "1" * 40, "dirty": False},
                "models": {
                    "decision": {
                        "name": "tiny",
                        "key": published["MODEL_KEY"],
                        "manifest_sha256": published["MODEL_MANIFEST_SHA256"],
                        "file": model.name,
                        "files": [file],
                    }
                },
                "images": {
                    "decision": {
                        "cpu": {
                            "digest": image,
                            "architecture": "x86_64",
                            "llama_cpp": llama_cpp,
                            "media_type": small_builds.DOCKER,
                            "build": build,
                        }
                    }
                },
                "decision_contracts": [each.released.model_dump(mode="json") for each in decided],
            }
        ),
        source="the test",
    )


def test_a_decision_fitted_for_an_image_is_served_by_it(
    cloud: LocalCloud, base, cpu_image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEELYARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(fitting, "STRENGTHS", (1.0, 100.0))
    monkeypatch.setattr(metrics, "RESAMPLES", 20)
    (tmp_path / "model").mkdir()
    model = tiny_models.write("llama", tmp_path / "model" / "tiny.gguf")
    folder = tmp_path / "decisions" / NAME
    options = {"lost": "A parcel that cannot be found", "late": "A delivery after the promised day"}
    assert cli.run(["decision", "new", NAME, *(f"--option={key}={text}" for key, text in options.items())]) == 0
    cases = [{"state": text.format(n), "label": label} for label, text in TEXTS.items() for n in range(6)]
    (folder / "cases.jsonl").write_text("".join(json.dumps(each) + "\n" for each in cases))
    fit = ["decision", "fit", NAME, "--model", str(model), "--threads=1"]

    # Fitted in this checkout alone, no image can serve it.
    assert cli.run(fit) == 0
    said = {"region": "us-east-1", "removal_policy": "destroy", "endpoints": {"one": ENDPOINT}}
    environment = parse_environment(said, name="test", source="the test")
    digest, llama_cpp = pushed(cloud, cpu_image, REPOSITORY_URI), base.llama_cpp
    with pytest.raises(CommandError, match=f"has no decision {NAME}@1"):
        check_release(environment, release_of(cloud, model, digest, llama_cpp=llama_cpp, folder=folder.parent))

    assert cli.run([*fit, "--image", cpu_image]) == 0
    head = load_head(folder / "heads" / llama_cpp)
    release = release_of(cloud, model, digest, llama_cpp=llama_cpp, folder=folder.parent)
    check_release(environment, release)
    served = served_by(release, environment.endpoints["one"])
    with reached(cloud.environment()):
        place(Aws("us-east-1"), served, pack([f"{NAME}@1"], folder=folder.parent), bucket=BUCKET)
    described = endpoint_template(name="one", image=image_uri(digest), prefix=served.key, environment=served.variables)
    cloudformation = cloud.client("cloudformation")
    assert deploy(cloudformation, "one", described) == "CREATE_COMPLETE", reasons(cloudformation, "one")

    for option, text in TEXTS.items():
        body = json.dumps({"decision": {"use": NAME, "state": text.format(30)}})
        answer = cloud.client("sagemaker-runtime").invoke_endpoint(
            EndpointName="one", ContentType="application/json", Body=body
        )
        result = json.loads(answer["Body"].read())["result"]
        assert result["option_ids"][result["probabilities"].index(max(result["probabilities"]))] == option
        assert result["action"] in ("automate", "review", "abstain")
        assert result["head_sha256"] == head.sha256
        assert result["model"]["llama_cpp"] == llama_cpp

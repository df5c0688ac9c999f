"""app.py as it is run: by itself and by the CDK command line, with credentials and without, right and wrong."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from environment_assemblies import ours
from stacks.environment_app import pinned_context
from steelyard.cdk.nodejs import cdk_command, node_folder, npm_command, with_packaged_node
from steelyard.environments.files import environment_names, load_environment

ROOT = Path(__file__).parents[2]

# What would make a difference if the app looked at it.
WITHOUT_CREDENTIALS = {"PYTHONHASHSEED": "0", "TZ": "UTC"}
WITH_CREDENTIALS = {
    "PYTHONHASHSEED": "1",
    "TZ": "Pacific/Auckland",
    "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
    "AWS_SECRET_ACCESS_KEY": "none",
    "AWS_REGION": "eu-west-1",
    "CDK_DEFAULT_ACCOUNT": "999999999999",
    "CDK_DEFAULT_REGION": "eu-west-1",
}


def clean(**variables: str) -> dict[str, str]:
    """This process's environment without anything of AWS or the CDK, and with some variables."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "CDK_"))}
    return {**with_packaged_node(kept), "AWS_EC2_METADATA_DISABLED": "true", **variables}


def run_app(outdir: Path, *, context: dict[str, str], **variables: str) -> subprocess.CompletedProcess[str]:
    """``python app.py``, told its context as the CDK command line tells it."""
    environment = clean(CDK_OUTDIR=str(outdir), CDK_CONTEXT_JSON=json.dumps(context), **variables)
    command = [sys.executable, "app.py"]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def digests(outdir: Path) -> dict[str, str]:
    """Hash of each template and list of assets in a cloud assembly."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(outdir.glob("*.json"))
        if path.name.endswith((".template.json", ".assets.json"))
    }


def test_synthesis_is_deterministic_offline_and_the_same_through_the_command_line(tmp_path: Path) -> None:
    context = {"environment": "all", "release": "sample"}
    for name, variables in (("a", WITHOUT_CREDENTIALS), ("b", WITH_CREDENTIALS)):
        done = run_app(tmp_path / name, context=context, **variables)
        assert done.returncode == 0, done.stderr
    command = [*cdk_command(), "synth", "--quiet", "-c", "environment=all", "--output", str(tmp_path / "c")]
    done = subprocess.run(command, cwd=ROOT, env=clean(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first = digests(tmp_path / "a")
    parts = {name.split(".")[0] for name in first}
    assert {part.split("-")[1] for part in parts} == set(environment_names())
    assert len([name for name in first if name.endswith(".template.json")]) == len(parts)
    assert digests(tmp_path / "b") == first
    assert digests(tmp_path / "c") == first


def test_dev_and_the_sample_are_meant_when_nothing_is_said(tmp_path: Path) -> None:
    done = run_app(tmp_path, context={})
    assert done.returncode == 0, done.stderr
    dev = load_environment("dev")
    parts = ("Artifacts", "Build", "Observability", *(f"Endpoint-{name}" for name in dev.endpoints))
    assert {path.name for path in tmp_path.glob("*.template.json")} == {
        f"Steelyard-dev-{each}.template.json" for each in parts
    }
    template = json.loads((tmp_path / "Steelyard-dev-Endpoint-chat.template.json").read_text())
    assert template["Outputs"]["Release"]["Value"] == "sample"


def test_a_release_can_be_given_by_its_path(tmp_path: Path) -> None:
    content = json.loads((ROOT / "releases" / "sample.json").read_text())
    content["id"] = "mine"
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(content))
    done = run_app(tmp_path / "out", context={"release": str(path)})
    assert done.returncode == 0, done.stderr
    template = json.loads((tmp_path / "out" / "Steelyard-dev-Endpoint-chat.template.json").read_text())
    assert template["Outputs"]["Release"]["Value"] == "mine"


@pytest.mark.parametrize(
    ("context", "sentences"),
    [
        ({"environment": "none"}, ["there is no environment 'none'", "Known environments: dev, prod, staging."]),
        ({"release": "none"}, ["there is no release 'none'", "Known releases: sample"]),
    ],
)
def test_a_refusal_is_a_sentence(context: dict[str, str], sentences: list[str], tmp_path: Path) -> None:
    done = run_app(tmp_path, context=context)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    for sentence in sentences:
        assert sentence in done.stderr


def cdk(*words: str) -> subprocess.CompletedProcess[str]:
    """The CDK's command line, as a person starts it in the checkout."""
    return subprocess.run([*cdk_command(), *words], cwd=ROOT, env=clean(), capture_output=True, text=True, check=False)


def test_the_command_line_refuses_an_unknown_key_and_synthesizes_nothing(tmp_path: Path) -> None:
    """Otherwise ``cdk deploy -c environmnt=prod`` deploys dev."""
    done = cdk("synth", "--quiet", "-c", "environmnt=prod", "--output", str(tmp_path))
    assert done.returncode != 0
    assert "did you mean environment?" in done.stderr
    assert list(tmp_path.glob("*.template.json")) == []


def test_env_means_environment_on_the_command_line(tmp_path: Path) -> None:
    done = cdk("list", "-c", "env=staging", "-c", "environment=staging", "--output", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert {line.split("-")[1] for line in done.stdout.split()} == {"staging"}


def test_a_release_that_does_not_fit_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    content = json.loads((ROOT / "releases" / "sample.json").read_text())
    content["id"] = "mine"
    content["images"]["decision"]["cpu"]["architecture"] = "arm64"
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(content))
    done = run_app(tmp_path / "out", context={"release": str(path)})
    assert done.returncode == 1
    assert "endpoints.decision: image 'steelyard-dev' is built for arm64" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_command_line_is_the_pinned_one() -> None:
    pinned = json.loads((ROOT / "package.json").read_text())["dependencies"]
    assert pinned == {"aws-cdk": "2.1148.1"}
    locked = json.loads((ROOT / "package-lock.json").read_text())["packages"]["node_modules/aws-cdk"]
    assert locked["version"] == pinned["aws-cdk"]
    assert locked["integrity"].startswith("sha512-")
    done = subprocess.run([*cdk_command(), "--version"], env=clean(), capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == pinned["aws-cdk"]


def test_node_comes_from_pip() -> None:
    folder = node_folder()
    assert folder is not None
    assert Path(sys.prefix) in folder.parents
    done = subprocess.run([*npm_command(), "--version"], env=clean(), capture_output=True, text=True, check=True)
    assert done.stdout.strip()


def test_every_feature_flag_is_pinned() -> None:
    """A new version of the CDK must not change a template: each of its flags has a value, or acts as recommended."""
    (report,) = [
        artifact
        for artifact in json.loads(Path(ours("dev").synth().directory, "manifest.json").read_text())[
            "artifacts"
        ].values()
        if artifact["type"] == "cdk:feature-flag-report"
    ]
    for name, flag in report["properties"]["flags"].items():
        settled = flag.get("unconfiguredBehavesLike", {}).get("v2", False) == flag["recommendedValue"]
        assert "userValue" in flag or settled, name
    # The recommended "weak" needs a function that CloudFormation has only lately, and nothing else knows.
    assert pinned_context()["@aws-cdk/core:defaultCrossStackReferences"] == "strong"

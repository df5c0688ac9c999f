"""Building a release with CodeBuild: what is started, found again, followed, refused, and written."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from accounts import REPOSITORY, SOURCE, Account

from steelyard.aws.session import Aws
from steelyard.releases import codebuild, local
from steelyard.releases.assemble import build_release, matching_release, prompt_versions
from steelyard.releases.checks import State, findings, tag_faults
from steelyard.releases.codebuild import KEY_VARIABLE, WantedBuild, asset_of, run_builds
from steelyard.releases.difference import changes
from steelyard.releases.manifest import ReleaseSource, content_id, load_release
from steelyard.releases.plan import plan_for
from steelyard.releases.tags import tag_images
from steelyard_base.exit_codes import CommandError, ExitCode
from steelyard_constructs.hardware import Hardware

MODEL, IMAGE = "ModelProjectGemma3270m", "ImageProjectCpu"


class Heard:
    """A watcher that remembers."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.states: list[str] = []
        self.notes: list[str] = []

    def line(self, label: str, text: str) -> None:
        self.lines.append(f"{label} | {text}")

    def state(self, label: str, text: str) -> None:
        self.states.append(f"{label}: {text}")

    def note(self, label: str, text: str) -> None:
        self.notes.append(f"{label}: {text}")


@pytest.fixture
def heard() -> Heard:
    return Heard()


def make(aws: Aws, account: Account, heard: Heard, to: Path, **changes: Any) -> Any:
    return build_release(aws, account.order(**changes), heard, folder=to, poll_s=0.05)


def test_a_release_is_built_and_says_what_is_there(aws: Aws, account: Account, heard: Heard, tmp_path: Path) -> None:
    release, path = make(aws, account, heard, tmp_path / "releases", note="the first")
    assert path.name == f"{release.id}.json"
    assert load_release(release.id[:8], folder=path.parent) == release
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    assert release.source == SOURCE
    for role in ("chat", "decision"):
        model = release.model(role)
        (manifest,) = [each for each in objects(account, model.key) if each.endswith("model-manifest.json")]
        assert manifest == f"{model.key}model-manifest.json"
        assert (model.file, model.bytes) == ("tiny.gguf", len("gemma-3-270m"))
    image = release.image("decision", Hardware.CPU)
    assert image.digest in [
        each["imageDigest"] for each in account.client("ecr").list_images(repositoryName=REPOSITORY)["imageIds"]
    ]
    assert image.build is not None
    assert (image.build.base_digest, image.build.interface, image.llama_cpp) == (account.base, "b10429", "b10433")
    tagged = account.client("ecr").batch_get_image(
        repositoryName=REPOSITORY, imageIds=[{"imageTag": f"release-{release.id}-cpu"}]
    )["images"]
    assert [each["imageId"]["imageDigest"] for each in tagged] == [image.digest]
    assert release.image("chat", Hardware.CPU).digest == account.base
    assert [each.model_dump() for each in release.prompts] == prompt_versions()
    assert "model gemma-3-270m | building model" in heard.lines
    assert "image cpu | building image" in heard.lines
    assert {"model gemma-3-270m: done", "image cpu: done"} <= set(heard.states)
    found = list(findings(aws, account.environment(), release, bucket=account.bucket, deep=True))
    assert {each.state for each in found} == {State.OK}
    assert {each.item for each in found} == {
        "model chat (gemma-3-270m)",
        "image chat cpu",
        "image decision cpu",
        "image decision cpu: what it says of itself",
        "image decision cpu: its list of parts",
        "image decision cpu: its tag",
        "image decision cpu: scan",
    }


def objects(account: Account, prefix: str) -> list[str]:
    return [
        each["Key"] for each in account.client("s3").list_objects_v2(Bucket=account.bucket, Prefix=prefix)["Contents"]
    ]


def test_a_second_run_builds_nothing_and_makes_the_same_release(
    aws: Aws, account: Account, heard: Heard, tmp_path: Path
) -> None:
    first, path = make(aws, account, heard, tmp_path / "releases")
    content = path.read_bytes()
    heard.notes.clear()
    second, again = make(aws, account, heard, tmp_path / "releases")
    assert (second, again, again.read_bytes()) == (first, path, content)
    assert [len(account.builds(each)) for each in (MODEL, IMAGE)] == [1, 1]
    assert len([each for each in heard.notes if "was built before, by" in each]) == 2
    plan = plan_for(account.environment())
    assert matching_release(plan, SOURCE, account.bases(), folder=path.parent) == first
    others = [
        (SOURCE.model_copy(update={"commit": "2" * 40}), account.bases()),
        (ReleaseSource(commit=SOURCE.commit, dirty=True), account.bases()),
        (SOURCE, account.bases(digest="sha256:" + "0" * 64)),
    ]
    for source, bases in others:
        assert matching_release(plan, source, bases, folder=path.parent) is None


def test_another_source_is_built_again_and_only_the_image(
    aws: Aws, account: Account, heard: Heard, tmp_path: Path
) -> None:
    first, _ = make(aws, account, heard, tmp_path / "releases")
    other = SOURCE.model_copy(update={"commit": "2" * 40})
    second, _ = make(aws, account, heard, tmp_path / "releases", source=other)
    assert second.id != first.id
    assert second.models == first.models
    assert second.image("decision", Hardware.CPU) != first.image("decision", Hardware.CPU)
    assert [len(account.builds(each)) for each in (MODEL, IMAGE)] == [1, 2]


@pytest.mark.parametrize("lost", ["model", "image", "sbom"])
def test_what_was_built_and_is_gone_is_built_again(
    aws: Aws, account: Account, heard: Heard, tmp_path: Path, lost: str
) -> None:
    release, _ = make(aws, account, heard, tmp_path / "releases")
    image = release.image("decision", Hardware.CPU)
    assert image.build is not None
    if lost == "image":
        account.client("ecr").batch_delete_image(repositoryName=REPOSITORY, imageIds=[{"imageDigest": image.digest}])
    else:
        key = release.model("chat").key + "tiny.gguf" if lost == "model" else image.build.sbom.key
        account.client("s3").delete_object(Bucket=account.bucket, Key=key)
    again, _ = make(aws, account, heard, tmp_path / "releases")
    assert again == release
    assert [len(account.builds(each)) for each in (MODEL, IMAGE)] == ([2, 1] if lost == "model" else [1, 2])


def test_a_failed_build_tells_the_end_of_its_log_and_what_to_do(
    aws: Aws, account: Account, heard: Heard, tmp_path: Path
) -> None:
    account.broken("image").touch()
    with pytest.raises(CommandError, match="the build of image cpu has failed in BUILD") as failed:
        make(aws, account, heard, tmp_path / "releases")
    assert "\n  the compiler says no\n" in failed.value.message
    assert "exit status 7" in failed.value.message
    assert "aws logs tail /aws/codebuild/ImageProjectCpu" in (failed.value.hint or "")
    assert not (tmp_path / "releases").exists()
    account.broken("image").unlink()
    release, _ = make(aws, account, heard, tmp_path / "releases")
    assert release.source == SOURCE
    assert [build["buildStatus"] for build in account.builds(IMAGE)] == ["FAILED", "SUCCEEDED"]
    assert len(account.builds(MODEL)) == 1


def test_what_another_build_makes_of_the_project_is_waited_for(
    aws: Aws, account: Account, heard: Heard, tmp_path: Path
) -> None:
    account.held("image").touch()
    account.client("codebuild").start_build(projectName=account.projects[IMAGE])

    class Releasing(Heard):
        def state(self, label: str, text: str) -> None:
            super().state(label, text)
            if "which builds something else" in text:
                account.held("image").unlink()

    watcher = Releasing()
    make(aws, account, watcher, tmp_path / "releases")
    assert [each for each in watcher.states if "which builds something else" in each]
    assert len(account.builds(IMAGE)) == 2


def command(account: Account, to: Path, *more: str) -> subprocess.Popen[str]:
    words = ["release", "build", "--no-stacks", "--allow-dirty", "--bases", str(account.bases_file()), "--to", str(to)]
    return subprocess.Popen(
        [sys.executable, "-m", "steelyard", *words, *more],
        env={**os.environ, "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_interrupted_the_builds_go_on_and_a_second_run_follows_them(account: Account, tmp_path: Path) -> None:
    account.held("image").touch()
    first = command(account, tmp_path / "releases")
    deadline = time.monotonic() + 120
    while not (account.builds(IMAGE) and account.builds(MODEL)):
        assert first.poll() is None, first.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    first.send_signal(signal.SIGINT)
    _, said = first.communicate(timeout=60)
    assert first.returncode == 130, said
    assert "Traceback" not in said
    (build,) = account.builds(IMAGE)
    assert f"image cpu: continues in CodeBuild as {build['id']}; run this again to follow it" in said
    assert build["buildStatus"] == "IN_PROGRESS"
    assert not (tmp_path / "releases").exists()

    second = command(account, tmp_path / "releases")
    lines = []
    for line in second.stderr or ():
        lines.append(line)
        if "runs already, as" in line:
            account.held("image").unlink(missing_ok=True)
    second.wait(60)
    said = "".join(lines)
    assert second.returncode == 0, said
    assert f"image cpu: runs already, as {build['id']}; following it" in said
    assert [each["id"] for each in account.builds(IMAGE)] == [build["id"]]
    assert len(account.builds(MODEL)) == 1
    assert len(list((tmp_path / "releases").glob("*.json"))) == 1


def test_a_base_that_is_not_in_the_registry_is_refused_before_anything_is_built(
    aws: Aws, account: Account, heard: Heard, tmp_path: Path
) -> None:
    bases = account.bases(digest="sha256:" + "0" * 64)
    with pytest.raises(CommandError, match="the base image for cpu, llama-cpp@sha256:000") as refused:
        make(aws, account, heard, tmp_path, bases=bases)
    assert "not in the registry of account 763104351884" in refused.value.message
    assert (account.builds(MODEL), account.builds(IMAGE)) == ([], [])


def test_a_build_on_another_llama_cpp_than_the_pinned_one_is_refused(
    aws: Aws, account: Account, heard: Heard, tmp_path: Path
) -> None:
    with pytest.raises(CommandError, match="says IMAGE_LLAMA_CPP b10433, and the file of base images has b10000"):
        make(aws, account, heard, tmp_path / "releases", bases=account.bases(llama_cpp="b10000"))
    assert not (tmp_path / "releases").exists()


def test_an_image_whose_labels_tell_another_base_is_refused(
    aws: Aws, account: Account, heard: Heard, tmp_path: Path
) -> None:
    account.make_project(IMAGE, "image", LABELLED_BASE="sha256:" + "f" * 64)
    with pytest.raises(CommandError, match="no release was written") as refused:
        make(aws, account, heard, tmp_path / "releases")
    assert "the label org.opencontainers.image.base.digest of sha256:" in refused.value.message
    assert not (tmp_path / "releases").exists()


def test_verify_tells_what_is_missing_and_what_differs(
    aws: Aws, account: Account, heard: Heard, tmp_path: Path
) -> None:
    release, path = make(aws, account, heard, tmp_path / "releases")
    s3, model = account.client("s3"), release.model("chat")
    image = release.image("decision", Hardware.CPU)
    assert image.build is not None
    s3.put_object(Bucket=account.bucket, Key=image.build.sbom.key, Body=b"{}")
    # The size and the recorded sha256 stay; only the bytes tell.
    content = b"gemma-3-270M"
    recorded = model.objects()["tiny.gguf"][1]
    s3.put_object(Bucket=account.bucket, Key=f"{model.key}tiny.gguf", Body=content, Metadata={"sha256": recorded})
    done = verify(path)
    said = json.loads(done.stdout)
    assert done.returncode == 1
    states = {each["item"]: each["state"] for each in said["findings"]}
    assert states["image decision cpu: its list of parts"] == "differs"
    assert states["model chat (gemma-3-270m)"] == "ok"
    deep = {each["item"]: each for each in json.loads(verify(path, "--deep").stdout)["findings"]}
    assert deep["model chat (gemma-3-270m)"]["state"] == "differs"
    s3.delete_object(Bucket=account.bucket, Key=f"{model.key}tiny.gguf")
    account.client("ecr").batch_delete_image(repositoryName=REPOSITORY, imageIds=[{"imageDigest": image.digest}])
    done = verify(path)
    states = {each["item"]: each["state"] for each in json.loads(done.stdout)["findings"]}
    assert states["model chat (gemma-3-270m)"] == "missing"
    assert states["image decision cpu"] == "missing"
    assert states["image chat cpu"] == "ok"
    assert "parts of release" in done.stderr
    assert "Traceback" not in done.stderr


def verify(path: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "steelyard", "release", "verify", str(path), "--json", *more],
        capture_output=True,
        text=True,
    )


def test_a_build_that_exports_too_little_is_refused(aws: Aws, account: Account, heard: Heard, tmp_path: Path) -> None:
    order = account.order()
    definition = account.client("codebuild").batch_get_projects(names=[account.projects[IMAGE]])["projects"][0]
    spec = definition["source"]["buildspec"].replace("IMAGE_SBOM_KEY, ", "")
    source = {**definition["source"], "buildspec": spec}
    account.client("codebuild").update_project(name=account.projects[IMAGE], source=source)
    with pytest.raises(CommandError, match="did not export IMAGE_SBOM_KEY"):
        build_release(aws, dataclasses.replace(order), heard, folder=tmp_path / "releases", poll_s=0.05)


def test_on_this_machine_the_same_release_is_built(aws: Aws, account: Account, heard: Heard, tmp_path: Path) -> None:
    there, _ = make(aws, account, heard, tmp_path / "there")
    here, _ = build_release(aws, account.order(), heard, here=True, folder=tmp_path / "here")
    assert here == there
    assert [len(account.builds(each)) for each in (MODEL, IMAGE)] == [1, 1]
    account.broken("model").touch()
    with pytest.raises(CommandError, match="the build of model gemma-3-270m on this machine has failed") as failed:
        build_release(aws, account.order(), heard, here=True, folder=tmp_path / "broken")
    assert "\n  the compiler says no\n" in failed.value.message
    assert not (tmp_path / "broken").exists()


OTHER = "d" * 64


@pytest.mark.parametrize("here", [False, True])
def test_projects_of_another_checkout_are_refused_before_anything_is_built(
    aws: Aws, account: Account, heard: Heard, tmp_path: Path, here: bool
) -> None:
    """A stashed tree that was deployed, a commit that came in between, another operator: the source is another."""
    account.deploy_source(OTHER)
    with pytest.raises(CommandError, match="has other source than model gemma-3-270m is to be built from") as refused:
        build_release(aws, account.order(), heard, here=here, folder=tmp_path / "releases", poll_s=0.05)
    assert f"{OTHER}, not {account.asset}" in refused.value.message
    assert refused.value.code is ExitCode.REFUSED
    assert "--no-stacks" in (refused.value.hint or "")
    assert (account.builds(MODEL), account.builds(IMAGE)) == ([], [])
    assert heard.lines == []
    assert not (tmp_path / "releases").exists()


def test_a_deployment_between_the_look_and_the_start_is_refused(
    aws: Aws, account: Account, heard: Heard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The build has our key then, and other source: neither this run nor the next may take it for ours."""
    honest = codebuild.build_key

    def late(definition: Any, wanted: codebuild.WantedBuild) -> str:
        key = honest(definition, wanted)
        account.deploy_source(OTHER)
        return key

    monkeypatch.setattr(codebuild, "build_key", late)
    revision = (("SOURCE_REVISION", SOURCE.commit),)
    first = WantedBuild(label="image cpu", project=account.projects[IMAGE], variables=revision, asset=account.asset)
    with pytest.raises(CommandError, match=f"the build ImageProjectCpu.* has other source.*: {OTHER}, not"):
        run_builds(aws, [first], heard, poll_s=0.05)
    assert any("continues in CodeBuild" in each for each in heard.notes)
    monkeypatch.undo()
    account.deploy_source(account.asset)
    deadline = time.monotonic() + 60
    while account.builds(IMAGE)[0]["buildStatus"] == "IN_PROGRESS":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    release, _ = make(aws, account, heard, tmp_path / "releases")
    assert release.source == SOURCE
    assert [asset_of(each) for each in account.builds(IMAGE)] == [OTHER, account.asset]


def test_a_checkout_that_changed_is_not_built_here_under_the_tag_of_what_was_deployed(
    aws: Aws, account: Account, heard: Heard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "asset_hash", lambda _root: OTHER)
    with pytest.raises(CommandError, match=r"this checkout, .*, has other source than model gemma") as refused:
        build_release(aws, account.order(), heard, here=True, folder=tmp_path / "releases")
    assert f"{OTHER}, not {account.asset}" in refused.value.message
    assert heard.lines == []
    assert not (tmp_path / "releases").exists()


def test_accepted_critical_findings_reach_the_build_its_key_and_the_release(
    aws: Aws, account: Account, heard: Heard, tmp_path: Path
) -> None:
    accepted, _ = make(aws, account, heard, tmp_path / "releases", allow_critical=True)
    plain, _ = make(aws, account, heard, tmp_path / "releases")
    first, second = (variables(build) for build in account.builds(IMAGE))
    assert first["IMAGE_FLAGS"] == "--allow-critical"
    assert "IMAGE_FLAGS" not in second
    assert first[KEY_VARIABLE] != second[KEY_VARIABLE]
    assert len(account.builds(MODEL)) == 1
    facts = [release.image("decision", Hardware.CPU).build for release in (accepted, plain)]
    assert [each.critical_accepted for each in facts if each] == [True, False]
    assert [(each.what, each.after) for each in changes(plain, accepted)] == [("build.critical_accepted", "true")]
    # What is shown of either has its id.
    for release in (accepted, plain):
        assert content_id(release.model_dump(mode="json")) == release.id


def variables(build: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in build["environment"]["environmentVariables"]}


def test_the_commands_hand_the_flag_on(account: Account, tmp_path: Path) -> None:
    done = command(account, tmp_path / "releases", "--allow-critical")
    said, _ = done.communicate(timeout=120)
    assert done.returncode == 0
    assert "critical findings accepted" in " ".join(said.split())
    assert [variables(each)["IMAGE_FLAGS"] for each in account.builds(IMAGE)] == ["--allow-critical"]


def test_a_build_on_this_machine_ends_with_the_command(account: Account, tmp_path: Path) -> None:
    account.held("model").touch()
    process = command(account, tmp_path / "releases", "--local")
    for line in process.stderr or ():
        if "model gemma-3-270m | building model" in line:
            break
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert "Traceback" not in said
    assert not (tmp_path / "releases").exists()
    assert [
        path for path in Path("/proc").glob("[0-9]*/cmdline") if str(account.held("model")).encode() in read(path)
    ] == []


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_an_image_of_a_release_keeps_its_tag(aws: Aws, account: Account, heard: Heard, tmp_path: Path) -> None:
    release, _ = make(aws, account, heard, tmp_path)
    environment = account.environment()
    tag_images(aws, environment, release)  # as often as you like
    untagged = release.model_copy(update={"id": "0" * 64})
    (fault,) = tag_faults(aws, environment, untagged, Hardware.CPU)
    digest = release.image("decision", Hardware.CPU).digest
    assert fault == f"the tag release-{untagged.id}-cpu of {digest} is missing"
    other = json.dumps({"schemaVersion": 2, "other": True})
    account.client("ecr").put_image(
        repositoryName=REPOSITORY, imageManifest=other, imageTag=f"release-{untagged.id}-cpu"
    )
    with pytest.raises(CommandError, match=r"the tag release-0+-cpu of \S+ is on sha256:"):
        tag_images(aws, environment, untagged)
    (fault,) = tag_faults(aws, environment, untagged, Hardware.CPU)
    assert "differs: it is on sha256:" in fault

"""ImageBuild: a project that pushes one image, named after what it is made of."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import aws_cdk as cdk
import pytest
import yaml
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3_assets as s3_assets
from aws_cdk.assertions import Template

from steelyard.build_programs.image import from_environment
from steelyard_base.exit_codes import CommandError
from steelyard_constructs.artifact_store import ArtifactStore
from steelyard_constructs.build_project import BuildProps
from steelyard_constructs.hardware import Architecture
from steelyard_constructs.image_build import ImageBuild
from steelyard_constructs.image_repository import ImageRepository
from steelyard_constructs.images import ImageReference
from steelyard_constructs.refusal import Refused

BUILDSPEC = Path("images/image.buildspec.yml")
X86 = ImageReference.dlc(digest="sha256:" + "1" * 64)
ARM = ImageReference.dlc(digest="sha256:" + "2" * 64, architecture=Architecture.ARM64)
OURS = ImageReference(repository="base", digest="sha256:" + "3" * 64, account="111122223333", region="eu-west-1")


def make(
    stack: cdk.Stack,
    *,
    base: ImageReference = X86,
    dockerfile: str = "images/cpu.Dockerfile",
    llama_cpp: str = "b10433",
    encryption_key: kms.IKey | None = None,
) -> ImageBuild:
    repository = ImageRepository(stack, "Repository", removal_policy=cdk.RemovalPolicy.RETAIN).repository
    source = s3_assets.Asset(stack, "Source", path="models")
    store = ArtifactStore(stack, "Store", removal_policy=cdk.RemovalPolicy.RETAIN, encryption_key=encryption_key)
    return ImageBuild(
        stack,
        "Image",
        repository=repository,
        artifacts=store.bucket,
        base=base,
        llama_cpp=llama_cpp,
        dockerfile=dockerfile,
        props=BuildProps(source=source, buildspec=BUILDSPEC),
    )


def project(stack: cdk.Stack) -> dict[str, Any]:
    (found,) = Template.from_stack(stack).find_resources("AWS::CodeBuild::Project").values()
    return found["Properties"]


def variables(stack: cdk.Stack) -> dict[str, Any]:
    return {variable["Name"]: variable["Value"] for variable in project(stack)["Environment"]["EnvironmentVariables"]}


def test_no_finding_of_cdk_nag_or_cfn_lint(stack, at_root, nag_findings, lint_findings):
    make(stack)
    assert nag_findings(stack) == []
    assert lint_findings(stack) == []


@pytest.mark.parametrize(
    ("base", "type_", "image"),
    [(X86, "LINUX_CONTAINER", "amazonlinux-x86_64"), (ARM, "ARM_CONTAINER", "amazonlinux-aarch64")],
)
def test_it_builds_on_the_architecture_of_its_base(stack, at_root, base, type_, image):
    make(stack, base=base)
    environment = project(stack)["Environment"]
    assert environment["Type"] == type_
    assert image in environment["Image"]
    assert environment["PrivilegedMode"] is True


def test_the_base_is_named_by_digest_in_its_own_registry(stack, at_root):
    make(stack, base=OURS)
    found = variables(stack)
    assert found["BASE_REGION"] == "eu-west-1"
    image = "".join(part if isinstance(part, str) else "amazonaws.com" for part in found["BASE_IMAGE"]["Fn::Join"][1])
    assert image == f"111122223333.dkr.ecr.eu-west-1.amazonaws.com/base@sha256:{'3' * 64}"


def test_the_published_base_comes_from_the_registry_of_the_region(at_root):
    stack = cdk.Stack(cdk.App(), "Stack", env=cdk.Environment(account="111122223333", region="eu-west-1"))
    make(stack)
    assert "763104351884.dkr.ecr.eu-west-1." in json.dumps(variables(stack)["BASE_IMAGE"])


def test_the_tag_follows_what_the_image_is_made_of(at_root):
    def tag(**arguments: Any) -> str:
        return make(cdk.Stack(cdk.App(), "Stack"), **arguments).tag

    assert tag() == tag()
    assert tag().startswith("cpu-")
    tags = [
        tag(),
        tag(base=OURS),
        tag(llama_cpp="b1"),
        tag(dockerfile="other/cpu.Dockerfile"),
        tag(dockerfile="images/cuda.Dockerfile"),
    ]
    assert len(set(tags)) == len(tags)


def test_the_role_pulls_the_base_and_pushes_the_image(stack, at_root, allowed):
    make(stack, base=OURS)
    resources: dict[str, set[str]] = {}
    for action, resource in allowed(stack):
        resources.setdefault(action, set()).add(resource)
    pull = {"ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"}
    push = {"ecr:CompleteLayerUpload", "ecr:InitiateLayerUpload", "ecr:PutImage", "ecr:UploadLayerPart"}
    assert set(resources) == {
        "ecr:GetAuthorizationToken",
        "logs:CreateLogStream",
        "logs:PutLogEvents",
        "s3:GetObject",
        "s3:GetObjectVersion",
        "s3:PutObject",
        "ecr:DescribeImageScanFindings",
        "ecr:DescribeRepositories",
        *pull,
        *push,
    }
    assert resources["ecr:GetAuthorizationToken"] == {"*"}
    wild = {resource for action in resources for resource in resources[action] if "*" in resource and resource != "*"}
    assert all("/images/*" in resource for resource in wild)
    assert resources["s3:PutObject"] == wild
    for action in push | {"ecr:DescribeImageScanFindings", "ecr:DescribeRepositories"}:
        (resource,) = resources[action]
        assert "Repository" in resource
    for action in pull:
        assert len(resources[action]) == 2
        assert any(":ecr:eu-west-1:111122223333:repository/base" in resource for resource in resources[action])


def test_the_buildspec_is_that_of_images_and_uses_the_projects_variables(stack, at_root):
    make(stack)
    text = project(stack)["Source"]["BuildSpec"]
    assert text == (at_root / BUILDSPEC).read_text(encoding="utf-8")
    spec = yaml.safe_load(text)
    assert set(spec["env"]["exported-variables"]) == {
        *("IMAGE_DIGEST", "IMAGE_URI", "IMAGE_MEDIA_TYPE", "IMAGE_BASE_DIGEST", "IMAGE_LLAMA_CPP", "IMAGE_INTERFACE"),
        *("IMAGE_SBOM_KEY", "IMAGE_SBOM_SHA256"),
    }
    assert {phase["on-failure"] for phase in spec["phases"].values()} == {"ABORT"}
    # Every variable of the project is one that the program takes, and it misses none.
    given = dict.fromkeys(variables(stack), "x") | {"AWS_REGION": "eu-west-1"}
    recipe, target = from_environment(given)
    assert {*asdict(recipe).values(), *asdict(target).values()} == {"x", "", "eu-west-1"}
    with pytest.raises(CommandError, match=r"variables of the build are missing: ARTIFACT_BUCKET, BASE_IMAGE, .*"):
        from_environment({})


def test_the_list_of_what_is_in_an_image_is_never_overwritten(stack, at_root):
    make(stack)
    (policy,) = [
        each["Properties"]["PolicyDocument"]["Statement"]
        for name, each in Template.from_stack(stack).find_resources("AWS::IAM::Policy").items()
        if "ImageRole" in name
    ]
    by_sid = {statement["Sid"]: statement for statement in policy}
    refused = by_sid["NeverOverwrite"]
    assert (refused["Effect"], refused["Action"]) == ("Deny", "s3:PutObject")
    assert refused["Condition"] == {"Null": {"s3:if-none-match": "true"}}
    assert refused["Resource"] == by_sid["WriteList"]["Resource"]


def test_the_role_may_use_the_key_of_the_bucket(stack, at_root, allowed):
    make(stack, encryption_key=kms.Key(stack, "Key", enable_key_rotation=True))
    assert {"kms:Decrypt", "kms:GenerateDataKey"} <= {action for action, _ in allowed(stack)}


@pytest.mark.parametrize("dockerfile", ["", "/etc/Dockerfile", "../Dockerfile"])
def test_a_dockerfile_outside_the_source_is_refused(stack, at_root, dockerfile):
    with pytest.raises(Refused, match="is not inside the source"):
        make(stack, dockerfile=dockerfile)

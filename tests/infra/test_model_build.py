"""ModelBuild: a project that publishes one model, and a role that can do that and nothing more."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import aws_cdk as cdk
import pytest
import yaml
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3_assets as s3_assets
from aws_cdk.assertions import Template

from steelyard_constructs.artifact_store import ArtifactStore
from steelyard_constructs.build_project import BuildProps
from steelyard_constructs.model_build import ModelBuild
from steelyard_constructs.refusal import Refused

BUILDSPEC = Path("images/model.buildspec.yml")


@pytest.fixture
def build(stack: cdk.Stack, at_root: Path) -> ModelBuild:
    store = ArtifactStore(stack, "Store", removal_policy=cdk.RemovalPolicy.RETAIN)
    source = s3_assets.Asset(stack, "Source", path="models")
    return ModelBuild(
        stack,
        "Model",
        artifacts=store.bucket,
        model="gemma-3-270m",
        props=BuildProps(source=source, buildspec=BUILDSPEC),
    )


def project(stack: cdk.Stack) -> dict[str, Any]:
    (found,) = Template.from_stack(stack).find_resources("AWS::CodeBuild::Project").values()
    return found["Properties"]


def test_no_finding_of_cdk_nag_or_cfn_lint(stack, build, nag_findings, lint_findings):
    assert nag_findings(stack) == []
    assert lint_findings(stack) == []


def test_no_finding_when_the_bucket_is_another_stacks(at_root, nag_findings):
    app = cdk.App()
    owner, user = cdk.Stack(app, "Artifacts"), cdk.Stack(app, "Build")
    store = ArtifactStore(owner, "Store", removal_policy=cdk.RemovalPolicy.RETAIN)
    ModelBuild(
        user,
        "Model",
        artifacts=store.bucket,
        model="gemma-3-270m",
        props=BuildProps(source=s3_assets.Asset(user, "Source", path="models"), buildspec=BUILDSPEC),
    )
    Template.from_stack(user)
    assert nag_findings(app) == []
    assert "Fn::ImportValue" in json.dumps(Template.from_stack(user).to_json())


def test_one_unprivileged_build_at_a_time_with_a_limit(stack, build):
    found = project(stack)
    assert found["ConcurrentBuildLimit"] == 1
    assert (found["TimeoutInMinutes"], found["QueuedTimeoutInMinutes"]) == (120, 60)
    assert found["Environment"]["PrivilegedMode"] is False
    assert found["Environment"]["Type"] == "LINUX_CONTAINER"
    assert re.fullmatch(r"aws/codebuild/amazonlinux-x86_64-standard:\d+\.\d+", found["Environment"]["Image"])
    assert found["Artifacts"] == {"Type": "NO_ARTIFACTS"}
    assert found["Source"]["Type"] == "S3"


def test_the_buildspec_is_that_of_images_and_uses_the_projects_variables(stack, build, at_root):
    found = project(stack)
    assert found["Source"]["BuildSpec"] == (at_root / BUILDSPEC).read_text(encoding="utf-8")
    spec = yaml.safe_load(found["Source"]["BuildSpec"])
    assert spec["env"]["exported-variables"] == ["MODEL_KEY", "MODEL_MANIFEST_SHA256"]
    given = {variable["Name"] for variable in found["Environment"]["EnvironmentVariables"]}
    assert given == {"MODEL", "ARTIFACT_BUCKET"}
    commands = json.dumps(spec["phases"])
    assert all(f"${name}" in commands for name in given)
    assert {phase["on-failure"] for phase in spec["phases"].values()} == {"ABORT"}


def test_the_log_group_is_the_stacks(stack, build):
    (name,) = Template.from_stack(stack).find_resources("AWS::Logs::LogGroup")
    assert project(stack)["LogsConfig"]["CloudWatchLogs"] == {"GroupName": {"Ref": name}, "Status": "ENABLED"}


def test_the_role_publishes_this_model_and_nothing_else(stack, build, allowed):
    resources: dict[str, set[str]] = {}
    for action, resource in allowed(stack):
        resources.setdefault(action, set()).add(resource)
    assert set(resources) == {
        "logs:CreateLogStream",
        "logs:PutLogEvents",
        "s3:AbortMultipartUpload",
        "s3:GetObject",
        "s3:GetObjectVersion",
        "s3:ListBucket",
        "s3:PutObject",
    }
    assert all("*" not in action for action in resources)
    (written,) = resources["s3:PutObject"]
    assert "/models/gemma-3-270m/*" in written
    assert "StoreBucket" in written
    # It reads the source, which is one object of another bucket, and what it wrote.
    assert resources["s3:GetObject"] == {written, *resources["s3:GetObjectVersion"]}
    (source,) = resources["s3:GetObjectVersion"]
    assert "*" not in source


def test_the_role_lists_its_own_model_and_nothing_else(stack, build):
    (listing,) = [
        statement
        for policy in Template.from_stack(stack).find_resources("AWS::IAM::Policy").values()
        for statement in policy["Properties"]["PolicyDocument"]["Statement"]
        if statement["Action"] == "s3:ListBucket"
    ]
    assert listing["Condition"] == {
        "StringEquals": {"aws:ResourceAccount": {"Ref": "AWS::AccountId"}},
        "StringLike": {"s3:prefix": "models/gemma-3-270m/*"},
    }


def test_the_role_cannot_replace_an_object(stack, build):
    (denied,) = [
        statement
        for policy in Template.from_stack(stack).find_resources("AWS::IAM::Policy").values()
        for statement in policy["Properties"]["PolicyDocument"]["Statement"]
        if statement["Effect"] == "Deny"
    ]
    assert denied["Action"] == "s3:PutObject"
    assert denied["Condition"] == {
        "Null": {"s3:if-none-match": "true"},
        "Bool": {"s3:ObjectCreationOperation": "true"},
    }


def test_it_may_use_the_key_of_the_bucket_to_write(stack, at_root, allowed, nag_findings):
    key = kms.Key(stack, "Key", enable_key_rotation=True)
    store = ArtifactStore(stack, "Store", removal_policy=cdk.RemovalPolicy.RETAIN, encryption_key=key)
    source = s3_assets.Asset(stack, "Source", path="models")
    ModelBuild(
        stack,
        "Model",
        artifacts=store.bucket,
        model="gemma-3-270m",
        props=BuildProps(source=source, buildspec=BUILDSPEC, encryption_key=key),
    )
    assert {action for action, _ in allowed(stack) if action.startswith("kms:")} == {
        "kms:Decrypt",
        "kms:DescribeKey",
        "kms:Encrypt",
        "kms:GenerateDataKey",
    }
    assert nag_findings(stack) == []


@pytest.mark.parametrize("model", ["", "a/b", "a*"])
def test_a_model_that_cannot_be_part_of_a_key_is_refused(stack, at_root, model):
    store = ArtifactStore(stack, "Store", removal_policy=cdk.RemovalPolicy.RETAIN)
    source = s3_assets.Asset(stack, "Source", path="models")
    with pytest.raises(Refused, match="cannot be part of a key"):
        ModelBuild(
            stack, "Model", artifacts=store.bucket, model=model, props=BuildProps(source=source, buildspec=BUILDSPEC)
        )


@pytest.mark.parametrize(("text", "message"), [(None, "does not exist"), ("version: 0.1\n", "no line `version: 0.2`")])
def test_an_unusable_buildspec_is_refused(stack, at_root, tmp_path, text, message):
    path = tmp_path / "buildspec.yml"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    store = ArtifactStore(stack, "Store", removal_policy=cdk.RemovalPolicy.RETAIN)
    source = s3_assets.Asset(stack, "Source", path="models")
    with pytest.raises(Refused, match=message):
        ModelBuild(
            stack,
            "Model",
            artifacts=store.bucket,
            model="gemma-3-270m",
            props=BuildProps(source=source, buildspec=path),
        )

"""Endpoints deployed by CloudFormation: created, changed under traffic, rolled back, deleted."""

from __future__ import annotations

import io
import json
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import echo_container
import pytest
from endpoint_template import (
    BUCKET,
    CHAT_IMAGE,
    REPOSITORY,
    delete,
    deploy,
    endpoint_template,
    image_uri,
    reasons,
)

from conftest import Furnished, wait_until

DECISION = {
    "decision": {
        "id": "a",
        "state": "The parcel never arrived.",
        "question": "Which queue?",
        "options": [{"id": "refund", "description": "money back"}, {"id": "other", "description": "anything else"}],
    }
}


@contextmanager
def traffic(furnished: Furnished, name: str, body: Any = None) -> Iterator[list[Any]]:
    """Invoke an endpoint without a pause; a failed invocation fails the test."""
    answers: list[Any] = []
    failures: list[str] = []
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            try:
                answers.append(furnished.invoke(name, body))
            except Exception as error:
                failures.append(repr(error))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield answers
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert answers
    assert failures == []


def resources_of(furnished: Furnished, name: str) -> dict[str, str]:
    listed = furnished.cloudformation.describe_stack_resources(StackName=name)["StackResources"]
    return {each["LogicalResourceId"]: each["PhysicalResourceId"] for each in listed}


def test_our_server_decides_behind_an_endpoint(furnished: Furnished, stack: Callable[..., str], name: str) -> None:
    assert stack(image=furnished.decision, prefix="tiny/") == "CREATE_COMPLETE"
    described = furnished.sagemaker.describe_endpoint(EndpointName=name)
    (variant,) = described["ProductionVariants"]
    assert described["EndpointStatus"] == "InService"
    assert (variant["VariantName"], variant["CurrentInstanceCount"]) == ("primary", 1)
    assert variant["DeployedImages"][0]["ResolvedImage"] == furnished.decision
    assert furnished.invoke(name, DECISION)["result"]["option_ids"] == ["refund", "other"]


def test_changed_variable_replaces_model_and_config_under_traffic(
    furnished: Furnished, stack: Callable[..., str], name: str
) -> None:
    assert stack(image=furnished.decision, prefix="tiny/") == "CREATE_COMPLETE"
    before = resources_of(furnished, name)
    with traffic(furnished, name, DECISION) as answers:
        changed = {"STEELYARD_MODEL_ID": "second"}
        assert stack(image=furnished.decision, prefix="tiny/", environment=changed) == "UPDATE_COMPLETE"
    after = resources_of(furnished, name)
    assert {key for key in before if before[key] != after[key]} == {"Model", "Config"}
    assert [answer["result"]["model"]["id"] for answer in (answers[0], furnished.invoke(name, DECISION))] == [
        "model",
        "second",
    ]
    # The old ones are gone, with the old process.
    assert {model["ModelArn"] for model in furnished.sagemaker.list_models(NameContains=name)["Models"]} == {
        after["Model"]
    }
    configs = furnished.sagemaker.list_endpoint_configs(NameContains=name)["EndpointConfigs"]
    assert {config["EndpointConfigArn"] for config in configs} == {after["Config"]}


def test_no_change_changes_nothing(furnished: Furnished, stack: Callable[..., str], name: str) -> None:
    assert stack() == "CREATE_COMPLETE"
    processes = furnished.cloud.processes()
    assert stack() == "UNCHANGED"
    assert furnished.cloud.processes() == processes


@pytest.mark.parametrize(
    "change",
    [
        {"image": "new"},
        {"prefix": "tiny/"},
        {"environment": {"VERSION": "2"}},
        {"variant": {"InstanceType": "ml.c6i.xlarge"}},
        {"variant": {"ContainerStartupHealthCheckTimeoutInSeconds": 120}},
    ],
    ids=["image", "model", "environment", "instance type", "timeout"],
)
def test_each_change_is_served_without_a_failed_request(
    furnished: Furnished, stack: Callable[..., str], name: str, change: dict[str, Any]
) -> None:
    given = {"environment": {"VERSION": "1", "MODEL_FOLDER": "/opt/ml/model"}}
    assert stack(**given) == "CREATE_COMPLETE"
    config = furnished.sagemaker.describe_endpoint(EndpointName=name)["EndpointConfigName"]
    if change.get("image"):
        change = {"image": furnished.image(command=[sys.executable, echo_container.__file__])}
    with traffic(furnished, name):
        assert stack(**{**given, **change}) == "UPDATE_COMPLETE"
    described = furnished.sagemaker.describe_endpoint(EndpointName=name)
    assert described["EndpointConfigName"] != config
    assert "FailureReason" not in described
    if "image" in change:
        assert described["ProductionVariants"][0]["DeployedImages"][0]["SpecifiedImage"] == change["image"]


def test_instance_pools_are_checked_and_shown(furnished: Furnished, stack: Callable[..., str], name: str) -> None:
    pools = [{"InstanceType": "ml.g6e.xlarge", "Priority": 2}, {"InstanceType": "ml.g6.xlarge", "Priority": 1}]
    routing = {"RoutingConfig": {"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"}}
    both = {"InstancePools": pools, **routing}
    assert stack(variant=both) == "ROLLBACK_COMPLETE"
    assert "exactly one of InstanceType and InstancePools" in reasons(furnished.cloudformation, name)
    assert delete(furnished.cloudformation, name) == "DELETE_COMPLETE"
    assert stack(variant={**both, "InstanceType": {"Ref": "AWS::NoValue"}}) == "CREATE_COMPLETE"
    (variant,) = furnished.sagemaker.describe_endpoint(EndpointName=name)["ProductionVariants"]
    assert variant["InstancePools"] == [
        {"InstanceType": "ml.g6e.xlarge", "CurrentInstanceCount": 0},
        {"InstanceType": "ml.g6.xlarge", "CurrentInstanceCount": 1},
    ]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"environment": {"EXIT_STATUS": "1"}}, "did not pass the ping health check"),
        ({"image": "decision", "prefix": "broken/"}, "did not pass the ping health check"),
        ({"prefix": "nothing-here/"}, "Could not find model data"),
        ({"prefix": "tiny/", "allowed_prefix": "small/"}, "has permissions to download the model"),
        ({"image": image_uri(f"sha256:{'0' * 64}")}, "not found"),
        ({"image": "public.ecr.aws/deep-learning-containers/llama-cpp:latest"}, "non-ECR image"),
        ({"image": "other/decision"}, "ecr:BatchGetImage"),
        ({"image": "oci"}, "Unsupported manifest media type application/vnd.oci.image.manifest.v1+json"),
        (
            {"image": CHAT_IMAGE, "prefix": "tiny/", "variant": {"InstanceType": "ml.c7g.large"}},
            "did not pass the ping",
        ),
        ({"image": CHAT_IMAGE.replace("llama-cpp@", "llama-cpp-arm64@"), "prefix": "tiny/"}, "did not pass the ping"),
    ],
    ids=[
        "broken image",
        "broken model",
        "no model",
        "other prefix",
        "no such image",
        "public image",
        "repository",
        "an image in OCI's format",
        "the x86 container on Arm processors",
        "the Arm container on x86 processors",
    ],
)
def test_what_cannot_start_rolls_back_and_the_old_version_serves(
    furnished: Furnished, stack: Callable[..., str], name: str, change: dict[str, Any], reason: str
) -> None:
    given = {"environment": {"VERSION": "1"}}
    assert stack(**given) == "CREATE_COMPLETE"
    before, processes = resources_of(furnished, name), furnished.cloud.processes()
    if change.get("image") == "decision":
        change = {**change, "image": furnished.decision}
    if change.get("image") == "other/decision":
        change = {"image": _image_of_another_repository(furnished)}
    if change.get("image") == "oci":
        change = {"image": _image_in_ocis_format(furnished)}
    with traffic(furnished, name):
        assert stack(**{**given, **change}) == "UPDATE_ROLLBACK_COMPLETE"
    assert reason in reasons(furnished.cloudformation, name)
    assert furnished.invoke(name)["version"] == "1"
    assert resources_of(furnished, name) == before
    assert furnished.cloud.processes() == processes
    assert furnished.sagemaker.describe_endpoint(EndpointName=name)["EndpointStatus"] == "InService"
    # And the next good change goes through.
    assert stack(environment={"VERSION": "3"}) == "UPDATE_COMPLETE"
    assert furnished.invoke(name)["version"] == "3"


def test_first_deploy_that_fails_leaves_nothing(furnished: Furnished, stack: Callable[..., str], name: str) -> None:
    processes = furnished.cloud.processes()
    assert stack(environment={"EXIT_STATUS": "1"}) == "ROLLBACK_COMPLETE"
    assert _left(furnished, name) == []
    assert furnished.cloud.processes() == processes


def test_delete_leaves_nothing(furnished: Furnished, stack: Callable[..., str], name: str) -> None:
    processes = furnished.cloud.processes()
    assert stack() == "CREATE_COMPLETE"
    furnished.invoke(name)
    assert len(furnished.cloud.processes()) == len(processes) + 1
    assert delete(furnished.cloudformation, name) == "DELETE_COMPLETE"
    assert _left(furnished, name) == []
    assert furnished.cloud.processes() == processes
    assert not (furnished.cloud.options.home / "endpoints" / name).exists()


def test_log_group_that_nobody_owns_stays_as_on_aws(furnished: Furnished, stack: Callable[..., str], name: str) -> None:
    assert stack() == "CREATE_COMPLETE"
    furnished.invoke(name)
    assert delete(furnished.cloudformation, name) == "DELETE_COMPLETE"
    logs = furnished.cloud.client("logs")
    group = f"/aws/sagemaker/Endpoints/{name}"
    (stream,) = logs.describe_log_streams(logGroupName=group)["logStreams"]
    assert stream["logStreamName"].startswith("primary/i-")
    events = logs.get_log_events(logGroupName=group, logStreamName=stream["logStreamName"])["events"]
    lines = [event["message"] for event in events]
    assert any("runs a process of this machine in place of" in line for line in lines)
    assert any("POST /invocations" in line for line in lines)
    logs.delete_log_group(logGroupName=group)


def test_model_archive_is_unpacked(furnished: Furnished, stack: Callable[..., str], name: str) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        member = tarfile.TarInfo("deep/model.bin")
        member.size = 3
        tar.addfile(member, io.BytesIO(b"abc"))
    furnished.s3.put_object(Bucket=BUCKET, Key="packed/model.tar.gz", Body=archive.getvalue())
    data = {"ModelDataUrl": f"s3://{BUCKET}/packed/model.tar.gz"}
    folder = {"MODEL_FOLDER": "/opt/ml/model"}
    assert stack(data=data, allowed_prefix="packed/", environment=folder) == "CREATE_COMPLETE"
    assert furnished.invoke(name)["model"] == ["deep/model.bin"]


def test_prefix_is_fetched_file_by_file(furnished: Furnished, stack: Callable[..., str], name: str) -> None:
    assert stack(environment={"MODEL_FOLDER": "/opt/ml/model"}) == "CREATE_COMPLETE"
    assert furnished.invoke(name)["model"] == ["a.txt", "sub/b.txt"]


def test_archive_that_leaves_its_folder_is_refused(furnished: Furnished, stack: Callable[..., str], name: str) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo("../outside"), io.BytesIO(b""))
    furnished.s3.put_object(Bucket=BUCKET, Key="evil/model.tar.gz", Body=archive.getvalue())
    data = {"ModelDataUrl": f"s3://{BUCKET}/evil/model.tar.gz"}
    assert stack(data=data, allowed_prefix="evil/") == "ROLLBACK_COMPLETE"
    assert "Failed to extract model data archive" in reasons(furnished.cloudformation, name)


@pytest.mark.parametrize(("granted", "status"), [(True, "CREATE_COMPLETE"), (False, "ROLLBACK_COMPLETE")])
def test_role_needs_the_key_of_its_model(
    furnished: Furnished, stack: Callable[..., str], name: str, granted: bool, status: str
) -> None:
    key = furnished.cloud.client("kms").create_key()["KeyMetadata"]["Arn"]
    encrypted = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": key}
    furnished.s3.put_object(Bucket=BUCKET, Key=f"{name}/a.txt", Body=b"a", **encrypted)
    statement = {"Effect": "Allow", "Action": "kms:Decrypt", "Resource": key}
    grant = {
        "Grant": {
            "Type": "AWS::IAM::Policy",
            "Properties": {
                "PolicyName": "key",
                "PolicyDocument": {"Version": "2012-10-17", "Statement": [statement]},
                "Roles": [{"Ref": "Role"}],
            },
        }
    }
    described = json.loads(
        endpoint_template(name=name, image=furnished.echo, prefix=f"{name}/", more=grant if granted else None)
    )
    described["Resources"]["Model"]["DependsOn"] = ["Grant"] if granted else []
    assert deploy(furnished.cloudformation, name, json.dumps(described)) == status
    assert ("may not kms:Decrypt" in reasons(furnished.cloudformation, name)) is not granted


def test_named_model_cannot_be_replaced(furnished: Furnished, stack: Callable[..., str], name: str) -> None:
    """Why our constructs name neither models nor configurations."""
    named = {
        "Named": {
            "Type": "AWS::SageMaker::Model",
            "Properties": {
                "ModelName": f"{name}-named",
                "ExecutionRoleArn": {"Fn::GetAtt": ["Role", "Arn"]},
                "PrimaryContainer": {"Image": furnished.echo, "Environment": {"A": "1"}},
            },
        }
    }
    assert stack(more=named) == "CREATE_COMPLETE"
    changed = json.loads(json.dumps(named))
    changed["Named"]["Properties"]["PrimaryContainer"]["Environment"]["A"] = "2"
    assert stack(more=changed) == "UPDATE_ROLLBACK_COMPLETE"
    assert "custom-named resource requires replacing" in reasons(furnished.cloudformation, name)


def test_process_that_ends_is_started_anew(furnished: Furnished, stack: Callable[..., str], name: str) -> None:
    assert stack() == "CREATE_COMPLETE"
    with pytest.raises(furnished.runtime.exceptions.ModelError):
        furnished.invoke(name, {"crash": True})

    def answers() -> bool:
        try:
            return bool(furnished.invoke(name))
        except furnished.runtime.exceptions.ModelError:
            return False

    wait_until(answers)


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"ServerlessConfig": {"MemorySizeInMB": 2048, "MaxConcurrency": 1}}, "does not emulate ServerlessConfig"),
        ({"InstanceType": "ml.made.up"}, "ml.made.up"),
        ({"InitialInstanceCount": 0}, "valid min value: 1"),
        ({"ContainerStartupHealthCheckTimeoutInSeconds": 30}, "valid min value: 60"),
        ({"Wrong": 1}, "Wrong"),
    ],
)
def test_wrong_or_unknown_properties_are_refused_by_name(
    furnished: Furnished, stack: Callable[..., str], name: str, properties: dict[str, Any], message: str
) -> None:
    assert stack(variant=properties) == "ROLLBACK_COMPLETE"
    assert message in reasons(furnished.cloudformation, name)


def _left(furnished: Furnished, name: str) -> list[str]:
    sagemaker = furnished.sagemaker
    return [
        *(each["ModelName"] for each in sagemaker.list_models(NameContains=name)["Models"]),
        *(each["EndpointConfigName"] for each in sagemaker.list_endpoint_configs(NameContains=name)["EndpointConfigs"]),
        *(each["EndpointName"] for each in sagemaker.list_endpoints(NameContains=name)["Endpoints"]),
        *(each["RoleName"] for each in furnished.cloud.client("iam").list_roles()["Roles"] if name in each["RoleName"]),
    ]


def _image_in_ocis_format(furnished: Furnished) -> str:
    kind = "application/vnd.oci.image.manifest.v1+json"
    text = json.dumps({"schemaVersion": 2, "mediaType": kind, "config": {}, "layers": []})
    put = furnished.cloud.client("ecr").put_image(
        repositoryName=REPOSITORY, imageManifest=text, imageManifestMediaType=kind
    )
    return image_uri(put["image"]["imageId"]["imageDigest"])


def _image_of_another_repository(furnished: Furnished) -> str:
    ecr = furnished.cloud.client("ecr")
    if not [each for each in ecr.describe_repositories()["repositories"] if each["repositoryName"] == "other"]:
        ecr.create_repository(repositoryName="other")
    return image_uri(furnished.cloud.register_image("other"), repository="other")

"""CodeBuild: a project that CloudFormation made runs its buildspec here, with its role's rights."""

from __future__ import annotations

import io
import json
import os
import sys
import textwrap
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import botocore.exceptions
import pytest
from endpoint_template import ACCOUNT, REGION, delete, deploy, trust

from conftest import Furnished, wait_until
from steelyard_localcloud.cloud import LocalCloud
from steelyard_localcloud.codebuild.environment import inherited
from steelyard_localcloud.iam import build_resource

BUCKET = "build-sources"
WRITE = {"Effect": "Allow", "Action": "s3:PutObject", "Resource": f"arn:aws:s3:::{BUCKET}/made/*"}


def template(spec: str, *, key: str, statements: tuple[dict[str, Any], ...] = (), logs: bool = True) -> str:
    """A project with its role and log group."""
    write_log = {
        "Effect": "Allow",
        "Action": ["logs:CreateLogStream", "logs:PutLogEvents"],
        "Resource": {"Fn::GetAtt": ["Log", "Arn"]},
    }
    read_source = {"Effect": "Allow", "Action": "s3:GetObject", "Resource": f"arn:aws:s3:::{BUCKET}/source.zip"}
    allowed = [read_source, *statements, *([write_log] if logs else [])]
    policy = {"Version": "2012-10-17", "Statement": allowed}
    environment = {
        "Type": "LINUX_CONTAINER",
        "Image": "aws/codebuild/amazonlinux-x86_64-standard:5.0",
        "ComputeType": "BUILD_GENERAL1_SMALL",
        "EnvironmentVariables": [{"Name": "COLOR", "Type": "PLAINTEXT", "Value": "red"}],
    }
    role = {
        "AssumeRolePolicyDocument": trust("codebuild.amazonaws.com"),
        "Policies": [{"PolicyName": "it", "PolicyDocument": policy}],
    }
    project = {
        "ServiceRole": {"Fn::GetAtt": ["Role", "Arn"]},
        "Artifacts": {"Type": "NO_ARTIFACTS"},
        "Source": {"Type": "S3", "Location": f"{BUCKET}/{key}", "BuildSpec": spec},
        "Environment": environment,
        "LogsConfig": {"CloudWatchLogs": {"Status": "ENABLED", "GroupName": {"Ref": "Log"}}},
        "ConcurrentBuildLimit": 1,
        "TimeoutInMinutes": 5,
    }
    return json.dumps(
        {
            "Resources": {
                "Log": {"Type": "AWS::Logs::LogGroup"},
                "Role": {"Type": "AWS::IAM::Role", "Properties": role},
                "Project": {"Type": "AWS::CodeBuild::Project", "Properties": project},
            },
            "Outputs": {"Project": {"Value": {"Ref": "Project"}}},
        }
    )


class Project:
    """A deployed project."""

    def __init__(self, furnished: Furnished, name: str) -> None:
        self.client = furnished.cloud.client("codebuild")
        self.logs = furnished.cloud.client("logs")
        self.name = name

    def start(self, **variables: str) -> str:
        override = [{"name": name, "value": value, "type": "PLAINTEXT"} for name, value in variables.items()]
        started = self.client.start_build(projectName=self.name, environmentVariablesOverride=override)
        return str(started["build"]["id"])

    def get(self, build: str) -> dict[str, Any]:
        [found] = self.client.batch_get_builds(ids=[build])["builds"]
        return dict(found)

    def finished(self, build: str) -> dict[str, Any]:
        wait_until(lambda: self.get(build)["buildComplete"], limit_s=60)
        return self.get(build)

    def log(self, build: str) -> str:
        where = self.get(build)["logs"]
        names = {"logGroupName": where["groupName"], "logStreamName": where["streamName"]}
        try:
            events = self.logs.get_log_events(**names, startFromHead=True)["events"]
        except self.logs.exceptions.ResourceNotFoundException:
            return ""
        return "".join(event["message"] for event in events)


@pytest.fixture(scope="module")
def source(furnished: Furnished) -> str:
    furnished.s3.create_bucket(Bucket=BUCKET)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("greeting.txt", "good morning\n")
        script = zipfile.ZipInfo("tool.sh")
        script.external_attr = 0o100755 << 16
        archive.writestr(script, "#!/bin/sh\necho a tool\n")
    furnished.s3.put_object(Bucket=BUCKET, Key="source.zip", Body=content.getvalue())
    furnished.s3.put_object(Bucket=BUCKET, Key="other.zip", Body=content.getvalue())
    return "source.zip"


@pytest.fixture
def project(furnished: Furnished, source: str, name: str) -> Iterator[Callable[..., Project]]:
    def make(spec: str, **arguments: Any) -> Project:
        text = "version: 0.2\n" + textwrap.dedent(spec)
        described = template(text, **{"key": source, **arguments})
        assert deploy(furnished.cloudformation, name, described) == "CREATE_COMPLETE"
        [stack] = furnished.cloudformation.describe_stacks(StackName=name)["Stacks"]
        return Project(furnished, stack["Outputs"][0]["OutputValue"])

    yield make
    assert delete(furnished.cloudformation, name) == "DELETE_COMPLETE"


def boto(call: str) -> str:
    """A command that makes a call of AWS with the build's own credentials."""
    return f"'{sys.executable}' -c 'import boto3; {call}'"


def test_a_build_runs_its_source_with_its_variables(project: Callable[..., Project], furnished: Furnished) -> None:
    it = project(
        """
        env:
          shell: bash
          variables: {COLOR: never, SHAPE: round}
          exported-variables: [ANSWER, SHAPE]
        phases:
          build:
            commands:
              - cat greeting.txt && ./tool.sh && echo "$COLOR $SHAPE $SIZE"
              - export ANSWER="$CODEBUILD_BUILD_NUMBER"
          post_build:
            commands: [echo "$CODEBUILD_BUILD_ID"; tr '\\0' ' ' < /proc/$PPID/cmdline]
        """
    )
    build = it.start(SIZE="large")
    found = it.finished(build)
    assert found["buildStatus"] == "SUCCEEDED"
    assert found["projectName"] == it.name
    assert found["exportedEnvironmentVariables"] == [
        {"name": "ANSWER", "value": "1"},
        {"name": "SHAPE", "value": "round"},
    ]
    phases = ["SUBMITTED", "QUEUED", "PROVISIONING", "DOWNLOAD_SOURCE", "BUILD", "POST_BUILD"]
    assert [phase["phaseType"] for phase in found["phases"]] == [
        *phases,
        "UPLOAD_ARTIFACTS",
        "FINALIZING",
        "COMPLETED",
    ]
    log = it.log(build)
    assert "good morning\na tool\nred round large\n" in log
    assert f"\n{build}\n" in log
    assert "--timeout-s 300 " in log  # of TimeoutInMinutes
    assert it.client.list_builds_for_project(projectName=it.name)["ids"] == [build]
    wait_until(lambda: not list((furnished.cloud.options.home / "builds").iterdir()))


def test_what_a_build_may_do_is_what_its_role_may(project: Callable[..., Project], furnished: Furnished) -> None:
    def put(key: str) -> str:
        return boto(f'boto3.client("s3").put_object(Bucket="{BUCKET}", Key="{key}", Body=b"x")')

    it = project(
        f"""
        phases:
          build:
            commands:
              - |
                {boto('print(boto3.client("sts").get_caller_identity()["Arn"])')}
              - |
                {put("made/it")}
              - |
                {put("elsewhere/it")}
        """,
        statements=(WRITE,),
    )
    build = it.start()
    found = it.finished(build)
    assert found["buildStatus"] == "FAILED"
    log = it.log(build)
    role = found["serviceRole"].rpartition("/")[2]
    assert f"arn:aws:sts::{ACCOUNT}:assumed-role/{role}/AWSCodeBuild-" in log
    assert "AccessDenied" in log
    assert furnished.s3.get_object(Bucket=BUCKET, Key="made/it")["Body"].read() == b"x"
    with pytest.raises(botocore.exceptions.ClientError):
        furnished.s3.head_object(Bucket=BUCKET, Key="elsewhere/it")


def test_a_failed_command_is_told_with_its_phase(project: Callable[..., Project]) -> None:
    it = project("phases: {pre_build: {commands: [exit 3]}, build: {commands: ['true']}}")
    found = it.finished(it.start())
    assert found["buildStatus"] == "FAILED"
    failed = {phase["phaseType"]: phase for phase in found["phases"]}
    assert "BUILD" not in failed
    assert failed["PRE_BUILD"]["phaseStatus"] == "FAILED"
    assert failed["PRE_BUILD"]["contexts"][0]["message"].endswith("exit 3. Reason: exit status 3")


def test_the_log_is_there_while_it_runs_one_build_at_a_time_and_stopping(project: Callable[..., Project]) -> None:
    it = project("phases: {build: {commands: ['echo $$ is here; sleep 600']}}")
    build = it.start()
    wait_until(lambda: "is here" in it.log(build).replace("$$ is here", ""))
    running = it.get(build)
    assert (running["buildStatus"], running["currentPhase"], running["buildComplete"]) == (
        "IN_PROGRESS",
        "BUILD",
        False,
    )
    with pytest.raises(it.client.exceptions.AccountLimitExceededException, match="more than 1 active builds"):
        it.start()
    it.client.stop_build(id=build)
    found = it.finished(build)
    assert found["buildStatus"] == "STOPPED"
    pid = next(line for line in it.log(build).splitlines() if line.endswith("is here") and line[0].isdecimal()).split()[
        0
    ]
    assert not Path(f"/proc/{pid}").exists()
    second = it.start()
    assert it.get(second)["buildNumber"] == 2
    it.client.stop_build(id=second)
    assert it.finished(second)["buildStatus"] == "STOPPED"


def test_a_buildspec_with_an_unknown_key_is_told_in_its_phase(project: Callable[..., Project]) -> None:
    it = project("phases: {build: {commands: [echo ran]}}\ncache: {paths: [a]}")
    build = it.start()
    found = it.finished(build)
    assert found["buildStatus"] == "FAILED"
    phase = next(phase for phase in found["phases"] if phase["phaseType"] == "DOWNLOAD_SOURCE")
    assert phase["contexts"][0]["statusCode"] == "YAML_FILE_ERROR"
    assert "cache: there is no such field" in phase["contexts"][0]["message"]
    assert "cache" in it.log(build)


def test_a_source_that_the_role_may_not_read_fails(project: Callable[..., Project]) -> None:
    it = project("phases: {build: {commands: [echo ran]}}", key="other.zip")
    found = it.finished(it.start())
    phase = next(phase for phase in found["phases"] if phase["phaseType"] == "DOWNLOAD_SOURCE")
    assert found["buildStatus"] == phase["phaseStatus"] == "FAILED"
    assert "other.zip could not be downloaded" in phase["contexts"][0]["message"]


def test_without_the_right_to_log_nothing_is_logged(project: Callable[..., Project]) -> None:
    it = project("phases: {build: {commands: [echo ran]}}", logs=False)
    build = it.start()
    assert it.finished(build)["buildStatus"] == "SUCCEEDED"
    assert it.log(build) == ""


def test_what_is_not_emulated_is_refused(furnished: Furnished, project: Callable[..., Project]) -> None:
    it = project("phases: {build: {commands: ['true']}}")
    with pytest.raises(botocore.exceptions.ClientError, match="does not emulate buildspecOverride"):
        it.client.start_build(projectName=it.name, buildspecOverride="version: 0.2")
    secret = {"name": "A", "value": "b", "type": "PARAMETER_STORE"}
    with pytest.raises(botocore.exceptions.ClientError, match="variables of the type PARAMETER_STORE"):
        it.client.start_build(projectName=it.name, environmentVariablesOverride=[secret])
    with pytest.raises(it.client.exceptions.ResourceNotFoundException, match="cannot be found: nothing"):
        it.client.start_build(projectName="nothing")
    with pytest.raises(it.client.exceptions.ResourceNotFoundException):
        it.client.stop_build(id="nothing:1")
    assert it.client.batch_get_builds(ids=["nothing:1"])["buildsNotFound"] == ["nothing:1"]


def test_builds_end_with_the_local_cloud(tmp_path: Path) -> None:
    """However it ends: here it is killed."""
    with LocalCloud(tmp_path) as cloud:
        roles, builds = cloud.client("iam"), cloud.client("codebuild")
        role = roles.create_role(
            RoleName="builder", AssumeRolePolicyDocument=json.dumps(trust("codebuild.amazonaws.com"))
        )["Role"]["Arn"]
        marker = tmp_path / "pid"
        command = f"echo $$ > {marker}.part; mv {marker}.part {marker}; sleep 600"
        spec = json.dumps({"version": "0.2", "phases": {"build": {"commands": [command]}}})
        environment = {"type": "LINUX_CONTAINER", "image": "x", "computeType": "BUILD_GENERAL1_SMALL"}
        builds.create_project(
            name="slow",
            source={"type": "NO_SOURCE", "buildspec": spec},
            artifacts={"type": "NO_ARTIFACTS"},
            environment=environment,
            serviceRole=role,
        )
        builds.start_build(projectName="slow")
        wait_until(marker.is_file, limit_s=60)
        os.kill(cloud.details.pid, 9)
        process = Path(f"/proc/{marker.read_text().strip()}")
        wait_until(lambda: not process.exists(), limit_s=60)


def test_what_builds_get_of_the_machine() -> None:
    given = {"PATH": "/opt/bin", "HOME": "/home/a", "PIP_CERT": "/c", "AWS_SECRET_ACCESS_KEY": "s", "TOKEN": "t"}
    got = inherited(given)
    assert set(got) == {"PATH", "HOME", "PIP_CERT"}
    assert got["PATH"].split(":")[0] == "/opt/bin"
    assert "/usr/sbin" in got["PATH"].split(":")  # where runc is


@pytest.mark.parametrize(
    ("operation", "members", "resource"),
    [
        ("StartBuild", {"projectName": "a"}, "project/a"),
        ("StopBuild", {"id": "a:1"}, "project/a"),
        ("BatchGetBuilds", {"ids": ["a:1", "a:2"]}, "project/a"),
        ("BatchGetProjects", {"names": ["a"]}, "project/a"),
        ("ListBuildsForProject", {"projectName": "a"}, "project/a"),
    ],
)
def test_the_project_that_a_policy_must_allow(operation: str, members: dict[str, Any], resource: str) -> None:
    expected = f"arn:aws:codebuild:{REGION}:{ACCOUNT}:{resource}"
    assert build_resource(operation, members, region=REGION, account=ACCOUNT) == expected


def test_lists_and_several_projects_need_every_resource() -> None:
    assert build_resource("ListProjects", {}, region=REGION, account=ACCOUNT) == "*"
    assert build_resource("BatchGetBuilds", {"ids": ["a:1", "b:1"]}, region=REGION, account=ACCOUNT) == "*"

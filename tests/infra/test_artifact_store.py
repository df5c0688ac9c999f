"""ArtifactStore: what the buckets are, in which order they go, and that nothing is lost that was to be kept."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import aws_cdk as cdk
import boto3
import pytest
from aws_cdk import aws_kms as kms
from aws_cdk.assertions import Match, Template
from botocore.exceptions import ClientError

from steelyard_constructs import bucket_emptier, empty_bucket_handler
from steelyard_constructs.artifact_store import ArtifactStore
from steelyard_constructs.refusal import Refused
from steelyard_localcloud.cloud import LocalCloud

DESTROY, RETAIN = cdk.RemovalPolicy.DESTROY, cdk.RemovalPolicy.RETAIN


def resources(template: Template, type_: str) -> dict[str, Any]:
    return template.find_resources(type_)


def only(template: Template, type_: str, fragment: str) -> str:
    """The logical id of the one resource of a type whose id contains ``fragment``."""
    (found,) = [name for name in resources(template, type_) if fragment in name]
    return found


def depends_on(template: Template, name: str) -> set[str]:
    """The resources that must exist before ``name``: DependsOn, and references anywhere in it."""
    resource = template.to_json()["Resources"][name]
    text = json.dumps(resource)
    return {other for other in template.to_json()["Resources"] if other != name and f'"{other}"' in text}


@pytest.fixture
def destroyed(stack: cdk.Stack) -> Template:
    ArtifactStore(stack, "Store", removal_policy=DESTROY)
    return Template.from_stack(stack)


@pytest.mark.parametrize("policy", [DESTROY, RETAIN])
def test_no_finding_of_cdk_nag_or_cfn_lint(stack, policy, nag_findings, lint_findings):
    ArtifactStore(stack, "Store", removal_policy=policy)
    assert nag_findings(stack) == []
    assert lint_findings(stack) == []


def test_both_buckets_are_private_encrypted_and_reached_over_tls_only(destroyed):
    destroyed.resource_count_is("AWS::S3::Bucket", 2)
    destroyed.all_resources_properties(
        "AWS::S3::Bucket",
        {
            "PublicAccessBlockConfiguration": {
                "BlockPublicAcls": True,
                "BlockPublicPolicy": True,
                "IgnorePublicAcls": True,
                "RestrictPublicBuckets": True,
            },
            "OwnershipControls": {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]},
            "BucketEncryption": {
                "ServerSideEncryptionConfiguration": [{"ServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}]
            },
        },
    )
    destroyed.resource_count_is("AWS::S3::BucketPolicy", 2)
    for condition in ({"Bool": {"aws:SecureTransport": "false"}}, {"NumericLessThan": {"s3:TlsVersion": 1.2}}):
        destroyed.all_resources_properties(
            "AWS::S3::BucketPolicy",
            {
                "PolicyDocument": {
                    "Statement": Match.array_with(
                        [
                            Match.object_like(
                                {
                                    "Effect": "Deny",
                                    "Action": "s3:*",
                                    "Principal": {"AWS": "*"},
                                    "Condition": condition,
                                }
                            )
                        ]
                    )
                }
            },
        )


def test_artifacts_are_versioned_logged_and_expire_only_when_replaced(stack):
    store = ArtifactStore(stack, "Store", removal_policy=DESTROY, noncurrent_days=7, access_log_days=400)
    template = Template.from_stack(stack)
    artifacts = template.to_json()["Resources"][stack.get_logical_id(store.bucket.node.default_child)]["Properties"]
    logs_id = stack.get_logical_id(store.access_logs.node.default_child)
    assert artifacts["VersioningConfiguration"] == {"Status": "Enabled"}
    assert artifacts["LoggingConfiguration"] == {
        "DestinationBucketName": {"Ref": logs_id},
        "LogFilePrefix": "artifacts/",
    }
    (rule,) = artifacts["LifecycleConfiguration"]["Rules"]
    assert rule["NoncurrentVersionExpiration"] == {"NoncurrentDays": 7}
    assert "ExpirationInDays" not in rule
    (rule,) = template.to_json()["Resources"][logs_id]["Properties"]["LifecycleConfiguration"]["Rules"]
    assert rule["ExpirationInDays"] == 400


def test_access_logs_come_from_this_account_only(destroyed):
    destroyed.has_resource_properties(
        "AWS::S3::BucketPolicy",
        {
            "PolicyDocument": {
                "Statement": Match.array_with(
                    [
                        Match.object_like(
                            {
                                "Effect": "Allow",
                                "Action": "s3:PutObject",
                                "Principal": {"Service": "logging.s3.amazonaws.com"},
                                "Condition": {"StringEquals": {"aws:SourceAccount": {"Ref": "AWS::AccountId"}}},
                            }
                        )
                    ]
                )
            }
        },
    )


def test_a_key_encrypts_the_artifacts_and_not_the_access_logs(stack):
    ArtifactStore(stack, "Store", removal_policy=RETAIN, encryption_key=kms.Key(stack, "Key"))
    template = Template.from_stack(stack)
    algorithms = {
        name: bucket["Properties"]["BucketEncryption"]["ServerSideEncryptionConfiguration"][0]
        for name, bucket in resources(template, "AWS::S3::Bucket").items()
    }
    artifacts = algorithms[only(template, "AWS::S3::Bucket", "StoreBucket")]
    assert artifacts["BucketKeyEnabled"] is True
    assert artifacts["ServerSideEncryptionByDefault"]["SSEAlgorithm"] == "aws:kms"
    access_logs = algorithms[only(template, "AWS::S3::Bucket", "AccessLogs")]
    assert access_logs["ServerSideEncryptionByDefault"] == {"SSEAlgorithm": "AES256"}


def test_what_is_retained_has_nothing_that_could_empty_it(stack):
    ArtifactStore(stack, "Store", removal_policy=RETAIN)
    template = Template.from_stack(stack)
    template.all_resources("AWS::S3::Bucket", {"DeletionPolicy": "Retain", "UpdateReplacePolicy": "Retain"})
    for type_ in ("AWS::Lambda::Function", "AWS::IAM::Role", "Custom::SteelyardEmptyBucket"):
        template.resource_count_is(type_, 0)
    assert bucket_emptier.TAG not in json.dumps(template.to_json())


def test_what_is_destroyed_goes_in_the_order_that_works(destroyed):
    """CloudFormation deletes what depends on a resource before the resource."""
    destroyed.all_resources("AWS::S3::Bucket", {"DeletionPolicy": "Delete"})
    artifacts = only(destroyed, "AWS::S3::Bucket", "StoreBucket")
    access_logs = only(destroyed, "AWS::S3::Bucket", "AccessLogs")
    for bucket, word in ((artifacts, "EmptierBucket"), (access_logs, "EmptierAccessLogs")):
        emptier = only(destroyed, "Custom::SteelyardEmptyBucket", word)
        grant = only(destroyed, "AWS::IAM::Policy", word)
        assert {bucket, grant} <= depends_on(destroyed, emptier)
    # The end of log delivery comes before the access logs are emptied, and after the bucket that is logged.
    log_policy = only(destroyed, "AWS::S3::BucketPolicy", "AccessLogs")
    assert only(destroyed, "Custom::SteelyardEmptyBucket", "EmptierAccessLogs") in depends_on(destroyed, log_policy)
    assert log_policy in depends_on(destroyed, artifacts)


def test_the_function_reaches_these_buckets_and_its_log_only(stack, allowed):
    store = ArtifactStore(stack, "Store", removal_policy=DESTROY)
    buckets = {stack.get_logical_id(b.node.default_child) for b in (store.bucket, store.access_logs)}
    by_action: dict[str, set[str]] = {}
    for action, resource in allowed(stack):
        by_action.setdefault(action, set()).add(resource)
    assert set(by_action) == {
        "logs:CreateLogStream",
        "logs:PutLogEvents",
        "s3:DeleteObject",
        "s3:DeleteObjectVersion",
        "s3:GetBucketTagging",
        "s3:ListBucketVersions",
    }
    for action in by_action:
        if action.startswith("s3:"):
            assert {next(b for b in buckets if b in resource) for resource in by_action[action]} == buckets


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"removal_policy": cdk.RemovalPolicy.SNAPSHOT}, "SNAPSHOT; a bucket is kept or not"),
        ({"removal_policy": DESTROY, "noncurrent_days": 0}, "noncurrent_days is 0"),
        ({"removal_policy": DESTROY, "access_log_days": -1}, "access_log_days is -1"),
    ],
)
def test_refused(stack, arguments, message):
    with pytest.raises(Refused, match=message):
        ArtifactStore(stack, "Store", **arguments)


def test_the_handler_fits_inline_and_looks_for_the_tag_that_is_set():
    assert len(bucket_emptier.HANDLER.read_text(encoding="utf-8")) <= bucket_emptier.INLINE_LIMIT
    assert empty_bucket_handler.TAG == bucket_emptier.TAG


# The handler, against a bucket in memory and a server that takes CloudFormation's answer.


class FakeS3:
    """The versions of one bucket; at most two are listed at once, so that emptying takes several rounds."""

    def __init__(self, tags: list[dict[str, str]] | None, errors: list[dict[str, str]] | None = None) -> None:
        self.tags, self.errors = tags, errors
        self.versions = [("a", "1"), ("a", "2"), ("b", "1")]
        self.markers = [("b", "2")]

    def get_bucket_tagging(self, **_: Any) -> dict[str, Any]:
        if self.tags is None:
            raise ClientError({"Error": {"Code": "NoSuchTagSet", "Message": "none"}}, "GetBucketTagging")
        return {"TagSet": self.tags}

    def list_object_versions(self, **_: Any) -> dict[str, Any]:
        page: dict[str, Any] = {}
        if self.versions:
            page["Versions"] = [{"Key": k, "VersionId": v} for k, v in self.versions[:2]]
        elif self.markers:
            page["DeleteMarkers"] = [{"Key": k, "VersionId": v} for k, v in self.markers]
        return page

    def delete_objects(self, **request: Any) -> dict[str, Any]:
        if self.errors:
            return {"Errors": self.errors}
        gone = {(one["Key"], one["VersionId"]) for one in request["Delete"]["Objects"]}
        self.versions = [one for one in self.versions if one not in gone]
        self.markers = [one for one in self.markers if one not in gone]
        return {}


class Context:
    log_stream_name = "2026/01/01/stream"


@pytest.fixture
def callback() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The URL that takes CloudFormation's answers, and the answers."""
    answers: list[dict[str, Any]] = []

    class Taker(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            answers.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Taker) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/answer", answers
        server.shutdown()
        thread.join()


def call(monkeypatch: pytest.MonkeyPatch, url: str, request: str, s3: FakeS3) -> None:
    monkeypatch.setattr(boto3, "client", lambda service: s3)
    event = {
        "RequestType": request,
        "ResponseURL": url,
        "StackId": "stack",
        "RequestId": "request",
        "LogicalResourceId": "logical",
        "ResourceProperties": {"BucketName": "bucket"},
    }
    empty_bucket_handler.handler(event, Context())


MARKED = [{"Key": bucket_emptier.TAG, "Value": "true"}]


@pytest.mark.parametrize("request_type", ["Create", "Update", "Delete"])
@pytest.mark.parametrize("tags", [MARKED, [{"Key": bucket_emptier.TAG, "Value": "false"}], None])
def test_only_a_marked_bucket_that_is_deleted_is_emptied(monkeypatch, callback, request_type, tags):
    url, answers = callback
    s3 = FakeS3(tags)
    call(monkeypatch, url, request_type, s3)
    emptied = request_type == "Delete" and tags == MARKED
    assert (s3.versions + s3.markers == []) is emptied
    (answer,) = answers
    assert answer["Status"] == "SUCCESS"
    assert answer["PhysicalResourceId"] == "bucket"
    assert {answer[k] for k in ("StackId", "RequestId", "LogicalResourceId")} == {"stack", "request", "logical"}
    if emptied:
        assert answer["Reason"].startswith("4 objects deleted from bucket")


def test_what_cannot_be_deleted_fails_the_deletion_with_the_reason(monkeypatch, callback):
    url, answers = callback
    call(monkeypatch, url, "Delete", FakeS3(MARKED, [{"Key": "a", "Code": "AccessDenied"}]))
    (answer,) = answers
    assert answer["Status"] == "FAILED"
    assert "objects of bucket stay" in answer["Reason"]
    assert "AccessDenied" in answer["Reason"]


def test_a_refused_look_at_the_tags_fails_the_deletion(monkeypatch, callback):
    url, answers = callback
    s3 = FakeS3(MARKED)

    def denied(**_: Any) -> dict[str, Any]:
        raise ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "GetBucketTagging")

    s3.get_bucket_tagging = denied  # type: ignore[method-assign]
    call(monkeypatch, url, "Delete", s3)
    assert answers[0]["Status"] == "FAILED"
    assert len(s3.versions) == 3


# The same, deployed to the local cloud: a real function with its real role, under enforced IAM.


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCloud]:
    with LocalCloud(tmp_path_factory.mktemp("cloud")) as running:
        yield running


def template_of(policy: cdk.RemovalPolicy) -> str:
    stack = cdk.Stack(cdk.App(), "Store", synthesizer=cdk.BootstraplessSynthesizer())
    ArtifactStore(stack, "Store", removal_policy=policy)
    return json.dumps(Template.from_stack(stack).to_json())


def settled(cloudformation: Any, stack: str) -> str:
    """The status of a stack when nothing is in progress any more."""
    while (status := cloudformation.describe_stacks(StackName=stack)["Stacks"][0]["StackStatus"]).endswith("PROGRESS"):
        time.sleep(0.1)
    return str(status)


def fill(s3: Any) -> list[str]:
    """Put versions and a delete marker into every bucket; the buckets."""
    buckets = [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]]
    for bucket in buckets:
        for key, content in (("a", b"1"), ("a", b"2"), ("b/c", b"3")):
            s3.put_object(Bucket=bucket, Key=key, Body=io.BytesIO(content))
        s3.delete_object(Bucket=bucket, Key="b/c")
    return buckets


def create(cloud: LocalCloud, policy: cdk.RemovalPolicy) -> str:
    cloudformation = cloud.client("cloudformation")
    stack = cloudformation.create_stack(
        StackName="Store", TemplateBody=template_of(policy), Capabilities=["CAPABILITY_IAM"]
    )["StackId"]
    assert settled(cloudformation, stack) == "CREATE_COMPLETE"
    return str(stack)


def test_a_destroyed_store_leaves_nothing_in_the_local_cloud(cloud):
    cloudformation, s3 = cloud.client("cloudformation"), cloud.client("s3")
    stack = create(cloud, DESTROY)
    assert len(fill(s3)) == 2
    cloudformation.delete_stack(StackName=stack)
    assert settled(cloudformation, stack) == "DELETE_COMPLETE"
    assert s3.list_buckets()["Buckets"] == []
    assert cloud.client("logs").describe_log_groups()["logGroups"] == []
    assert cloud.client("iam").list_roles()["Roles"] == []
    assert cloud.client("lambda").list_functions()["Functions"] == []


def test_a_store_that_is_to_be_kept_from_now_on_keeps_its_objects(cloud):
    cloudformation, s3 = cloud.client("cloudformation"), cloud.client("s3")
    stack = create(cloud, DESTROY)
    buckets = fill(s3)
    cloudformation.update_stack(StackName=stack, TemplateBody=template_of(RETAIN), Capabilities=["CAPABILITY_IAM"])
    assert settled(cloudformation, stack) == "UPDATE_COMPLETE"
    cloudformation.delete_stack(StackName=stack)
    assert settled(cloudformation, stack) == "DELETE_COMPLETE"
    assert [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]] == buckets
    for bucket in buckets:
        assert s3.get_object(Bucket=bucket, Key="a")["Body"].read() == b"2"

"""Publishing a model: against the S3 of a local cloud, with the policies of ModelBuild's role."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aws_cdk as cdk
import boto3
import pytest
from aws_cdk import aws_s3_assets as s3_assets
from aws_cdk.assertions import Template
from botocore.exceptions import ClientError
from pydantic import HttpUrl

from switchyard.exit_codes import CommandError
from switchyard.models import publisher as model_publisher
from switchyard.models import storage
from switchyard.models.catalogue import CatalogueEntry, HuggingFace, Licence, ModelFile
from switchyard_constructs.artifact_store import ArtifactStore
from switchyard_constructs.model_build import ModelBuild
from switchyard_localcloud import LocalCloud

ROOT = Path(__file__).parents[2]
CONTENT = bytes(range(256)) * 100_000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
ENTRY = CatalogueEntry(
    name="tiny",
    summary="A model for tests",
    licence=Licence(name="MIT", url=HttpUrl("https://example.com/licence")),
    files=(ModelFile(role="model", name="tiny.gguf", sha256=SHA256, size=len(CONTENT)),),
    source=HuggingFace(kind="hugging-face", repository="owner/tiny", revision="0" * 40),
)


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCloud]:
    with LocalCloud(tmp_path_factory.mktemp("cloud")) as running:
        yield running


@pytest.fixture(autouse=True)
def pulled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The model, on this machine; in parts of 8 MiB, of which it has four."""
    path = tmp_path / "tiny.gguf"
    path.write_bytes(CONTENT)
    monkeypatch.setattr(model_publisher, "find", lambda name: ENTRY)
    monkeypatch.setattr(storage, "verify", lambda entry: path)
    monkeypatch.setattr(model_publisher, "PART_BYTES", 8 << 20)
    return path


@pytest.fixture
def bucket(cloud: LocalCloud, request: pytest.FixtureRequest) -> str:
    name = f"bucket-{hashlib.sha256(request.node.name.encode()).hexdigest()[:20]}"
    cloud.client("s3").create_bucket(Bucket=name)
    return name


def keys(s3: Any, bucket: str) -> list[str]:
    return [one["Key"] for one in s3.list_objects_v2(Bucket=bucket).get("Contents", [])]


def test_files_lie_below_the_hash_of_the_manifest_which_names_them(cloud, bucket):
    s3 = cloud.client("s3")
    key, digest = model_publisher.publish("tiny", bucket=bucket, s3=s3)
    assert key == f"models/tiny/{digest}/"
    assert sorted(keys(s3, bucket)) == [f"{key}model-manifest.json", f"{key}tiny.gguf"]
    manifest = s3.get_object(Bucket=bucket, Key=f"{key}model-manifest.json")["Body"].read()
    assert hashlib.sha256(manifest).hexdigest() == digest
    assert json.loads(manifest)["files"] == [
        {"role": "model", "name": "tiny.gguf", "size": len(CONTENT), "sha256": SHA256}
    ]
    assert s3.get_object(Bucket=bucket, Key=f"{key}tiny.gguf")["Body"].read() == CONTENT


def test_publishing_again_writes_nothing(cloud, bucket):
    s3 = cloud.client("s3")
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    first = model_publisher.publish("tiny", bucket=bucket, s3=s3)
    assert model_publisher.publish("tiny", bucket=bucket, s3=s3) == first
    assert len(s3.list_object_versions(Bucket=bucket)["Versions"]) == 2


def test_another_file_in_the_way_is_refused_and_stays(cloud, bucket):
    s3 = cloud.client("s3")
    key, _ = model_publisher.publish("tiny", bucket=bucket, s3=s3)
    s3.put_object(Bucket=bucket, Key=f"{key}tiny.gguf", Body=b"something else")
    with pytest.raises(CommandError, match="is there already and is another file: it has 14 bytes") as raised:
        model_publisher.publish("tiny", bucket=bucket, s3=s3)
    assert raised.value.hint is not None
    assert s3.get_object(Bucket=bucket, Key=f"{key}tiny.gguf")["Body"].read() == b"something else"


class Slow:
    """An S3 client that looks, and then someone else writes before it does."""

    def __init__(self, s3: Any, meanwhile: Any) -> None:
        self._s3, self._meanwhile = s3, meanwhile

    def __getattr__(self, name: str) -> Any:
        return getattr(self._s3, name)

    def head_object(self, **arguments: Any) -> Any:
        try:
            return self._s3.head_object(**arguments)
        finally:
            if self._meanwhile is not None:
                meanwhile, self._meanwhile = self._meanwhile, None
                meanwhile()


def test_two_who_publish_at_once_agree(cloud, bucket):
    s3 = cloud.client("s3")
    slow = Slow(s3, lambda: model_publisher.publish("tiny", bucket=bucket, s3=s3))
    assert model_publisher.publish("tiny", bucket=bucket, s3=slow) == model_publisher.publish(
        "tiny", bucket=bucket, s3=s3
    )
    assert "Uploads" not in s3.list_multipart_uploads(Bucket=bucket)


def test_a_bucket_that_may_not_be_written_is_an_error(cloud, bucket):
    cloud.client("iam").create_user(UserName="nobody")
    access = cloud.client("iam").create_access_key(UserName="nobody")["AccessKey"]
    s3 = cloud.client("s3", aws_access_key_id=access["AccessKeyId"], aws_secret_access_key=access["SecretAccessKey"])
    with pytest.raises(ClientError, match="AccessDenied"):
        model_publisher.publish("tiny", bucket=bucket, s3=s3)
    assert keys(cloud.client("s3"), bucket) == []


def test_someone_elses_other_file_is_not_replaced_even_when_it_comes_late(cloud, bucket):
    s3 = cloud.client("s3")
    key, _ = model_publisher.publish("tiny", bucket=bucket, s3=s3)
    for each in keys(s3, bucket):
        s3.delete_object(Bucket=bucket, Key=each)
    slow = Slow(s3, lambda: s3.put_object(Bucket=bucket, Key=f"{key}tiny.gguf", Body=b"faster"))
    with pytest.raises(CommandError, match="is there already and is another file"):
        model_publisher.publish("tiny", bucket=bucket, s3=slow)
    assert s3.get_object(Bucket=bucket, Key=f"{key}tiny.gguf")["Body"].read() == b"faster"


def test_the_command_prints_what_a_shell_reads(cloud, bucket, monkeypatch, capsys):
    s3 = cloud.client("s3")
    monkeypatch.setattr(boto3, "client", lambda service: s3)
    assert model_publisher.main(["tiny", "--bucket", bucket]) == 0
    lines = dict(line.split("=", 1) for line in capsys.readouterr().out.splitlines())
    assert lines["MODEL_KEY"] == f"models/tiny/{lines['MODEL_MANIFEST_SHA256']}/"


def test_the_command_says_why_it_fails(cloud, bucket, monkeypatch, capsys):
    def missing(entry: CatalogueEntry) -> Path:
        raise storage.missing(entry)

    s3 = cloud.client("s3")
    monkeypatch.setattr(boto3, "client", lambda service: s3)
    monkeypatch.setattr(storage, "verify", missing)
    assert model_publisher.main(["tiny", "--bucket", bucket]) == 5
    assert "switchyard model pull tiny" in capsys.readouterr().err


# With the permissions of ModelBuild's role, deployed.


@pytest.fixture(scope="module")
def deployed(cloud: LocalCloud) -> tuple[str, Any]:
    """The artifact bucket of a deployed store, and an S3 client with exactly the build role's policies."""
    stack = cdk.Stack(
        cdk.App(), "Build", synthesizer=cdk.DefaultStackSynthesizer(generate_bootstrap_version_rule=False)
    )
    store = ArtifactStore(stack, "Store", removal_policy=cdk.RemovalPolicy.DESTROY)
    build = ModelBuild(
        stack,
        "Build",
        artifacts=store.bucket,
        source=s3_assets.Asset(stack, "Source", path=str(ROOT / "models")),
        buildspec=ROOT / "images" / "model.buildspec.yml",
        model="tiny",
    )
    cdk.CfnOutput(stack, "Bucket", value=store.bucket.bucket_name)
    cdk.CfnOutput(stack, "RoleName", value=build.role.role_name)
    cloudformation, iam = cloud.client("cloudformation"), cloud.client("iam")
    template = json.dumps(Template.from_stack(stack).to_json())
    cloudformation.create_stack(StackName="Build", TemplateBody=template, Capabilities=["CAPABILITY_IAM"])
    while (found := cloudformation.describe_stacks(StackName="Build")["Stacks"][0])["StackStatus"].endswith("PROGRESS"):
        time.sleep(0.1)
    assert found["StackStatus"] == "CREATE_COMPLETE"
    outputs = {output["OutputKey"]: output["OutputValue"] for output in found["Outputs"]}

    iam.create_user(UserName="build")
    for name in iam.list_role_policies(RoleName=outputs["RoleName"])["PolicyNames"]:
        document = iam.get_role_policy(RoleName=outputs["RoleName"], PolicyName=name)["PolicyDocument"]
        iam.put_user_policy(UserName="build", PolicyName=name, PolicyDocument=json.dumps(document))
    access = iam.create_access_key(UserName="build")["AccessKey"]
    return outputs["Bucket"], cloud.client(
        "s3", aws_access_key_id=access["AccessKeyId"], aws_secret_access_key=access["SecretAccessKey"]
    )


def test_the_build_role_publishes_its_model(deployed):
    bucket, s3 = deployed
    first = model_publisher.publish("tiny", bucket=bucket, s3=s3)
    assert model_publisher.publish("tiny", bucket=bucket, s3=s3) == first


@pytest.mark.parametrize(
    "attempt",
    [
        lambda s3, bucket: s3.put_object(Bucket=bucket, Key="models/other/a", Body=b"", IfNoneMatch="*"),
        lambda s3, bucket: s3.put_object(Bucket=bucket, Key="other/tiny/a", Body=b"", IfNoneMatch="*"),
        lambda s3, bucket: s3.get_object(Bucket=bucket, Key="models/other/a"),
        lambda s3, bucket: s3.delete_object(Bucket=bucket, Key="models/tiny/a"),
        lambda s3, bucket: s3.list_objects_v2(Bucket=bucket, Prefix="models/other/"),
        lambda s3, bucket: s3.put_bucket_policy(Bucket=bucket, Policy="{}"),
        lambda s3, bucket: s3.list_buckets(),
        lambda s3, bucket: s3.create_bucket(Bucket="another-bucket-of-the-build"),
    ],
    ids=["other model", "other prefix", "read other", "delete", "list other", "policy", "list buckets", "new bucket"],
)
def test_the_build_role_is_denied_everything_else(deployed, attempt):
    bucket, s3 = deployed
    with pytest.raises(ClientError) as raised:
        attempt(s3, bucket)
    assert raised.value.response["Error"]["Code"] in ("AccessDenied", "AccessDeniedException")

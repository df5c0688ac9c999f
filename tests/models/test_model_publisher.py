"""Publishing a model: against the S3 of a local cloud, with the policies of ModelBuild's role."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import aws_cdk as cdk
import pytest
from aws_cdk import aws_s3_assets as s3_assets
from aws_cdk.assertions import Template
from botocore.exceptions import ClientError

from model_sources import as_toml, hub_entry, tiny_model
from steelyard import cli
from steelyard.build_programs import model as build_program
from steelyard.models import publisher, storage
from steelyard.models.manifest import model_manifest, read_manifest
from steelyard.models.publisher import Published, publish
from steelyard.models.pull import Silent, pull
from steelyard_base.exit_codes import CommandError, ExitCode
from steelyard_constructs.artifact_store import ArtifactStore
from steelyard_constructs.build_project import BuildProps
from steelyard_constructs.model_build import ModelBuild
from steelyard_localcloud.cloud import LocalCloud

ROOT = Path(__file__).parents[2]
MIB = 1 << 20
# Zeros after the tensors do not matter to a GGUF file. In parts of 8 MiB it has four.
CONTENT = tiny_model() + bytes(25 * MIB)
FILES = {"tiny.gguf": CONTENT, "tokenizer.json": b"{}"}
ENTRY = hub_entry(FILES)
PREFIX = f"models/tiny/{hashlib.sha256(model_manifest(ENTRY)).hexdigest()}/"


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCloud]:
    with LocalCloud(tmp_path_factory.mktemp("cloud")) as running:
        yield running


@pytest.fixture(autouse=True)
def pulled(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The model, on this machine and in a catalogue of one's own."""
    folder = tmp_path / "catalogue"
    folder.mkdir()
    (folder / "tiny.toml").write_text(as_toml(ENTRY))
    monkeypatch.setenv("STEELYARD_MODELS", str(folder))
    monkeypatch.setattr(publisher, "PART_BYTES", 8 * MIB)
    for name, data in FILES.items():
        path = storage.model_folder(ENTRY) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return storage.model_path(ENTRY)


@pytest.fixture
def bucket(cloud: LocalCloud, request: pytest.FixtureRequest) -> str:
    name = f"bucket-{hashlib.sha256(request.node.name.encode()).hexdigest()[:20]}"
    cloud.client("s3").create_bucket(Bucket=name)
    return name


def keys(s3: Any, bucket: str) -> list[str]:
    return [one["Key"] for one in s3.list_objects_v2(Bucket=bucket).get("Contents", [])]


def content(s3: Any, bucket: str, name: str) -> bytes:
    data: bytes = s3.get_object(Bucket=bucket, Key=f"{PREFIX}{name}")["Body"].read()
    return data


def no_parts_left(s3: Any, bucket: str) -> bool:
    return "Uploads" not in s3.list_multipart_uploads(Bucket=bucket)


def test_files_lie_below_the_hash_of_the_manifest_which_names_them(cloud, bucket):
    s3 = cloud.client("s3")
    key, digest = publish("tiny", bucket=bucket, s3=s3)
    assert key == PREFIX == f"models/tiny/{digest}/"
    assert sorted(keys(s3, bucket)) == sorted(f"{key}{name}" for name in ("model-manifest.json", *FILES))
    manifest = content(s3, bucket, "model-manifest.json")
    assert hashlib.sha256(manifest).hexdigest() == digest
    assert [(file.name, file.size) for file in read_manifest(manifest).files] == [
        (name, len(data)) for name, data in FILES.items()
    ]
    for name, data in FILES.items():
        assert content(s3, bucket, name) == data


def test_s3_keeps_a_checksum_of_every_object(cloud, bucket):
    """Of the parts' checksums where there are several, as S3 defines it; taken from what was verified here."""
    s3 = cloud.client("s3")
    publish("tiny", bucket=bucket, s3=s3)
    for name, data in FILES.items():
        head = s3.head_object(Bucket=bucket, Key=f"{PREFIX}{name}", ChecksumMode="ENABLED")
        parts = [hashlib.sha256(data[start : start + 8 * MIB]).digest() for start in range(0, len(data), 8 * MIB)]
        whole = parts[0] if len(parts) == 1 else hashlib.sha256(b"".join(parts)).digest()
        suffix = "" if len(parts) == 1 else f"-{len(parts)}"
        assert head["ChecksumSHA256"] == publisher._base64(whole) + suffix


def test_publishing_again_writes_nothing(cloud, bucket):
    s3 = cloud.client("s3")
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    first = publish("tiny", bucket=bucket, s3=s3)
    assert publish("tiny", bucket=bucket, s3=s3) == first
    assert len(s3.list_object_versions(Bucket=bucket)["Versions"]) == 3


def test_an_interrupted_publication_goes_on_with_the_files_that_are_missing(cloud, bucket):
    s3 = cloud.client("s3")
    publish("tiny", bucket=bucket, s3=s3)
    s3.delete_object(Bucket=bucket, Key=f"{PREFIX}model-manifest.json")
    s3.delete_object(Bucket=bucket, Key=f"{PREFIX}tokenizer.json")
    written = s3.head_object(Bucket=bucket, Key=f"{PREFIX}tiny.gguf")["LastModified"]
    publish("tiny", bucket=bucket, s3=s3)
    assert len(keys(s3, bucket)) == 3
    assert s3.head_object(Bucket=bucket, Key=f"{PREFIX}tiny.gguf")["LastModified"] == written


@pytest.mark.parametrize("other", [b"something else", CONTENT[:-1] + b"?"])
def test_another_file_in_the_way_is_refused_and_stays(cloud, bucket, other):
    """Of another size or of the same, and whatever its metadata say."""
    s3 = cloud.client("s3")
    publish("tiny", bucket=bucket, s3=s3)
    s3.put_object(
        Bucket=bucket,
        Key=f"{PREFIX}tiny.gguf",
        Body=other,
        ChecksumAlgorithm="SHA256",
        Metadata={"sha256": ENTRY.file.sha256},
    )
    told = f"is there already and is another file: it has {len(other)} bytes"
    with pytest.raises(CommandError, match=told) as raised:
        publish("tiny", bucket=bucket, s3=s3)
    assert raised.value.hint is not None
    assert raised.value.code is ExitCode.MODEL
    assert content(s3, bucket, "tiny.gguf") == other


def test_a_prefix_with_something_else_in_it_is_refused(cloud, bucket):
    """SageMaker would download it beside the model."""
    s3 = cloud.client("s3")
    s3.put_object(Bucket=bucket, Key=f"{PREFIX}other.gguf", Body=b"another model")
    with pytest.raises(CommandError, match=r"other\.gguf lies where only the files of this model belong"):
        publish("tiny", bucket=bucket, s3=s3)
    assert keys(s3, bucket) == [f"{PREFIX}other.gguf"]


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
    slow = Slow(s3, lambda: publish("tiny", bucket=bucket, s3=s3))
    assert publish("tiny", bucket=bucket, s3=slow) == publish("tiny", bucket=bucket, s3=s3)
    assert no_parts_left(s3, bucket)


def test_someone_elses_other_file_is_not_replaced_even_when_it_comes_late(cloud, bucket):
    s3 = cloud.client("s3")
    slow = Slow(s3, lambda: s3.put_object(Bucket=bucket, Key=f"{PREFIX}tiny.gguf", Body=b"faster"))
    with pytest.raises(CommandError, match="is there already and is another file"):
        publish("tiny", bucket=bucket, s3=slow)
    assert content(s3, bucket, "tiny.gguf") == b"faster"
    assert no_parts_left(s3, bucket)


class Damaging(Silent):
    """Flips the last byte of the model once it was verified and the upload has begun."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def step(self, what: str, done: int, total: int | None) -> None:
        if what == "verifying" and done == total:
            with self._path.open("r+b") as file:
                file.seek(-1, os.SEEK_END)
                file.write(b"?")


@pytest.mark.parametrize("part_bytes", [8 * MIB, 64 * MIB], ids=["in parts", "at once"])
def test_s3_refuses_what_is_not_what_was_verified(cloud, bucket, pulled, monkeypatch, part_bytes):
    """A byte that flips between the check and the upload: S3 hashes what arrives and compares."""
    monkeypatch.setattr(publisher, "PART_BYTES", part_bytes)
    s3 = cloud.client("s3")
    with pytest.raises(CommandError, match=r"S3 refused .*: what arrived is not what was verified here") as raised:
        publish("tiny", bucket=bucket, s3=s3, progress=Damaging(pulled))
    assert raised.value.code is ExitCode.MODEL
    assert keys(s3, bucket) == []
    assert no_parts_left(s3, bucket)


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_byte_leaves_the_bucket_empty(cloud, bucket, name):
    """Whichever file it is in: all are hashed before the first is sent."""
    path = storage.model_folder(ENTRY) / name
    data = path.read_bytes()
    path.write_bytes(bytes((data[0] ^ 1,)) + data[1:])
    s3 = cloud.client("s3")
    with pytest.raises(CommandError, match="is not the pinned file: its sha256 is"):
        publish("tiny", bucket=bucket, s3=s3)
    assert keys(s3, bucket) == []


def test_a_bucket_that_may_not_be_written_is_an_error(cloud, bucket):
    cloud.client("iam").create_user(UserName="nobody")
    access = cloud.client("iam").create_access_key(UserName="nobody")["AccessKey"]
    s3 = cloud.client("s3", aws_access_key_id=access["AccessKeyId"], aws_secret_access_key=access["SecretAccessKey"])
    with pytest.raises(CommandError, match="AccessDenied") as raised:
        publish("tiny", bucket=bucket, s3=s3)
    assert raised.value.code is ExitCode.REFUSED
    assert keys(cloud.client("s3"), bucket) == []


def test_an_archive_carries_the_manifest_and_lies_at_one_key(cloud, bucket):
    s3 = cloud.client("s3")
    key, digest = publish("tiny", bucket=bucket, s3=s3, archive=True)
    assert key == f"models/tiny/{digest}.tar.gz"
    assert keys(s3, bucket) == [key]
    with tarfile.open(fileobj=BytesIO(s3.get_object(Bucket=bucket, Key=key)["Body"].read())) as archive:
        assert archive.getnames() == ["model-manifest.json", *FILES]
        assert archive.extractfile("tiny.gguf").read() == CONTENT  # type: ignore[union-attr]
    assert publish("tiny", bucket=bucket, s3=s3, archive=True) == Published(key, digest)
    assert not [path for path in storage.model_folder(ENTRY).iterdir() if "tar" in path.name]


def test_the_command_prints_what_a_shell_reads(cloud, bucket, monkeypatch, capsys):
    for name, value in cloud.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert cli.run(["model", "push", "tiny", "--bucket", bucket]) == 0
    lines = dict(line.split("=", 1) for line in capsys.readouterr().out.splitlines())
    assert lines["MODEL_KEY"] == f"models/tiny/{lines['MODEL_MANIFEST_SHA256']}/"


def test_the_program_of_the_build_exports_what_the_command_prints(cloud, bucket, monkeypatch, capsys, tmp_path):
    """And it says on the way how far it is, which a build's log shows."""
    exported = tmp_path / "model.env"
    words = ["tiny", "--bucket", bucket, "--export", str(exported)]
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    assert build_program.main(words) == ExitCode.USAGE
    assert "AWS_REGION" in capsys.readouterr().err
    for name, value in cloud.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert build_program.main(words) == ExitCode.OK
    log = capsys.readouterr().out
    assert "100 %" in log
    assert cli.run(["model", "push", "tiny", "--bucket", bucket]) == ExitCode.OK
    assert exported.read_text() == capsys.readouterr().out


def test_the_command_says_why_it_fails(cloud, bucket, monkeypatch, capsys, pulled):
    for name, value in cloud.environment().items():
        monkeypatch.setenv(name, value)
    pulled.unlink()
    assert cli.run(["model", "push", "tiny", "--bucket", bucket, "--region", "eu-west-1"]) == ExitCode.MODEL
    assert "steelyard model pull tiny" in capsys.readouterr().err


SLOW_PUSH = """
import sys, time
from steelyard import cli
from steelyard.models import publisher
publisher.PART_BYTES = 5 << 20
real = publisher._upload_part
def slowly(*given):
    time.sleep(0.3)
    return real(*given)
publisher._upload_part = slowly
sys.exit(cli.run(["model", "push", "tiny", "--bucket", sys.argv[1], "--region", "eu-west-1"]))
"""


@pytest.mark.parametrize("parts", [0, 1, 3])
def test_ctrl_c_at_any_point_leaves_no_parts_and_no_object(cloud, bucket, tmp_path, parts):
    s3 = cloud.client("s3")
    (tmp_path / "push.py").write_text(SLOW_PUSH)
    environment = {**os.environ, **cloud.environment()}
    command = [sys.executable, str(tmp_path / "push.py"), bucket]

    def uploaded() -> int:
        uploads = s3.list_multipart_uploads(Bucket=bucket).get("Uploads", [])
        if not uploads:
            return -1
        found = s3.list_parts(Bucket=bucket, Key=uploads[0]["Key"], UploadId=uploads[0]["UploadId"])
        return len(found.get("Parts", []))

    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        while uploaded() < parts and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == ExitCode.INTERRUPTED, err
    assert "Traceback" not in err
    assert keys(s3, bucket) == []
    assert no_parts_left(s3, bucket)
    publish("tiny", bucket=bucket, s3=s3)
    assert len(keys(s3, bucket)) == 3


def test_a_model_comes_from_a_bucket(cloud, bucket, tmp_path, monkeypatch):
    """The source kind s3: read with the caller's credentials, a version where one is named."""
    s3 = cloud.client("s3")
    for name, value in cloud.environment().items():
        monkeypatch.setenv(name, value)
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    small = {"tiny.gguf": tiny_model()}
    version = s3.put_object(Bucket=bucket, Key="mine/tiny.gguf", Body=small["tiny.gguf"])["VersionId"]
    s3.put_object(Bucket=bucket, Key="mine/tiny.gguf", Body=b"a newer one")
    source = {"kind": "s3", "bucket": bucket, "prefix": "mine/", "region": "eu-west-1"}
    with pytest.raises(CommandError, match=f"s3://{bucket}/mine/tiny.gguf is not the pinned file") as raised:
        pull(hub_entry(small, name="newest", source=source))
    assert "Signature" not in raised.value.message
    pinned = hub_entry(small, name="pinned", source=source | {"versions": {"tiny.gguf": version}})
    assert pull(pinned).read_bytes() == small["tiny.gguf"]
    with pytest.raises(CommandError, match="404"):
        pull(hub_entry(small, name="absent", source=source | {"prefix": "other/"}))


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
        model="tiny",
        props=BuildProps(
            source=s3_assets.Asset(stack, "Source", path=str(ROOT / "models")),
            buildspec=ROOT / "images" / "model.buildspec.yml",
        ),
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


@pytest.mark.parametrize("archive", [False, True])
def test_the_build_role_publishes_its_model(deployed, archive):
    bucket, s3 = deployed
    first = publish("tiny", bucket=bucket, s3=s3, archive=archive)
    assert publish("tiny", bucket=bucket, s3=s3, archive=archive) == first


@pytest.mark.parametrize(
    "attempt",
    [
        lambda s3, bucket: s3.put_object(Bucket=bucket, Key="models/other/a", Body=b"", IfNoneMatch="*"),
        lambda s3, bucket: s3.put_object(Bucket=bucket, Key="other/tiny/a", Body=b"", IfNoneMatch="*"),
        lambda s3, bucket: s3.put_object(Bucket=bucket, Key="models/tiny/a", Body=b""),
        lambda s3, bucket: s3.get_object(Bucket=bucket, Key="models/other/a"),
        lambda s3, bucket: s3.delete_object(Bucket=bucket, Key="models/tiny/a"),
        lambda s3, bucket: s3.list_objects_v2(Bucket=bucket, Prefix="models/other/"),
        lambda s3, bucket: s3.list_objects_v2(Bucket=bucket),
        lambda s3, bucket: s3.put_bucket_policy(Bucket=bucket, Policy="{}"),
        lambda s3, bucket: s3.list_buckets(),
        lambda s3, bucket: s3.create_bucket(Bucket="another-bucket-of-the-build"),
    ],
    ids=[
        "other model",
        "other prefix",
        "overwrite",
        "read other",
        "delete",
        "list other",
        "list all",
        "policy",
        "list buckets",
        "new bucket",
    ],
)
def test_the_build_role_is_denied_everything_else(deployed, attempt):
    bucket, s3 = deployed
    with pytest.raises(ClientError) as raised:
        attempt(s3, bucket)
    assert raised.value.response["Error"]["Code"] in ("AccessDenied", "AccessDeniedException")

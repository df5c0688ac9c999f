"""Under enforced IAM each role of a deployed environment can do its work, and is denied the rest."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import botocore.exceptions
import httpx
import pytest
from world import CHAT, DECISION, DECISION_STACK, QUESTION, REPOSITORY, World, digest

Client = Callable[[str], Any]

ARTIFACTS, BUILDS = "Steelyard-dev-Artifacts", "Steelyard-dev-Build"
OTHER_BUCKET = "somebody-elses-bucket"
OTHER_REPOSITORY = "somebody-elses-repository"
OTHER_KEY = "models/gemma-3-270m-it/0/model.gguf"
DENIALS = ("AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "403")


@dataclass(frozen=True)
class Scene:
    """The environment, things of others beside it, and how to act as each of its roles."""

    world: World
    acting: dict[str, Client]

    @property
    def bucket(self) -> str:
        return self.world.bucket()

    @property
    def key(self) -> str:
        return self.world.wanted.model.key

    @property
    def project(self) -> str:
        """A CodeBuild project."""
        return self.world.resource(BUILDS, "AWS::CodeBuild::Project", "ImagecpuProject")

    @property
    def source(self) -> tuple[str, str]:
        """Bucket and key of what CodeBuild builds from."""
        found = self.world.client("codebuild").batch_get_projects(names=[self.project])["projects"][0]
        bucket, _, key = found["source"]["location"].partition("/")
        return bucket, key

    def log_group(self, stack: str, logical: str) -> str:
        return self.world.resource(stack, "AWS::Logs::LogGroup", logical)


ROLES = {
    "execution": (DECISION_STACK, "EndpointExecutionRole"),
    "caller": (DECISION_STACK, "CallerRole"),
    "model build": (BUILDS, "Modelgemma3270mRole"),
    "image build": (BUILDS, "ImagecpuRole"),
    "bucket emptier": (ARTIFACTS, "StoreEmptierRole"),
}


@contextmanager
def acting_as(world: World, role: str) -> Iterator[Client]:
    """Clients with a role's credentials: for as long, its trust policy lets us in. What it may do stays as deployed."""
    iam, sts = world.client("iam"), world.client("sts")
    trust = iam.get_role(RoleName=role)["Role"]["AssumeRolePolicyDocument"]
    us = {"Effect": "Allow", "Principal": {"AWS": sts.get_caller_identity()["Arn"]}, "Action": "sts:AssumeRole"}
    widened = {**trust, "Statement": [*trust["Statement"], us]}
    iam.update_assume_role_policy(RoleName=role, PolicyDocument=json.dumps(widened))
    try:
        arn = iam.get_role(RoleName=role)["Role"]["Arn"]
        keys = sts.assume_role(RoleArn=arn, RoleSessionName="test")["Credentials"]
        credentials = {
            "aws_access_key_id": keys["AccessKeyId"],
            "aws_secret_access_key": keys["SecretAccessKey"],
            "aws_session_token": keys["SessionToken"],
        }
        yield lambda service: world.cloud.client(service, **credentials)
    finally:
        iam.update_assume_role_policy(RoleName=role, PolicyDocument=json.dumps(trust))


@pytest.fixture(scope="module")
def scene(bootstrapped: World) -> Iterator[Scene]:
    world = bootstrapped
    world.ensure()
    s3, ecr = world.client("s3"), world.client("ecr")
    s3.create_bucket(Bucket=OTHER_BUCKET)
    s3.put_object(Bucket=OTHER_BUCKET, Key=world.wanted.model.key + "model.gguf", Body=b"theirs")
    s3.put_object(Bucket=world.bucket(), Key=OTHER_KEY, Body=b"another model")
    ecr.create_repository(repositoryName=OTHER_REPOSITORY)
    world.cloud.register_image(OTHER_REPOSITORY, world.wanted.image)
    with ExitStack() as stack:
        acting = {}
        for name, (stack_name, logical) in ROLES.items():
            role = world.resource(stack_name, "AWS::IAM::Role", logical)
            acting[name] = stack.enter_context(acting_as(world, role))
        yield Scene(world, acting)
    ecr.delete_repository(repositoryName=OTHER_REPOSITORY, force=True)
    s3.delete_object(Bucket=OTHER_BUCKET, Key=world.wanted.model.key + "model.gguf")
    s3.delete_bucket(Bucket=OTHER_BUCKET)


def denied(call: Callable[[], object]) -> bool:
    """Whether a call is denied; any other failure fails the test."""
    try:
        call()
    except botocore.exceptions.ClientError as error:
        if error.response["Error"]["Code"] not in DENIALS:
            raise
        return True
    return False


def read(aws: Client, bucket: str, key: str) -> None:
    aws("s3").get_object(Bucket=bucket, Key=key)["Body"].read()


def write(aws: Client, bucket: str, key: str, **options: str) -> None:
    aws("s3").put_object(Bucket=bucket, Key=key, Body=b"new", **options)


def publish(aws: Client, bucket: str) -> None:
    key = f"models/gemma-3-270m/{digest()[-12:]}/a"
    write(aws, bucket, key, IfNoneMatch="*")
    read(aws, bucket, key)


def publish_in_parts(aws: Client, bucket: str, *, condition: dict[str, str]) -> None:
    s3, where = aws("s3"), {"Bucket": bucket, "Key": f"models/gemma-3-270m/{digest()[-12:]}/b"}
    upload = s3.create_multipart_upload(**where)["UploadId"]
    tag = s3.upload_part(**where, UploadId=upload, PartNumber=1, Body=b"part")["ETag"]
    parts = {"Parts": [{"PartNumber": 1, "ETag": tag}]}
    s3.complete_multipart_upload(**where, UploadId=upload, MultipartUpload=parts, **condition)


def pull(aws: Client, scene: Scene, repository: str) -> None:
    image = [{"imageDigest": scene.world.wanted.image}]
    assert aws("ecr").batch_get_image(repositoryName=repository, imageIds=image)["images"]


def push(aws: Client, it: Scene, repository: str) -> None:
    """Push an image of nothing but its configuration, as Docker does; what the registry denies is AWS's denial."""
    [login] = aws("ecr").get_authorization_token()["authorizationData"]
    user, _, password = base64.b64decode(login["authorizationToken"]).decode().partition(":")
    cloud = it.world.cloud.details
    place = f"/v2/{cloud.account}.dkr.ecr.{cloud.region}.amazonaws.com/{repository}"
    config = json.dumps({"created": digest()}).encode()
    name = f"sha256:{hashlib.sha256(config).hexdigest()}"
    kind = "application/vnd.docker.distribution.manifest.v2+json"
    entry = {"mediaType": "application/vnd.docker.container.image.v1+json", "size": len(config), "digest": name}
    manifest = {"schemaVersion": 2, "mediaType": kind, "config": entry, "layers": []}
    with httpx.Client(base_url=f"http://{cloud.registry}", auth=(user, password), trust_env=False) as client:
        begun = granted(client.post(f"{place}/blobs/uploads/"), "InitiateLayerUpload")
        granted(client.put(begun.headers["location"], params={"digest": name}, content=config), "UploadLayerPart")
        tag = f"{place}/manifests/t{digest()[-8:]}"
        granted(client.put(tag, content=json.dumps(manifest), headers={"content-type": kind}), "PutImage")


def granted(answer: httpx.Response, operation: str) -> httpx.Response:
    """An answer of the registry, if it is none of a denial."""
    if answer.status_code in (401, 403):
        raise botocore.exceptions.ClientError({"Error": {"Code": "AccessDenied", "Message": answer.text}}, operation)
    assert answer.status_code in (201, 202), answer.text
    return answer


def invoke(aws: Client, endpoint: str) -> None:
    aws("sagemaker-runtime").invoke_endpoint(
        EndpointName=endpoint, Body=json.dumps(QUESTION), ContentType="application/json"
    )["Body"].read()


def stream(aws: Client, endpoint: str) -> None:
    body = {"messages": [{"role": "user", "content": "the"}], "max_tokens": 2, "stream": True}
    answer = aws("sagemaker-runtime").invoke_endpoint_with_response_stream(
        EndpointName=endpoint, Body=json.dumps(body), ContentType="application/json"
    )
    assert list(answer["Body"])


def log(aws: Client, group: str) -> None:
    name = digest()[-12:]
    aws("logs").create_log_stream(logGroupName=group, logStreamName=name)
    aws("logs").put_log_events(
        logGroupName=group, logStreamName=name, logEvents=[{"timestamp": 1_700_000_000_000, "message": "a line"}]
    )


def make_role(aws: Client) -> None:
    trust = {"Version": "2012-10-17", "Statement": []}
    aws("iam").create_role(RoleName="accomplice", AssumeRolePolicyDocument=json.dumps(trust))


def build(aws: Client, scene: Scene) -> None:
    aws("codebuild").start_build(projectName=scene.project)


Attempt = Callable[[Client, Scene], object]

MAY: dict[str, dict[str, Attempt]] = {
    "execution": {
        "read its model": lambda aws, it: read(aws, it.bucket, it.key + "model.gguf"),
        "list its model's files": lambda aws, it: aws("s3").list_objects_v2(Bucket=it.bucket, Prefix=it.key),
        "log into the registry": lambda aws, it: aws("ecr").get_authorization_token(),
        "pull its image": lambda aws, it: pull(aws, it, REPOSITORY),
        "write its log": lambda aws, it: log(aws, f"/aws/sagemaker/Endpoints/{DECISION}"),
    },
    "caller": {
        "invoke its endpoint": lambda aws, it: invoke(aws, DECISION),
        "stream from its endpoint": lambda aws, it: stream(aws, DECISION),
    },
    "model build": {
        "read its source": lambda aws, it: read(aws, *it.source),
        "publish a file and compare it": lambda aws, it: publish(aws, it.bucket),
        "publish a large file": lambda aws, it: publish_in_parts(aws, it.bucket, condition={"IfNoneMatch": "*"}),
        "write its log": lambda aws, it: log(aws, it.log_group(BUILDS, "Modelgemma3270mLog")),
    },
    "image build": {
        "read its source": lambda aws, it: read(aws, *it.source),
        "log into the registry": lambda aws, it: aws("ecr").get_authorization_token(),
        "push an image": lambda aws, it: push(aws, it, REPOSITORY),
        "write its log": lambda aws, it: log(aws, it.log_group(BUILDS, "ImagecpuLog")),
    },
    "bucket emptier": {
        "see its bucket's tags": lambda aws, it: aws("s3").get_bucket_tagging(Bucket=it.bucket),
        "list its bucket's versions": lambda aws, it: aws("s3").list_object_versions(Bucket=it.bucket),
        "write its log": lambda aws, it: log(aws, it.log_group(ARTIFACTS, "StoreEmptierLog")),
    },
}

# Nobody's work.
NEVER: dict[str, Attempt] = {
    "read another bucket": lambda aws, it: read(aws, OTHER_BUCKET, it.key + "model.gguf"),
    "list another bucket": lambda aws, it: aws("s3").list_objects_v2(Bucket=OTHER_BUCKET),
    "write to another bucket": lambda aws, it: write(aws, OTHER_BUCKET, "theirs"),
    "read another model": lambda aws, it: read(aws, it.bucket, OTHER_KEY),
    "write over another model": lambda aws, it: write(aws, it.bucket, OTHER_KEY, IfNoneMatch="*"),
    "list the whole bucket": lambda aws, it: aws("s3").list_objects_v2(Bucket=it.bucket),
    "delete the bucket": lambda aws, it: aws("s3").delete_bucket(Bucket=it.bucket),
    "pull from another repository": lambda aws, it: pull(aws, it, OTHER_REPOSITORY),
    "push to another repository": lambda aws, it: push(aws, it, OTHER_REPOSITORY),
    "delete an image": lambda aws, it: aws("ecr").batch_delete_image(
        repositoryName=REPOSITORY, imageIds=[{"imageDigest": it.world.wanted.image}]
    ),
    "delete the repository": lambda aws, it: aws("ecr").delete_repository(repositoryName=REPOSITORY),
    "invoke another endpoint": lambda aws, it: invoke(aws, CHAT),
    "delete an endpoint": lambda aws, it: aws("sagemaker").delete_endpoint(EndpointName=DECISION),
    "list endpoints": lambda aws, it: aws("sagemaker").list_endpoints(),
    "start a build": build,
    "make a role": lambda aws, it: make_role(aws),
    "list roles": lambda aws, it: aws("iam").list_roles(),
    "write another log": lambda aws, it: log(aws, f"/aws/sagemaker/Endpoints/{CHAT}"),
    "make a log group": lambda aws, it: aws("logs").create_log_group(logGroupName="/aws/sagemaker/Endpoints/again"),
    "see the stacks": lambda aws, it: aws("cloudformation").describe_stacks(),
    "start a function": lambda aws, it: aws("lambda").invoke(
        FunctionName=it.world.resource(ARTIFACTS, "AWS::Lambda::Function", "StoreEmptier")
    ),
}

MAY_NOT: dict[str, dict[str, Attempt]] = {
    "execution": {
        "write to its model": lambda aws, it: write(aws, it.bucket, it.key + "model.gguf"),
        "add to its model": lambda aws, it: write(aws, it.bucket, it.key + "another.gguf", IfNoneMatch="*"),
        "delete its model": lambda aws, it: aws("s3").delete_object(Bucket=it.bucket, Key=it.key + "model.gguf"),
        "push an image": lambda aws, it: push(aws, it, REPOSITORY),
        "invoke its own endpoint": lambda aws, it: invoke(aws, DECISION),
    },
    "caller": {
        "read the model": lambda aws, it: read(aws, it.bucket, it.key + "model.gguf"),
        "pull the image": lambda aws, it: pull(aws, it, REPOSITORY),
        "stream from another endpoint": lambda aws, it: stream(aws, CHAT),
        "describe its endpoint": lambda aws, it: aws("sagemaker").describe_endpoint(EndpointName=DECISION),
        "write the endpoint's log": lambda aws, it: log(aws, f"/aws/sagemaker/Endpoints/{DECISION}"),
    },
    "model build": {
        "overwrite a file": lambda aws, it: write(aws, it.bucket, f"models/gemma-3-270m/{digest()[-12:]}/a"),
        "overwrite a large file": lambda aws, it: publish_in_parts(aws, it.bucket, condition={}),
        "delete a file": lambda aws, it: aws("s3").delete_object(Bucket=it.bucket, Key="models/gemma-3-270m/0/a"),
        "push an image": lambda aws, it: push(aws, it, REPOSITORY),
        "pull an image": lambda aws, it: pull(aws, it, REPOSITORY),
        "change its source": lambda aws, it: write(aws, *it.source),
        "invoke an endpoint": lambda aws, it: invoke(aws, DECISION),
    },
    "image build": {
        "read a model": lambda aws, it: read(aws, it.bucket, it.key + "model.gguf"),
        "publish a model": lambda aws, it: write(aws, it.bucket, "models/gemma-3-270m/1/a", IfNoneMatch="*"),
        "change its source": lambda aws, it: write(aws, *it.source),
        "invoke an endpoint": lambda aws, it: invoke(aws, DECISION),
    },
    "bucket emptier": {
        "read a model": lambda aws, it: read(aws, it.bucket, it.key + "model.gguf"),
        "write a model": lambda aws, it: write(aws, it.bucket, it.key + "model.gguf"),
        "delete in another bucket": lambda aws, it: aws("s3").delete_object(Bucket=OTHER_BUCKET, Key="theirs"),
        "pull the image": lambda aws, it: pull(aws, it, REPOSITORY),
        "invoke an endpoint": lambda aws, it: invoke(aws, DECISION),
    },
}


def table() -> Iterator[Any]:
    for role in ROLES:
        for allowed, attempts in ((True, MAY[role]), (False, MAY_NOT[role] | NEVER)):
            for what, attempt in attempts.items():
                yield pytest.param(role, allowed, attempt, id=f"{role} {'may' if allowed else 'may not'} {what}")


@pytest.mark.parametrize(("role", "allowed", "attempt"), list(table()))
def test_role_can_do_its_work_and_is_denied_the_rest(scene: Scene, role: str, allowed: bool, attempt: Attempt) -> None:
    assert denied(lambda: attempt(scene.acting[role], scene)) is not allowed


def test_administrator_is_not_denied_what_the_roles_are(scene: Scene) -> None:
    """The denials above are the roles', not the local cloud's: a caller with every right may do the same."""
    for what in ("read another bucket", "read another model", "list the whole bucket", "list roles", "see the stacks"):
        NEVER[what](scene.world.client, scene)

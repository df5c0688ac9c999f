"""Deploys an environment: first what the endpoints need, then what they serve, then the endpoints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from switchyard.aws import Aws, error_code, find_stack, told
from switchyard.cdk import Cdk
from switchyard.environment import Environment
from switchyard.exit_codes import CommandError
from switchyard.models.manifest import FILE_NAME as MODEL_MANIFEST
from switchyard.releases.manifest import Release, ReleasedModel

BOOTSTRAP_STACK = "CDKToolkit"

Say = Callable[[str], None]


class Supplies(Protocol):
    """Provides what a release names and an environment does not have yet."""

    def provide_model(self, aws: Aws, model: ReleasedModel, *, bucket: str) -> None:
        """Put the model into the bucket, or say who does.

        Raises:
            CommandError: It cannot be provided from here; the message says what to do.
        """

    def provide_image(self, digest: str, *, repository: str) -> None:
        """Put our image into the registry, or say who does.

        Raises:
            CommandError: It cannot be provided from here; the message says what to do.
        """


def deploy(aws: Aws, environment: Environment, release: Release, cdk: Cdk, supplies: Supplies, say: Say) -> None:
    """Deploy everything. What is as it should be already is left as it is.

    Args:
        aws: Where to.
        environment: The environment.
        release: What its endpoints serve.
        cdk: The CDK's command line for the same two.
        supplies: Provides the models and images that are missing.
        say: Told each step.

    Raises:
        CommandError: A step failed. Run it again when the cause is gone: it goes on from there.
    """
    account = aws.account()
    if not is_bootstrapped(aws):
        say(f"cdk bootstrap aws://{account}/{aws.region}")
        cdk.bootstrap(account=account, region=aws.region)
    say(f"cdk synth: environment {environment.name}, release {release.id}")
    cdk.synth()
    say("cdk deploy: the bucket and the registry")
    cdk.deploy(environment.stack_name("Artifacts"), environment.stack_name("Build"))
    bucket = artifact_bucket(aws, environment)
    for model in models_of(environment, release):
        if not is_published(aws, bucket, model):
            say(f"the model {model.name} into s3://{bucket}")
            supplies.provide_model(aws, model, bucket=bucket)
    for digest in image_digests(environment, release):
        if not is_pushed(aws, environment, digest):
            say(f"our image {digest[:19]} into the registry")
            supplies.provide_image(digest, repository=environment.repository_name)
    say("cdk deploy --all")
    cdk.deploy()


def is_bootstrapped(aws: Aws) -> bool:
    """Whether the account and region are prepared for the CDK. A stack that others made is left as it is."""
    stack = find_stack(aws, BOOTSTRAP_STACK)
    return stack is not None and stack.stands


def artifact_bucket(aws: Aws, environment: Environment) -> str:
    """The bucket of model artifacts.

    Raises:
        CommandError: The stack that has it is not deployed.
    """
    name = environment.stack_name("Artifacts")
    stack = find_stack(aws, name)
    if stack is None or "BucketName" not in stack.outputs:
        raise CommandError(f"the stack {name} is not deployed, or has no output BucketName")
    return stack.outputs["BucketName"]


def models_of(environment: Environment, release: Release) -> list[ReleasedModel]:
    """The models that the endpoints of an environment serve from its bucket, each once."""
    roles = {endpoint.role for endpoint in environment.endpoints.values() if endpoint.hub is None}
    return list({release.model(role).key: release.model(role) for role in sorted(roles)}.values())


def image_digests(environment: Environment, release: Release) -> list[str]:
    """Digests of our images that the endpoints of an environment run, each once."""
    machines = {each.machine for each in environment.endpoints.values() if each.kind == "decision"}
    return sorted({release.image("decision", machine).digest for machine in machines})


def is_published(aws: Aws, bucket: str, model: ReleasedModel) -> bool:
    """Whether the model is in the bucket: its manifest, which is written last, is there.

    Raises:
        CommandError: S3 cannot be asked.
    """
    key = f"{model.key}{MODEL_MANIFEST}" if model.key.endswith("/") else model.key
    return _exists(lambda: aws.client("s3").head_object(Bucket=bucket, Key=key), ("404", "NoSuchKey", "NotFound"))


def is_pushed(aws: Aws, environment: Environment, digest: str) -> bool:
    """Whether our image is in the registry that the environment pulls from.

    Raises:
        CommandError: ECR cannot be asked.
    """
    account = environment.images.account
    where: dict[str, Any] = {"registryId": account} if account else {}
    image = {"repositoryName": environment.repository_name, "imageIds": [{"imageDigest": digest}], **where}
    return _exists(lambda: aws.client("ecr").describe_images(**image)["imageDetails"], ("ImageNotFoundException",))


def _exists(look: Callable[[], object], absent: Sequence[str]) -> bool:
    from botocore.exceptions import ClientError

    with told():
        try:
            return bool(look())
        except ClientError as error:
            if error_code(error) in absent:
                return False
            raise

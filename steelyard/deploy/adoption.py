"""Things that an earlier deployment kept and the next one needs: adopted, or refused before anything is made.

CloudFormation fails to make what exists. With ``--import-existing-resources`` it takes it over instead, where the
template retains it; that is asked for only where the thing carries this environment's tag.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from steelyard.aws.session import Aws, aws_errors, error_code
from steelyard.deploy.endpoints import stacks_of
from steelyard.deploy.kept import Kept, kept, kept_resources
from steelyard.deploy.leftovers import ENDPOINTS, TAG
from steelyard.environments.schema import CreatedKey, Environment
from steelyard_base.exit_codes import CommandError, ExitCode

_ABSENT = ("NoSuchBucket", "404", "RepositoryNotFoundException", "ResourceNotFoundException")
_UNTAGGED = "NoSuchTagSet"


def adopted(aws: Aws, environment: Environment) -> list[Kept]:
    """The bucket, repository and log groups that stand without a stack under names that this environment will need.

    Args:
        aws: Where to look.
        environment: What is to be deployed.

    Raises:
        CommandError: One of them cannot be adopted: it belongs to something else, the environment's file would delete
            it with its stack, or it is encrypted with a key that the next deployment would not use.
    """
    found = []
    for arn, tags in _standing(aws, environment):
        one = kept(arn)
        if tags.get(TAG) != environment.name:
            raise CommandError(
                f"{arn} exists, and its tag {TAG} is {tags.get(TAG)!r}, not {environment.name!r}",
                code=ExitCode.USAGE,
                hint=f"If AWS made it again: steelyard sweep --env {environment.name} --yes. Otherwise choose another "
                f"name in environments/{environment.name}.toml.",
            )
        found.append(one)
    if found:
        _check_policy(environment, found)
        _check_key(aws, environment, found)
    return found


def _check_policy(environment: Environment, found: list[Kept]) -> None:
    if environment.removal_policy == "retain":
        return
    raise CommandError(
        f"an earlier deployment kept {_names(found)}, and CloudFormation adopts only what it is to retain; "
        "removal_policy is 'destroy'",
        code=ExitCode.USAGE,
        hint=f"Set removal_policy to 'retain', or delete with all that is in it: {_deletion(environment, found)}",
    )


def _check_key(aws: Aws, environment: Environment, found: list[Kept]) -> None:
    stack = stacks_of(aws, environment).get(environment.stack_name("Artifacts"))
    if not isinstance(environment.encryption, CreatedKey) or (stack is not None and stack.lived):
        return
    keys = [each.arn for each in kept_resources(aws, environment) if each.service == "kms"]
    known = f"the key {', '.join(keys)}" if keys else "the key of that deployment"
    raise CommandError(
        f"an earlier deployment kept {_names(found)}, encrypted with {known}; encryption is 'created', which makes "
        "another one",
        code=ExitCode.USAGE,
        hint=f'Set kind = "existing" and its key_arn in [encryption], or delete with all that is in it: '
        f"{_deletion(environment, found)}",
    )


def _names(found: list[Kept]) -> str:
    return ", ".join(f"{each.service} {each.name}" for each in found)


def _deletion(environment: Environment, found: list[Kept]) -> str:
    return f"steelyard sweep --env {environment.name} {' '.join(f'--delete {each.arn}' for each in found)}"


def _standing(aws: Aws, environment: Environment) -> Iterator[tuple[str, Mapping[str, str]]]:
    """ARN and tags of what stands under a name of a stack that does not."""
    alive = {name for name, stack in stacks_of(aws, environment).items() if stack.lived}
    looks: list[tuple[str, Callable[[Aws, str], tuple[str, Mapping[str, str]]], str | None]] = [
        ("Artifacts", _bucket, environment.artifacts.bucket_name),
        ("Build", _repository, None if environment.images.account else environment.repository_name),
        *(
            (f"Endpoint-{name}", _log_group, ENDPOINTS + environment.endpoint_name(name))
            for name in environment.endpoints
        ),
    ]
    for part, look, name in looks:
        if name is None or environment.stack_name(part) in alive:
            continue
        with aws_errors():
            try:
                yield look(aws, name)
            except _client_error() as error:
                if error_code(error) not in _ABSENT:
                    raise


def _client_error() -> Any:
    from botocore.exceptions import ClientError

    return ClientError


def _bucket(aws: Aws, name: str) -> tuple[str, Mapping[str, str]]:
    arn = f"arn:{aws.partition()}:s3:::{name}"
    try:
        tags = aws.client("s3").get_bucket_tagging(Bucket=name)["TagSet"]
    except _client_error() as error:
        if error_code(error) != _UNTAGGED:
            raise
        return arn, {}
    return arn, {each["Key"]: each["Value"] for each in tags}


def _repository(aws: Aws, name: str) -> tuple[str, Mapping[str, str]]:
    client = aws.client("ecr")
    arn = str(client.describe_repositories(repositoryNames=[name])["repositories"][0]["repositoryArn"])
    tags = client.list_tags_for_resource(resourceArn=arn)["tags"]
    return arn, {each["Key"]: each["Value"] for each in tags}


def _log_group(aws: Aws, name: str) -> tuple[str, Mapping[str, str]]:
    client = aws.client("logs")
    arn = f"arn:{aws.partition()}:logs:{aws.region}:{aws.account()}:log-group:{name}"
    tags: Mapping[str, str] = client.list_tags_for_resource(resourceArn=arn)["tags"]
    return arn, tags

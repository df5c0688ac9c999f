"""Resources that carry an environment's tag and belong to none of its stacks: kept on purpose, or left by a change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from steelyard.aws.session import Aws, aws_errors
from steelyard.deploy.endpoints import stacks_of
from steelyard.deploy.leftovers import TAG
from steelyard.environments.schema import Environment
from steelyard_base.exit_codes import CommandError, ExitCode

KEY_DELETION_DAYS = 30


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A resource without a stack.

    Attributes:
        arn: Its ARN.
        service: Such as ``s3``.
        name: Its name or identifier.
    """

    arn: str
    service: str
    name: str


def kept_resources(aws: Aws, environment: Environment) -> list[Kept]:
    """Resources with the environment's tag that no stack of it has, as the Resource Groups Tagging API tells.

    It may still list what was deleted lately.

    Raises:
        CommandError: AWS cannot be asked.
    """
    owned = set(_physical_ids(aws, environment))
    found = [kept(arn) for arn in _tagged(aws, environment) if not owned & set(names_of(arn))]
    return sorted(found, key=lambda each: each.arn)


def kept(arn: str) -> Kept:
    """The resource of an ARN."""
    service, tail = arn.split(":", 5)[2], arn.split(":", 5)[5]
    name = tail.partition(":")[2] if service == "logs" else tail.partition("/")[2] or tail.rpartition(":")[2]
    return Kept(arn=arn, service=service, name=name.removesuffix(":*"))


def names_of(arn: str) -> Iterator[str]:
    """Return the names that CloudFormation may give a resource: its ARN, or the name in it."""
    tail = arn.split(":", 5)[5]
    yield arn
    yield tail
    for separator in ":/":
        yield tail.partition(separator)[2]
        yield tail.rpartition(separator)[2]


def delete(aws: Aws, resource: Kept) -> str:
    """Delete a resource with all that is in it; a sentence of what was done.

    Raises:
        CommandError: AWS refuses, or it is of a kind that is not deleted here.
    """
    ways: dict[str, Callable[[Aws, str], str]] = {
        "s3": _delete_bucket,
        "ecr": _delete_repository,
        "logs": _delete_log_group,
        "kms": _delete_key,
    }
    if resource.service not in ways:
        raise CommandError(
            f"{resource.arn} is not deleted here: only {', '.join(sorted(ways))} are",
            code=ExitCode.USAGE,
            hint="Delete it with the AWS CLI or in the console.",
        )
    with aws_errors():
        return ways[resource.service](aws, resource.name)


def _delete_bucket(aws: Aws, name: str) -> str:
    from steelyard_constructs.empty_bucket_handler import empty

    client = aws.client("s3")
    count = empty(client, name)
    client.delete_bucket(Bucket=name)
    return f"the bucket {name} is deleted, with {count} versions of objects"


def _delete_repository(aws: Aws, name: str) -> str:
    aws.client("ecr").delete_repository(repositoryName=name, force=True)
    return f"the repository {name} is deleted, with its images"


def _delete_log_group(aws: Aws, name: str) -> str:
    aws.client("logs").delete_log_group(logGroupName=name)
    return f"the log group {name} is deleted"


def _delete_key(aws: Aws, name: str) -> str:
    aws.client("kms").schedule_key_deletion(KeyId=name, PendingWindowInDays=KEY_DELETION_DAYS)
    return f"the key {name} will be deleted in {KEY_DELETION_DAYS} days; what it encrypted cannot be read after that"


def _tagged(aws: Aws, environment: Environment) -> Iterator[str]:
    wanted = [{"Key": TAG, "Values": [environment.name]}]
    with aws_errors():
        pages = aws.client("resourcegroupstaggingapi").get_paginator("get_resources").paginate(TagFilters=wanted)
        for page in pages:
            for each in page["ResourceTagMappingList"]:
                yield each["ResourceARN"]


def _physical_ids(aws: Aws, environment: Environment) -> Iterator[str]:
    client = aws.client("cloudformation")
    for name in stacks_of(aws, environment):
        with aws_errors():
            for page in client.get_paginator("list_stack_resources").paginate(StackName=name):
                for each in page["StackResourceSummaries"]:
                    if identifier := each.get("PhysicalResourceId"):
                        yield identifier
        yield name

"""Log groups that AWS makes again after an environment's stacks are gone; it makes nothing else that we know of.

SageMaker, CodeBuild and Lambda make a log group that is missing when they write to it and their role lets them, so a
container's last words can bring back the group that its stack has just deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from steelyard.aws.session import Aws, aws_errors
from steelyard.deploy.endpoints import stacks_of
from steelyard.environments.files import environment_names
from steelyard.environments.schema import Environment

TAG = "steelyard:environment"

ENDPOINTS = "/aws/sagemaker/Endpoints/"
# Groups that CloudFormation named, and those that a service names after a project or function that it named.
STACKS = ("", "/aws/codebuild/", "/aws/lambda/")


@dataclass(frozen=True)
class LogGroup:
    """A log group that is named like those of an environment.

    Attributes:
        name: Its name.
        bytes: What is stored in it.
        kept_because: Why it is not a leftover; None when it is one.
    """

    name: str
    bytes: int
    kept_because: str | None = None


def log_groups(aws: Aws, environment: Environment) -> list[LogGroup]:
    """Log groups that are named like those of an environment, each with why it is not a leftover.

    Those that a stack declared carry the environment's tag: they belong to a stack that stands, or were kept on purpose
    by ``removal_policy = "retain"``. What AWS made by itself carries no tag of ours.

    Raises:
        CommandError: AWS cannot be asked.
    """
    stacks = list(stacks_of(aws, environment))
    found = [
        LogGroup(
            group["logGroupName"], int(group.get("storedBytes", 0)), _kept_because(aws, group, environment, stacks)
        )
        for prefix in _prefixes(environment)
        for group in _described(aws, prefix)
        if not _is_of_another(group["logGroupName"], environment)
    ]
    return sorted(found, key=lambda group: group.name)


def remove(aws: Aws, group: LogGroup) -> None:
    """Delete a leftover; one that is gone meanwhile is as good.

    Raises:
        ValueError: It is not a leftover.
        CommandError: AWS refuses.
    """
    if group.kept_because is not None:
        raise ValueError(f"{group.name} is kept: {group.kept_because}")
    logs = aws.client("logs")
    with aws_errors():
        try:
            logs.delete_log_group(logGroupName=group.name)
        except logs.exceptions.ResourceNotFoundException:
            return


def _prefixes(environment: Environment) -> Iterator[str]:
    yield ENDPOINTS + environment.endpoint_name("")
    for service in STACKS:
        yield service + environment.stack_name("")


def _is_of_another(name: str, environment: Environment) -> bool:
    """Tell whether an environment of a longer name explains the name better: dev-eu's endpoint x, and dev's eu-x."""
    longer = [other for other in environment_names() if other.startswith(f"{environment.name}-")]
    return any(name.startswith(ENDPOINTS + f"steelyard-{other}-") or f"Steelyard-{other}-" in name for other in longer)


def _described(aws: Aws, prefix: str) -> list[dict[str, Any]]:
    with aws_errors():
        pages = aws.client("logs").get_paginator("describe_log_groups").paginate(logGroupNamePrefix=prefix)
        return [group for page in pages for group in page["logGroups"]]


def _kept_because(aws: Aws, group: dict[str, Any], environment: Environment, stacks: Sequence[str]) -> str | None:
    name = group["logGroupName"]
    for stack in stacks:
        if _belongs(name, stack, environment):
            return f"the stack {stack} stands"
    arn = group.get("logGroupArn") or group["arn"].removesuffix(":*")
    with aws_errors():
        tags = aws.client("logs").list_tags_for_resource(resourceArn=arn)["tags"]
    if TAG in tags:
        return f"a stack declared it and kept it (tag {TAG} = {tags[TAG]})"
    return None


def _belongs(name: str, stack: str, environment: Environment) -> bool:
    endpoint = stack.removeprefix(environment.stack_name("Endpoint-"))
    if name == ENDPOINTS + environment.endpoint_name(endpoint):
        return True
    return any(name.startswith(f"{service}{stack}-") for service in STACKS)

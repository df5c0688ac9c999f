"""Destroys an environment, in the order in which AWS lets go of it, and looks that nothing is left."""

from __future__ import annotations

import shutil
import time

from steelyard.aws.cloudformation import delete_stack, find_stack
from steelyard.aws.session import Aws, aws_errors
from steelyard.cdk.program import Cdk
from steelyard.deploy import leftovers
from steelyard.deploy.deployment import undeclared
from steelyard.deploy.endpoints import Say, stacks_of
from steelyard.deploy.kept import kept_resources
from steelyard.environments.schema import Environment
from steelyard_base.exit_codes import CommandError

_SECURITY_GROUP = "SecurityGroupId"


def destroy(aws: Aws, environment: Environment, cdk: Cdk, say: Say, *, note: Say) -> None:
    """Destroy everything of an environment. What it retains stays, and is listed.

    Endpoints go first. SageMaker's network interfaces outlive them, and AWS keeps the network until they are gone.

    Args:
        aws: Where.
        environment: The environment.
        cdk: The CDK's command line for it.
        say: Receives each step.
        note: Receives what a person should know beside the steps.

    Raises:
        CommandError: A step failed, or a stack is left. Run it again when the cause is gone.
    """
    prefix = environment.stack_name("Endpoint-")
    if stacks := stacks_of(aws, environment):
        say(f"cdk synth: environment {environment.name}")
        cdk.synth()
        # They import from what the CDK destroys.
        for stack in undeclared(aws, environment, cdk):
            if stack.name.startswith(prefix):
                say(f"deleting {stack.name}, which environments/{environment.name}.toml no longer has")
                delete_stack(aws, stack)
        endpoints = sorted(name for name in stacks if name.startswith(prefix) and name in cdk.declared())
        if endpoints and (group := _security_group(aws, environment)) is not None:
            say("cdk destroy: the endpoints")
            cdk.destroy(*endpoints)
            await_interfaces(aws, group, say)
        say("cdk destroy --all")
        cdk.destroy()
    if left := stacks_of(aws, environment):
        raise CommandError(
            f"these stacks are left: {', '.join(f'{name} ({stack.status})' for name, stack in sorted(left.items()))}",
            hint="An environment that retains its stacks protects them from deletion; see docs/how-to/deploy.md.",
        )
    groups = set()
    for found in leftovers.log_groups(aws, environment):
        if found.kept_because is None:
            leftovers.remove(aws, found)
            note(f"removed {found.name}, which AWS had made again")
        else:
            note(f"kept {found.name}: {found.kept_because}")
            groups.add(found.name)
    for each in kept_resources(aws, environment):
        if each.name not in groups:
            note(
                f"kept {each.service} {each.name}: it has no stack, or AWS still lists what it is deleting: {each.arn}"
            )
    shutil.rmtree(cdk.assembly, ignore_errors=True)


def await_interfaces(
    aws: Aws, security_group: str, say: Say, *, poll_s: float = 5.0, longest_s: float = 3600.0
) -> None:
    """Wait until no network interface is in a security group, which AWS deletes only then.

    Raises:
        CommandError: Some are left after ``longest_s``, or AWS cannot be asked.
    """
    until = time.monotonic() + longest_s
    listed = False
    while identifiers := _interfaces(aws, security_group):
        if not listed:
            say(f"waiting until SageMaker has removed the {len(identifiers)} network interfaces of the endpoints")
            listed = True
        if time.monotonic() >= until:
            raise CommandError(
                f"after {longest_s:.0f} s there are still network interfaces in {security_group}: "
                f"{', '.join(identifiers)}",
                hint="They are SageMaker's, which may take longer; run this again later.",
            )
        time.sleep(poll_s)


def _interfaces(aws: Aws, security_group: str) -> list[str]:
    wanted = [{"Name": "group-id", "Values": [security_group]}]
    with aws_errors():
        pages = aws.client("ec2").get_paginator("describe_network_interfaces").paginate(Filters=wanted)
        return [each["NetworkInterfaceId"] for page in pages for each in page["NetworkInterfaces"]]


def _security_group(aws: Aws, environment: Environment) -> str | None:
    stack = find_stack(aws, environment.stack_name("Network"))
    return None if stack is None else stack.outputs.get(_SECURITY_GROUP)

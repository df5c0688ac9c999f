"""The stacks and endpoints of an environment, as they are deployed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from steelyard.aws.cloudformation import Stack, find_stack, stacks_with_prefix
from steelyard.aws.session import Aws
from steelyard.environments.schema import Environment
from steelyard_base.exit_codes import CommandError, ExitCode

Kind = Literal["chat", "decision"]
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class DeployedEndpoint:
    """An endpoint as its stack describes it.

    Attributes:
        name: What SageMaker calls it.
        kind: Which contract it answers.
        release: Identifier of the release that it runs.
        log_group: Where its containers write.
    """

    name: str
    kind: Kind
    release: str
    log_group: str


def deployed_endpoint(aws: Aws, environment: Environment, name: str) -> DeployedEndpoint:
    """The endpoint ``name`` of ``environment``, from the outputs of its stack.

    Args:
        aws: Where to ask.
        environment: The environment.
        name: Its name in the environment file.

    Raises:
        CommandError: It is not in the environment file, or not deployed.
    """
    if name not in environment.endpoints:
        known = ", ".join(sorted(environment.endpoints)) or "none"
        raise CommandError(
            f"there is no endpoint {name!r} in the environment {environment.name!r}; it has {known}",
            code=ExitCode.USAGE,
        )
    stack_name = environment.stack_name(f"Endpoint-{name}")
    stack = find_stack(aws, stack_name)
    if stack is None or "EndpointName" not in stack.outputs:
        state = "does not exist" if stack is None else f"is {stack.status} and names no endpoint"
        raise CommandError(
            f"the endpoint {name!r} is not deployed in {environment.name!r}: the stack {stack_name} {state}",
            hint=f"Deploy it: steelyard up --env {environment.name} (make run for the local cloud).",
        )
    said = stack.outputs
    kind: Kind = "chat" if said.get("Kind") == "chat" else "decision"
    return DeployedEndpoint(
        name=said["EndpointName"], kind=kind, release=said.get("Release", ""), log_group=said.get("LogGroup", "")
    )


def stacks_of(aws: Aws, environment: Environment) -> dict[str, Stack]:
    """Return the stacks of an environment that exist, by name.

    Raises:
        CommandError: AWS cannot be asked.
    """
    prefix = environment.stack_name("")
    # Parts have capitals and environments have none: Steelyard-dev-eu-Build is of dev-eu, not of dev.
    ours = [stack for stack in stacks_with_prefix(aws, prefix) if stack.name.removeprefix(prefix)[:1].isupper()]
    return {stack.name: stack for stack in ours if stack.status != "DELETE_COMPLETE"}

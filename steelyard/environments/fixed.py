"""Values that AWS keeps from the creation of a stack: they cannot change in place, and other stacks import them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from steelyard.environments.schema import Environment, ExistingKey, ExistingNetwork, NoNetwork

OUTPUT = "FixedAtCreation"
"""The output of a stack that tells them, as JSON."""

REASONS: Mapping[str, str] = {
    "artifacts.bucket_name": "S3 renames no bucket, and the endpoints' stacks import its name",
    "encryption": "ECR keeps a repository's encryption, and other stacks import the key",
    "images.repository": "ECR renames no repository, and releases name it",
    "network.cidr": "a subnet keeps its addresses, and the endpoints' stacks import the subnets",
    "network.kind": "a security group keeps its VPC, and the endpoints' stacks import it",
    "network.vpc_id": "a security group keeps its VPC, and the endpoints' stacks import it",
    "network.zones": "a subnet keeps its zone and addresses, and the endpoints' stacks import the subnets",
}


def fixed_values(environment: Environment) -> dict[str, dict[str, str]]:
    """By the ending of a stack's name: field of the environment file, and its value."""
    encryption = environment.encryption
    key = f"{encryption.kind} {encryption.key_arn}" if isinstance(encryption, ExistingKey) else encryption.kind
    found = {"Artifacts": {"artifacts.bucket_name": environment.artifacts.bucket_name or "", "encryption": key}}
    if environment.images.account is None:
        found["Build"] = {"images.repository": environment.repository_name, "encryption": key}
    network = environment.network
    if isinstance(network, ExistingNetwork):
        found["Network"] = {"network.kind": network.kind, "network.vpc_id": network.vpc_id}
    elif not isinstance(network, NoNetwork):
        found["Network"] = {
            "network.kind": network.kind,
            "network.cidr": network.cidr,
            "network.zones": str(network.zones),
        }
    return found


def output_value(environment: Environment, stack: str) -> str | None:
    """The value of a stack's output; None for a stack that keeps nothing."""
    values = fixed_values(environment).get(stack)
    return None if values is None else json.dumps(values, sort_keys=True)


def fixed_faults(environment: Environment, stack: str, output: str) -> Iterator[str]:
    """A sentence for each value that the file has otherwise than a stack was made with.

    Args:
        environment: The environment, as the file has it.
        stack: Ending of the stack's name.
        output: The stack's output.
    """
    deployed = json.loads(output)
    for field, wanted in fixed_values(environment).get(stack, {}).items():
        if field in deployed and deployed[field] != wanted:
            yield f"{field} is {wanted!r}, and was {deployed[field]!r} when it was made: {REASONS[field]}"

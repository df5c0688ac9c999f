"""Accept a finding of cdk-nag beside the resource that causes it, with the reason."""

from __future__ import annotations

from typing import Any

import aws_cdk as cdk
from constructs import IConstruct

from steelyard_constructs.refusal import Refused


def acknowledge(construct: IConstruct, finding: str, *, reason: str) -> None:
    """Record that a finding on ``construct``, or below it, is intended.

    Args:
        construct: The narrowest construct that has the finding.
        finding: The rule, such as ``AwsSolutions-CB3``; a rule that reports several findings on one resource wants
            the whole of ``RULE[FINDING]``, because cdk-nag compares identifiers and not prefixes.
        reason: Why it is right here, for the person who audits it.

    Raises:
        Refused: The reason is empty.
    """
    if not reason.strip():
        raise Refused(f"{finding} on {construct.node.path} is acknowledged without a reason; write one")
    cdk.Validations.of(construct).acknowledge(cdk.Acknowledgment(id=finding, reason=reason))


def acknowledge_wildcard(construct: IConstruct, resource: str, *, reason: str) -> None:
    """Record that a resource with ``*`` in an IAM policy of ``construct`` is intended (rule AwsSolutions-IAM5).

    Args:
        construct: The role, or the construct that holds its policy.
        resource: The resource exactly as the statement has it, tokens included.
        reason: Why it cannot be narrower.

    Raises:
        Refused: The reason is empty, or the resource has no ``*``.
    """
    flat = _flat(cdk.Stack.of(construct).resolve(resource))
    if "*" not in flat:
        raise Refused(f"{flat} on {construct.node.path} has no *, so there is nothing to acknowledge")
    acknowledge(construct, f"AwsSolutions-IAM5[Resource::{flat}]", reason=reason)


def resource_from(scope: IConstruct, owner: cdk.Stack, arn: str) -> str:
    """The ARN of a resource that another stack may own, as a statement in the stack of ``scope`` will have it.

    CDK turns a reference between stacks into an export and an import when it synthesizes, after acknowledgements were
    recorded; making the same export now gives both the same text.

    Args:
        scope: Where the ARN is used.
        owner: The stack of the resource.
        arn: Its ARN: a token, or plain text, which is returned unchanged.
    """
    if owner is cdk.Stack.of(scope) or not cdk.Token.is_unresolved(arn):
        return arn
    return owner.export_value(arn)


def _flat(value: Any) -> str:
    """A resolved ARN in the notation of cdk-nag's findings: ``<LogicalId.Attribute>``, ``<Parameter>``."""
    match value:
        case str():
            return value.replace("${", "<").replace("}", ">")
        case {"Fn::Join": [delimiter, parts]}:
            return str(delimiter).join(_flat(part) for part in parts)
        case {"Fn::GetAtt": [resource, attribute]}:
            return f"<{resource}.{attribute}>"
        case {"Fn::ImportValue": name} | {"Fn::Sub": name}:
            return _flat(name)
        case {"Ref": name}:
            return f"<{name}>"
    raise Refused(f"an ARN made of {value!r} cannot be named in an acknowledgement")

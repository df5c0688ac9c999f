"""A service of AWS as a principal, for its work in this account only."""

from __future__ import annotations

from aws_cdk import Stack
from aws_cdk import aws_iam as iam
from constructs import Construct


def service_principal(scope: Construct, service: str, *, resource: str | None = None) -> iam.IPrincipal:
    """The service when it works for a resource of the stack's account, and for no other account.

    Without the conditions another account's resource could make the service act with this account's role.

    Args:
        scope: Where it is used.
        service: The service, such as ``sagemaker``.
        resource: What the service acts for, as the end of an ARN of ``service``, such as ``project/*``; None where the
            service does not say.
    """
    stack = Stack.of(scope)
    conditions: dict[str, dict[str, str]] = {"StringEquals": {"aws:SourceAccount": stack.account}}
    if resource is not None:
        place = f"{service}:{stack.region}:{stack.account}"
        conditions["ArnLike"] = {"aws:SourceArn": f"arn:{stack.partition}:{place}:{resource}"}
    return iam.ServicePrincipal(f"{service}.amazonaws.com").with_conditions(conditions)


def own_account(scope: Construct) -> dict[str, str]:
    """The condition that a resource belongs to the stack's account; a bucket's ARN does not say whose it is."""
    return {"aws:ResourceAccount": Stack.of(scope).account}

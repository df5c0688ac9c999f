"""Removal policies: whether what a stack stores outlives it."""

from __future__ import annotations

import aws_cdk as cdk

from steelyard_constructs.refusal import Refused

#: With ``RETAIN_ON_UPDATE_OR_DELETE`` a first deployment that fails leaves nothing in the way of the next one.
_TAKEN = (cdk.RemovalPolicy.DESTROY, cdk.RemovalPolicy.RETAIN, cdk.RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE)


def check_removal_policy(what: str, removal_policy: cdk.RemovalPolicy) -> None:
    """Refuse a policy that neither keeps nor deletes.

    Args:
        what: Such as ``a bucket``.
        removal_policy: The policy.

    Raises:
        Refused: It is ``SNAPSHOT``.
    """
    if removal_policy not in _TAKEN:
        raise Refused(
            f"removal_policy is {removal_policy.name}; {what} is kept or not: use DESTROY, RETAIN or "
            "RETAIN_ON_UPDATE_OR_DELETE"
        )

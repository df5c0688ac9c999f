"""ARNs of SageMaker's resources."""

from __future__ import annotations

from ministack.core.responses import get_account_id, get_region


def arn(kind: str, name: str) -> str:
    """The ARN of a ``model``, ``endpoint-config`` or ``endpoint`` in the caller's account and region.

    SageMaker writes the name in lower case.
    """
    return f"arn:aws:sagemaker:{get_region()}:{get_account_id()}:{kind}/{name.lower()}"

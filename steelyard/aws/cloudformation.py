"""CloudFormation stacks: found, described, deleted."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from steelyard.aws.session import Aws, aws_errors, error_code
from steelyard_base.exit_codes import CommandError


@dataclass(frozen=True, kw_only=True)
class Stack:
    """A CloudFormation stack that exists.

    Attributes:
        name: Its name.
        status: Such as ``UPDATE_COMPLETE``.
        outputs: Its outputs by name.
        protected: Whether AWS refuses to delete it.
    """

    name: str
    status: str
    outputs: Mapping[str, str]
    protected: bool = False

    @property
    def stands(self) -> bool:
        """Tell whether the last thing that was done to it worked, or was taken back."""
        return self.status in ("CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE", "IMPORT_COMPLETE")

    @property
    def lived(self) -> bool:
        """Tell whether a deployment of it ever worked."""
        return self.status not in ("ROLLBACK_COMPLETE", "ROLLBACK_FAILED", "CREATE_FAILED", "REVIEW_IN_PROGRESS")


def find_stack(aws: Aws, name: str) -> Stack | None:
    """The stack called ``name``; None when there is none.

    Raises:
        CommandError: AWS cannot be asked.
    """
    from botocore.exceptions import ClientError

    with aws_errors():
        try:
            found = aws.client("cloudformation").describe_stacks(StackName=name)["Stacks"]
        except ClientError as error:
            if error_code(error) == "ValidationError" and "does not exist" in str(error):
                return None
            raise
    return _stack(found[0]) if found else None


def stacks_with_prefix(aws: Aws, prefix: str) -> list[Stack]:
    """Return the stacks whose names begin with ``prefix``.

    Raises:
        CommandError: AWS cannot be asked.
    """
    with aws_errors():
        pages = aws.client("cloudformation").get_paginator("describe_stacks").paginate()
        return [_stack(each) for page in pages for each in page["Stacks"] if each["StackName"].startswith(prefix)]


def delete_stack(aws: Aws, stack: Stack, *, poll_s: float = 5.0, longest_s: float = 3600.0) -> None:
    """Delete a stack and wait until it is gone.

    Raises:
        CommandError: AWS refuses (it is protected), something in it cannot be deleted, or it takes too long.
    """
    until = time.monotonic() + longest_s
    with aws_errors():
        aws.client("cloudformation").delete_stack(StackName=stack.name)
    while (now := find_stack(aws, stack.name)) is not None and now.status != "DELETE_COMPLETE":
        if now.status == "DELETE_FAILED" or time.monotonic() >= until:
            raise CommandError(
                f"the stack {stack.name} could not be deleted: it is {now.status}",
                hint="CloudFormation's reason: aws cloudformation describe-stack-events "
                f"--stack-name {stack.name} --region {aws.region}",
            )
        time.sleep(poll_s)


def _stack(described: Mapping[str, Any]) -> Stack:
    outputs = {each["OutputKey"]: each["OutputValue"] for each in described.get("Outputs", ())}
    return Stack(
        name=described["StackName"],
        status=described["StackStatus"],
        outputs=outputs,
        protected=bool(described.get("EnableTerminationProtection")),
    )

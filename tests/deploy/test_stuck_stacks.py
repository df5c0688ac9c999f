"""A stack whose update could not be taken back: AWS refuses every deployment until the rollback is continued."""

from __future__ import annotations

from typing import Any

import pytest

from steelyard.deploy.deployment import check_updatable
from steelyard.environments.files import load_environment
from steelyard_base.exit_codes import CommandError


class CloudFormation:
    """CloudFormation with stacks of given statuses."""

    region = "eu-west-1"

    def __init__(self, **statuses: str) -> None:
        self.stacks = [{"StackName": f"Steelyard-dev-{part}", "StackStatus": each} for part, each in statuses.items()]

    def client(self, _service: str) -> CloudFormation:
        return self

    def get_paginator(self, operation: str) -> CloudFormation:
        assert operation == "describe_stacks"
        return self

    def paginate(self) -> list[dict[str, Any]]:
        return [{"Stacks": self.stacks[:1]}, {"Stacks": self.stacks[1:]}]


def test_a_failed_rollback_is_refused_with_the_command_that_continues_it() -> None:
    aws: Any = CloudFormation(Build="UPDATE_ROLLBACK_FAILED", Artifacts="UPDATE_ROLLBACK_COMPLETE")
    with pytest.raises(
        CommandError, match="take back the last update of Steelyard-dev-Build: UPDATE_ROLLBACK_FAILED"
    ) as refused:
        check_updatable(aws, load_environment("dev"))
    command = "aws cloudformation continue-update-rollback --stack-name Steelyard-dev-Build --region eu-west-1"
    assert command in (refused.value.hint or "")
    assert "Artifacts" not in (refused.value.hint or "")


def test_other_stacks_are_not_refused() -> None:
    aws: Any = CloudFormation(
        Build="UPDATE_ROLLBACK_COMPLETE", Artifacts="ROLLBACK_COMPLETE", Network="CREATE_COMPLETE"
    )
    check_updatable(aws, load_environment("dev"))

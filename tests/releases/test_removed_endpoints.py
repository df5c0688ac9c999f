"""Stacks of endpoints that the environment's file no longer has: named at every deployment, with what deletes them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from accounts import Account

from steelyard.aws.cloudformation import Stack, delete_stack
from steelyard.aws.session import Aws
from steelyard.cdk.program import Cdk
from steelyard.deploy import deployment
from steelyard.deploy.endpoints import stacks_of
from steelyard_base.exit_codes import CommandError

REMOVED = "Steelyard-dev-Endpoint-removed"
OTHERS = "Steelyard-dev-eu-Endpoint-chat"
DELETION = f"aws cloudformation delete-stack --region us-east-1 --stack-name {REMOVED}"


class Assembly(Cdk):
    """An assembly with the stacks of this account, and no command line that would deploy them."""

    def bootstrap(self, *, account: str, region: str, qualifier: str, stack: str) -> None:
        """It is."""

    def synth(self) -> None:
        names = ("Steelyard-dev-Artifacts", "Steelyard-dev-Build", "Steelyard-dev-Endpoint-chat")
        self.assembly.mkdir(exist_ok=True)
        artifacts: dict[str, Any] = {}
        for name in names:
            (self.assembly / f"{name}.json").write_text('{"Resources": {}}')
            artifacts[name] = {"type": "aws:cloudformation:stack", "properties": {"templateFile": f"{name}.json"}}
        artifacts["Tree"] = {"type": "cdk:tree"}
        (self.assembly / "manifest.json").write_text(json.dumps({"artifacts": artifacts}))

    def deploy(self, *_stacks: str, **_options: bool) -> None:
        """It is."""


@contextmanager
def standing(account: Account, *names: str, protected: bool = False) -> Iterator[None]:
    client = account.client("cloudformation")
    template = json.dumps({"Resources": {"Nothing": {"Type": "AWS::SNS::Topic"}}})
    for name in names:
        client.create_stack(StackName=name, TemplateBody=template, EnableTerminationProtection=protected)
        client.get_waiter("stack_create_complete").wait(StackName=name, WaiterConfig={"Delay": 1})
    try:
        yield
    finally:
        for name in names:
            if protected:
                client.update_termination_protection(StackName=name, EnableTerminationProtection=False)
            client.delete_stack(StackName=name)
            client.get_waiter("stack_delete_complete").wait(StackName=name, WaiterConfig={"Delay": 1})


def test_a_deployment_names_them_and_what_deletes_them(aws: Aws, account: Account, tmp_path: Path) -> None:
    """Before the stacks are deployed, because what they import may be what fails. Other environments' are not ours."""
    cdk = Assembly(environment="dev", release="sample", assembly=tmp_path)
    said: list[str] = []
    with standing(account, REMOVED, OTHERS):
        deployment.prepare(aws, account.environment(), cdk, said.append, note=said.append)
        assert [each.name for each in deployment.undeclared(aws, account.environment(), cdk)] == [REMOVED]
        assert OTHERS not in stacks_of(aws, account.environment())
    note, last = said[-2:]
    assert f"the stack {REMOVED} (CREATE_COMPLETE) belongs to nothing in environments/dev.toml any more" in note
    assert DELETION in note
    assert last.startswith("cdk deploy")
    assert not any(OTHERS in each for each in said)
    notes: list[str] = []
    deployment.prepare(aws, account.environment(), cdk, said.append, note=notes.append)
    assert notes == []


def test_a_protected_one_is_unprotected_first(aws: Aws, account: Account) -> None:
    with standing(account, REMOVED, protected=True):
        stack = stacks_of(aws, account.environment())[REMOVED]
        assert stack.protected
        where = f"--region us-east-1 --stack-name {REMOVED}"
        first = f"aws cloudformation update-termination-protection --no-enable-termination-protection {where}"
        assert deployment.deletion(aws, stack) == f"{first} && {DELETION}"
        with pytest.raises(CommandError, match=r"AWS refused DeleteStack .*[Pp]rotection"):
            delete_stack(aws, stack)
        assert REMOVED in stacks_of(aws, account.environment())


class Stuck:
    """CloudFormation with a stack that cannot be deleted, in one of two ways."""

    region = "us-east-1"

    def __init__(self, status: str) -> None:
        self.status = status
        self.deleted: list[str] = []

    def client(self, _service: str) -> Any:
        return self

    def delete_stack(self, *, StackName: str) -> None:  # noqa: N803 - as boto3 has it
        self.deleted.append(StackName)

    def describe_stacks(self, *, StackName: str) -> dict[str, Any]:  # noqa: N803 - as boto3 has it
        return {"Stacks": [{"StackName": StackName, "StackStatus": self.status}]}


@pytest.mark.parametrize("status", ["DELETE_FAILED", "DELETE_IN_PROGRESS"])
def test_one_that_cannot_be_deleted_is_told(status: str) -> None:
    aws: Any = Stuck(status)
    stack = Stack(name=REMOVED, status="CREATE_COMPLETE", outputs={})
    with pytest.raises(CommandError, match=f"{REMOVED} could not be deleted: it is {status}") as caught:
        delete_stack(aws, stack, poll_s=0.01, longest_s=0.05)
    assert f"describe-stack-events --stack-name {REMOVED} --region us-east-1" in (caught.value.hint or "")
    assert aws.deleted == [REMOVED]

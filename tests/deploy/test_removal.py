"""Before the network goes: no interface of SageMaker's may be left in the endpoints' security group."""

from __future__ import annotations

from typing import Any

import pytest

from steelyard.deploy.removal import await_interfaces
from steelyard_base.exit_codes import CommandError


class Ec2:
    """EC2 with interfaces that go one by one, each time that it is asked."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.asked: list[Any] = []

    def client(self, _service: str) -> Ec2:
        return self

    def get_paginator(self, operation: str) -> Ec2:
        assert operation == "describe_network_interfaces"
        return self

    def paginate(self, *, Filters: list[Any]) -> list[dict[str, Any]]:  # noqa: N803 - boto3's name
        self.asked.append(Filters)
        found = [{"NetworkInterfaceId": f"eni-{number}"} for number in range(self.left)]
        self.left = max(0, self.left - 1)
        return [{"NetworkInterfaces": found[:1]}, {"NetworkInterfaces": found[1:]}]


def test_it_waits_until_the_last_interface_is_gone_and_says_so_once() -> None:
    aws: Any = Ec2(2)
    said: list[str] = []
    await_interfaces(aws, "sg-1", said.append, poll_s=0)
    assert aws.asked == [[{"Name": "group-id", "Values": ["sg-1"]}]] * 3
    assert said == ["waiting until SageMaker has removed the 2 network interfaces of the endpoints"]


def test_without_interfaces_it_says_nothing() -> None:
    aws: Any = Ec2(0)
    said: list[str] = []
    await_interfaces(aws, "sg-1", said.append, poll_s=0)
    assert said == []


def test_interfaces_that_stay_are_named() -> None:
    aws: Any = Ec2(3)
    with pytest.raises(CommandError, match=r"still network interfaces in sg-1: eni-0, eni-1, eni-2"):
        await_interfaces(aws, "sg-1", lambda _: None, poll_s=0, longest_s=0)

"""Values that AWS keeps from the creation of a stack: each is told by the stack, and a change of it is a sentence."""

from __future__ import annotations

import json
from typing import Any

import pytest

from steelyard.environments.files import parse_environment
from steelyard.environments.fixed import REASONS, fixed_faults, fixed_values, output_value
from steelyard.environments.schema import Environment


def environment(**fields: Any) -> Environment:
    return parse_environment({"region": "us-east-1", "removal_policy": "destroy", **fields}, name="dev", source="test")


SUBNETS = {"us-east-1a": "subnet-0123456789abcdef0"}
THEIRS = {"kind": "existing", "vpc_id": "vpc-0123456789abcdef0", "subnets": SUBNETS}
WITH_NETWORK = {"network": {"kind": "created"}}
KEY = "arn:aws:kms:us-east-1:111122223333:key/12345678-1234-1234-1234-123456789012"
CHANGES: list[tuple[str, str, dict[str, Any]]] = [
    ("Artifacts", "artifacts.bucket_name", {"artifacts": {"bucket_name": "another-one"}}),
    ("Artifacts", "encryption", {"encryption": {"kind": "created"}}),
    ("Build", "encryption", {"encryption": {"kind": "existing", "key_arn": KEY}}),
    ("Build", "images.repository", {"images": {"repository": "another"}}),
    ("Network", "network.cidr", {"network": {"kind": "created", "cidr": "10.99.0.0/16"}}),
    ("Network", "network.zones", {"network": {"kind": "created", "zones": 3}}),
    ("Network", "network.kind", {"network": THEIRS}),
    ("Network", "network.vpc_id", {"network": {**THEIRS, "vpc_id": "vpc-0123456789abcdef1"}}),
]


@pytest.mark.parametrize(("stack", "field", "change"), CHANGES, ids=[f"{each[0]} {each[1]}" for each in CHANGES])
def test_a_change_is_named_with_both_values(stack: str, field: str, change: dict[str, Any]) -> None:
    before = environment(network=THEIRS) if field == "network.vpc_id" else environment(**WITH_NETWORK)
    after = environment(**{**WITH_NETWORK, **change})
    output = output_value(before, stack)
    assert output is not None
    # Another kind of network has other values, too.
    fault = next(iter(fixed_faults(after, stack, output)))
    old, new = fixed_values(before)[stack][field], fixed_values(after)[stack][field]
    assert fault == f"{field} is {new!r}, and was {old!r} when it was made: {REASONS[field]}"
    assert list(fixed_faults(before, stack, output)) == []


def test_every_fixed_value_is_tried() -> None:
    both = (environment(**WITH_NETWORK), environment(network=THEIRS))
    told = {(stack, field) for each in both for stack, fields in fixed_values(each).items() for field in fields}
    assert told == {(stack, field) for stack, field, _ in CHANGES}
    assert {field for _, field in told} == set(REASONS)


def test_what_an_older_stack_does_not_tell_is_no_fault() -> None:
    assert list(fixed_faults(environment(), "Artifacts", json.dumps({}))) == []
    assert output_value(environment(), "Network") is None
    assert output_value(environment(images={"account": "111122223333", "repository": "x"}), "Build") is None

"""Quotas and capacity: what a new account is refused, and what Service Quotas tells of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
from botocore.exceptions import ClientError
from endpoint_template import reasons

from conftest import Furnished
from steelyard_localcloud.sagemaker.instance_types import instance_types
from steelyard_localcloud.sagemaker.quotas import Quotas, default_quota, quota_code

POOL = [{"InstanceType": "ml.g5.xlarge", "Priority": 1}, {"InstanceType": "ml.g6.xlarge", "Priority": 2}]
NO_TYPE = {"InstanceType": {"Ref": "AWS::NoValue"}}
ROUTING = {"RoutingConfig": {"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"}}


def test_a_new_account_has_no_gpus(furnished: Furnished, stack: Callable[..., str], name: str) -> None:
    assert stack(variant={"InstanceType": "ml.g4dn.xlarge"}) == "ROLLBACK_COMPLETE"
    assert (
        "The account-level service limit 'ml.g4dn.xlarge for endpoint usage' is 0 Instances, with current utilization "
        "of 0 Instances and a request delta of 1 Instances."
    ) in reasons(furnished.cloudformation, name)


def test_an_update_needs_room_for_both_fleets(furnished: Furnished, stack: Callable[..., str], name: str) -> None:
    one = {"InstanceType": "ml.m5.large"}
    assert stack(variant=one, environment={"VERSION": "1"}) == "CREATE_COMPLETE"
    assert stack(variant=one, environment={"VERSION": "2"}) == "UPDATE_ROLLBACK_COMPLETE"
    assert "utilization of 1 Instances and a request delta of 1" in reasons(furnished.cloudformation, name)
    assert furnished.invoke(name)["version"] == "1"
    with pytest.raises(ClientError, match=r"'ml\.m5\.large for endpoint usage' is 1 Instances") as refused:
        furnished.sagemaker.update_endpoint_weights_and_capacities(
            EndpointName=name, DesiredWeightsAndCapacities=[{"VariantName": "primary", "DesiredInstanceCount": 2}]
        )
    assert refused.value.response["Error"]["Code"] == "ResourceLimitExceeded"


def test_a_pool_takes_the_next_type_when_the_first_is_sold_out(
    furnished: Furnished, stack: Callable[..., str], name: str
) -> None:
    assert stack(variant={"InstancePools": POOL, **ROUTING, **NO_TYPE}) == "CREATE_COMPLETE"
    (variant,) = furnished.sagemaker.describe_endpoint(EndpointName=name)["ProductionVariants"]
    assert [pool["CurrentInstanceCount"] for pool in variant["InstancePools"]] == [0, 1]


def test_a_single_type_that_is_sold_out_fails(furnished: Furnished, stack: Callable[..., str], name: str) -> None:
    assert stack(variant={"InstanceType": "ml.g5.xlarge"}) == "ROLLBACK_COMPLETE"
    assert "InsufficientInstanceCapacity" in reasons(furnished.cloudformation, name)


def test_service_quotas_lists_what_is_in_force(furnished: Furnished) -> None:
    quotas = furnished.cloud.client("service-quotas")
    pages = quotas.get_paginator("list_aws_default_service_quotas").paginate(ServiceCode="sagemaker")
    defaults = {each["QuotaName"]: each["Value"] for page in pages for each in page["Quotas"]}
    assert len(defaults) == len(instance_types()) > 100
    assert defaults["ml.g5.xlarge for endpoint usage"] == 0
    assert defaults["ml.c7i.xlarge for endpoint usage"] == 20
    applied = quotas.list_service_quotas(ServiceCode="sagemaker")["Quotas"]
    assert {each["QuotaName"]: each["Value"] for each in applied}["ml.g6.xlarge for endpoint usage"] == 2
    one = quotas.get_service_quota(ServiceCode="sagemaker", QuotaCode=quota_code("ml.m5.large"))["Quota"]
    assert (one["QuotaName"], one["Value"]) == ("ml.m5.large for endpoint usage", 1)
    with pytest.raises(ClientError, match="does not exist"):
        quotas.get_service_quota(ServiceCode="sagemaker", QuotaCode="L-00000000")
    with pytest.raises(ClientError, match="does not emulate"):
        quotas.list_service_quotas(ServiceCode="codebuild")


def test_quotas_are_for_types_that_exist() -> None:
    with pytest.raises(ValueError, match=r"no instance types ml\.x9\.large"):
        Quotas({"ml.x9.large": 1})
    assert {default_quota(each) for each in instance_types()} == {0, 20}


@pytest.mark.parametrize(
    ("word", "said"),
    [("ml.x9.large=1", "is no instance type"), ("ml.g5.xlarge=many", "whole number"), ("ml.g5.xlarge", "whole number")],
)
def test_a_wrong_quota_is_refused_at_the_start(word: str, said: str, tmp_path: object) -> None:
    command = [sys.executable, "-m", "steelyard_localcloud", "--home", str(tmp_path), "--quota", word]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert said in ended.stderr

"""``steelyard doctor --env``: what stands between an account and a first deployment, before anything is made."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.aws.session import Aws
from steelyard.cli import run
from steelyard.deploy import preflight
from steelyard.deploy.local_cloud import reached
from steelyard.deploy.permissions import permission_checks, policy_source
from steelyard.deploy.preflight import Demand, Quota
from steelyard.deploy.prices import hosting_price, read_prices
from steelyard.environments.files import load_environment, parse_environment
from steelyard.environments.schema import Environment, ExistingNetwork
from steelyard.terminal.bootstrap import agree_to_bootstrap
from steelyard.terminal.deploying import look_at
from steelyard_base.checks import Level
from steelyard_base.exit_codes import CommandError, ExitCode
from steelyard_localcloud.cloud import LocalCloud

CALLER = {"whole_account": True}
POOL = [{"instance_type": "ml.g5.xlarge", "priority": 2}, {"instance_type": "ml.g6.xlarge", "priority": 1}]
SCALED = {"min_instances": 1, "max_instances": 3, "target_concurrency": 4}


def environment(**endpoints: dict[str, Any]) -> Environment:
    whole = {name: {"caller": CALLER, **fields} for name, fields in endpoints.items()}
    return parse_environment(
        {"region": "us-east-1", "removal_policy": "destroy", "endpoints": whole}, name="dev", source="dev.toml"
    )


CPU = {"kind": "decision", "hardware": "cpu", "instance_type": "ml.c7i.xlarge", "instances": 2}
GPU = {"kind": "decision", "hardware": "cuda", "gpu_layers": -1, "instance_pool": POOL, "scaling": SCALED}


@pytest.fixture(scope="module")
def account(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCloud]:
    """A new account: no GPUs but those of one quota, and no bootstrap."""
    with LocalCloud(tmp_path_factory.mktemp("cloud"), quotas={"ml.g6.xlarge": 1, "ml.c7i.large": 3}) as cloud:
        yield cloud


def test_quotas_are_compared_with_both_fleets(account: LocalCloud) -> None:
    with reached(account.environment()):
        found = {each.name: each for each in preflight.quota_checks(Aws("us-east-1"), environment(a=CPU, b=GPU))}
    assert {name: each.level for name, each in found.items()} == {
        "quota ml.c7i.xlarge": Level.OK,  # 20, and 2 x 2 are needed
        "quota ml.g6.xlarge": Level.WARNING,  # 1: the first deployment passes, its updates do not
        "quota ml.g5.xlarge": Level.WARNING,  # 0, but only the pool's second choice
    }
    assert found["quota ml.g6.xlarge"].finding == ("1 instances; needed: 1 at first, 6 for an update at full scale")
    assert found["quota ml.g6.xlarge"].advice.startswith(
        "aws service-quotas request-service-quota-increase --region us-east-1 --service-code sagemaker --quota-code L-"
    )
    assert found["quota ml.g6.xlarge"].advice.endswith(" --desired-value 6")
    assert found["quota ml.g5.xlarge"].finding == "0 instances; needed: 6 should a pool fall back to it"


def test_endpoints_of_one_type_share_its_quota() -> None:
    one, two = dict(CPU, instances=1), dict(CPU, scaling=SCALED | {"min_instances": 2})
    found = preflight.demands(environment(one=one, two=two))
    assert found == {"ml.c7i.xlarge": Demand(first=3, most=2 * (1 + 3), fallback=False)}


def test_a_rolling_update_needs_a_share_only() -> None:
    found = preflight.demands(environment(a=dict(CPU, instances=10, rolling={"percent": 25, "wait_s": 60})))
    assert found["ml.c7i.xlarge"].most == 10 + 3


def test_a_first_deployment_that_cannot_pass_is_in_the_way() -> None:
    check = preflight.quota_check(
        "ml.g5.xlarge", Demand(first=1, most=2, fallback=False), Quota(value=0, code="L-1"), region="eu-west-1"
    )
    assert check.level is Level.FAILED
    assert preflight.quota_check("ml.x", Demand(first=1, most=2, fallback=False), None, region="eu-west-1").level is (
        Level.WARNING
    )


def test_doctor_shows_what_a_new_account_lacks(account: LocalCloud, tmp_path: Path) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text('[usd_per_hour]\n"ml.c7i.xlarge" = 0.25\n')
    words = [
        "doctor",
        "--env",
        "dev",
        "--local",
        "--home",
        str(account.details.home),
        "--prices",
        str(prices),
        "--json",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "steelyard", *words], capture_output=True, text=True, timeout=120, check=False
    )
    found = {line["name"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert found["account"]["level"] == "ok"
    assert found["bootstrap"]["level"] == "warning"
    assert "npx cdk bootstrap aws://000000000000/us-east-1" in found["bootstrap"]["advice"]
    assert found["quota ml.c7i.xlarge"]["level"] == "ok"
    costs = [each["finding"] for name, each in found.items() if name.startswith("cost of ")]
    assert costs
    assert all("USD a month with" in each for each in costs)
    assert done.returncode == 0, done.stderr


def test_what_the_caller_may_not_do_is_named(account: LocalCloud) -> None:
    """Of a role, by the policies that it has; its session's ARN names neither its path nor its policies."""
    iam, name = account.client("iam"), "operator"
    trust = {"Effect": "Allow", "Principal": {"AWS": "arn:aws:iam::000000000000:root"}, "Action": "sts:AssumeRole"}
    document = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
    role = iam.create_role(RoleName=name, Path="/people/", AssumeRolePolicyDocument=document)["Role"]["Arn"]
    allowed = [
        "iam:*",
        "sts:*",
        "cloudformation:Describe*",
        "cloudwatch:Describe*",
        "ec2:*",
        "servicequotas:*",
        "tag:*",
    ]
    allowed.append("sagemaker:*")
    statement = {"Effect": "Allow", "Action": allowed, "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    iam.put_role_policy(RoleName=name, PolicyName="it", PolicyDocument=policy)
    keys = account.client("sts").assume_role(RoleArn=role, RoleSessionName="me")["Credentials"]
    as_operator = {
        **account.environment(),
        "AWS_ACCESS_KEY_ID": keys["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": keys["SecretAccessKey"],
        "AWS_SESSION_TOKEN": keys["SessionToken"],
    }
    with reached(as_operator):
        assert policy_source(Aws("us-east-1")) == role
        found = {each.name: each for each in permission_checks(Aws("us-east-1"), environment(a=CPU))}
    assert {name: each.level for name, each in found.items()} == {
        "may deploy with the CDK": Level.OK,
        "may see and change stacks": Level.WARNING,
        "may ask endpoints": Level.OK,
        "may look around": Level.OK,
    }
    denied = found["may see and change stacks"]
    assert denied.finding == "IAM's simulator denies " + ", ".join(
        f"cloudformation:{each}"
        for each in ("DeleteStack", "GetTemplate", "ListStackResources", "UpdateStack", "UpdateTerminationProtection")
    )
    assert role in denied.advice
    iam.delete_role_policy(RoleName=name, PolicyName="it")
    with reached(as_operator):
        (unknown,) = permission_checks(Aws("us-east-1"), environment(a=CPU))
    assert unknown.advice == "Allow iam:GetRole and iam:SimulatePrincipalPolicy."
    iam.delete_role(RoleName=name)


@pytest.mark.parametrize("words", [("--prices", "x.toml"), ("--local",)])
def test_an_account_is_looked_at_for_an_environment(words: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "steelyard", "doctor", *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "name it with --env" in done.stderr


def test_up_ends_before_it_makes_anything(tmp_path: Path) -> None:
    dev = load_environment("dev")
    types = {each.instance_type for each in dev.endpoints.values() if each.instance_type}
    with LocalCloud(tmp_path / "cloud", quotas=dict.fromkeys(types, 0)) as cloud:
        done = subprocess.run(
            [sys.executable, "-m", "steelyard", "up", "--local", "--home", str(cloud.details.home)],
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 1
        assert "request-service-quota-increase" in done.stdout + done.stderr
        assert cloud.client("cloudformation").describe_stacks()["Stacks"] == []


def test_credentials_of_another_account_are_in_the_way() -> None:
    prod = load_environment("prod")
    assert preflight.account_check("000000000000", prod).level is Level.FAILED
    assert prod.account is not None
    assert preflight.account_check(prod.account, prod).level is Level.OK


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "KeyError"),
        ("usd_per_hour = 3", "AttributeError"),
        ("[usd_per_hour]\nx = -1", "must be 0 to 10,000"),
        ("[usd_per_hour]\nx = true", "must be 0 to 10,000"),
        ('[usd_per_hour]\nx = "1"', "must be 0 to 10,000"),
        ("[usd_per_hour]\nx = nan", "must be 0 to 10,000"),
        ("[usd_per_hour]\nx = inf", "must be 0 to 10,000"),
        ("[usd_per_hour", "TOMLDecodeError"),
        ("\udcff", "UnicodeDecodeError"),
    ],
)
def test_prices_that_are_none_are_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "prices.toml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(CommandError, match=said):
        read_prices(path)


@given(st.decimals(min_value=0, max_value=100, places=4), st.integers(1, 50))
def test_a_month_has_730_hours(price: Decimal, count: int) -> None:
    (check,) = preflight.cost_checks(environment(a=dict(CPU, instances=count)), {"ml.c7i.xlarge": price})
    assert check.finding == f"{count * price * 730:,.0f} USD a month with {count} x ml.c7i.xlarge around the clock"


def test_a_hosting_price_is_told_from_others_of_the_type() -> None:
    def product(usage: str, usd: str) -> dict[str, Any]:
        return {
            "product": {"attributes": {"usagetype": usage}},
            "terms": {"OnDemand": {"a": {"priceDimensions": {"b": {"pricePerUnit": {"USD": usd}}}}}},
        }

    listed = [
        product("USE1-Train:ml.m5.xlarge", "9"),
        product("USE1-Host:ml.m5.xlarge", "0.0000000000"),
        product("USE1-Host:ml.m5.xlarge", "0.2300000000"),
        {"product": {}},
    ]
    assert hosting_price(listed, "ml.m5.xlarge") == Decimal("0.23")
    assert hosting_price([product("Host:ml.m5.xlarge", "0.2")], "ml.m5.xlarge") == Decimal("0.2")
    assert hosting_price(listed, "ml.m5.large") is None


def test_zones_without_the_type_are_named() -> None:
    """The answers are those of EC2's API; the local cloud does not emulate offerings."""

    class Ec2:
        def describe_availability_zones(self) -> dict[str, Any]:
            kinds = {"z-c": "availability-zone", "z-a": "availability-zone", "z-l": "local-zone"}
            return {"AvailabilityZones": [{"ZoneName": name, "ZoneType": kind} for name, kind in kinds.items()]}

        def describe_instance_type_offerings(self, **asked: Any) -> dict[str, Any]:
            assert asked["Filters"] == [{"Name": "instance-type", "Values": ["c7i.xlarge"]}]
            return {"InstanceTypeOfferings": [{"Location": "z-c"}]}

    aws = Aws("us-east-1")
    aws._clients["ec2", "us-east-1"] = Ec2()
    zones, offering = preflight.zone_checks(aws, environment(a=CPU), 2)
    assert (zones.level, zones.finding) == (Level.OK, "z-a, z-c")
    assert (offering.level, offering.finding) == (Level.WARNING, "EC2 has none in z-a")
    (alone,) = preflight.zone_checks(aws, environment(a=CPU), 3)
    assert (alone.level, alone.advice) == (Level.FAILED, "Set zones = 2 in [network].")


def test_zones_of_a_network_that_exists_are_looked_at_too(account: LocalCloud) -> None:
    class Ec2:
        def describe_instance_type_offerings(self, **_: Any) -> dict[str, Any]:
            return {"InstanceTypeOfferings": [{"Location": "us-east-1c"}]}

    subnets = {"us-east-1a": "subnet-00000001", "us-east-1b": "subnet-00000002"}
    network = {"kind": "existing", "vpc_id": "vpc-00000001", "subnets": subnets}
    existing = environment(a=CPU).model_copy(update={"network": ExistingNetwork.model_validate(network)})
    with reached(account.environment()):
        aws = Aws("us-east-1")
        aws._clients["ec2", "us-east-1"] = Ec2()
        (found,) = [each for each in preflight.check_account(aws, existing, {}) if each.name.startswith("zones")]
    assert (found.level, found.finding) == (Level.FAILED, "EC2 has none in us-east-1a, us-east-1b")
    assert found.advice.startswith("It is in us-east-1c")


def test_the_prices_of_up_are_those_of_a_file(account: LocalCloud, capsys: pytest.CaptureFixture[str]) -> None:
    with reached(account.environment()):
        look_at(Aws("us-east-1"), environment(a=CPU), local=False, prices={"ml.c7i.xlarge": Decimal("0.25")})
    assert "365 USD a month with 2 x ml.c7i.xlarge" in " ".join(capsys.readouterr().out.split())
    assert run(["up", "--prices", "prices.toml", "--no-check"]) == ExitCode.USAGE
    assert "--no-check leaves it out" in capsys.readouterr().err


def test_what_cannot_be_asked_is_said(account: LocalCloud) -> None:
    wrong = {**account.environment(), "AWS_ACCESS_KEY_ID": "AKIDNOBODY"}
    with reached(wrong):
        (found,) = preflight.quota_checks(Aws("us-east-1"), environment(a=CPU))
    assert found.level is Level.WARNING
    assert found.finding.startswith("cannot be asked: ")


def test_nobody_is_bootstrapped_without_a_yes(account: LocalCloud, tmp_path: Path) -> None:
    """The CDK's roles may do anything; up and release build made them without a question."""
    with reached(account.environment()):
        agree_to_bootstrap(Aws("us-east-1"), environment())  # a local cloud's own account needs no question
    with (
        LocalCloud(tmp_path, account="111122223333") as other,
        reached(other.environment()),
        pytest.raises(CommandError, match="not bootstrapped in account 111122223333") as refused,
    ):
        agree_to_bootstrap(Aws("us-east-1"), environment())
    assert "--bootstrap" in (refused.value.hint or "")

"""Looks at an account before anything is made in it: bootstrap, permissions, quotas, zones, and what it will cost."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from steelyard.aws.session import Aws, aws_errors
from steelyard.deploy.deployment import is_bootstrapped
from steelyard.deploy.permissions import permission_checks
from steelyard.deploy.prices import HOURS_PER_MONTH, ask_prices
from steelyard.environments.schema import CreatedNetwork, Endpoint, Environment, ExistingNetwork
from steelyard_base.checks import Check, Level
from steelyard_base.exit_codes import CommandError
from steelyard_constructs.declared_endpoint import instance_types

_QUOTA = " for endpoint usage"


@dataclass(frozen=True, kw_only=True)
class Demand:
    """Instances of one type that an environment may ask for.

    Attributes:
        first: For the first deployment.
        most: For an update at full scale, when the old and the new fleet run together, or a share of it.
        fallback: Only as the second or a later choice of a pool.
    """

    first: int
    most: int
    fallback: bool


@dataclass(frozen=True, kw_only=True)
class Quota:
    """A quota that an account has.

    Attributes:
        value: In instances.
        code: AWS's code, for a request to raise it.
    """

    value: int
    code: str


def type_names(endpoint: Endpoint) -> tuple[str, ...]:
    """Return the names of its instance types, first choice first."""
    return tuple(each.name for each in instance_types(endpoint, region=None))


def most_instances(endpoint: Endpoint) -> int:
    """Instances that scaling, or a schedule of it, may reach."""
    if endpoint.scaling is None:
        return endpoint.instances
    return max(endpoint.scaling.max_instances, *(each.max_instances for each in endpoint.scaling.schedules), 0)


def arriving_instances(endpoint: Endpoint) -> int:
    """Instances that an update at full scale adds before it takes old ones away."""
    most = most_instances(endpoint)
    return most if endpoint.rolling is None else math.ceil(most * endpoint.rolling.percent / 100)


def demands(environment: Environment) -> dict[str, Demand]:
    """Return the instances that an environment may ask for, by type."""
    first: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for endpoint in environment.endpoints.values():
        types = type_names(endpoint)
        first[types[0]] += endpoint.instances
        for name in types:
            most[name] += most_instances(endpoint) + arriving_instances(endpoint)
    return {name: Demand(first=first[name], most=most[name], fallback=not first[name]) for name in most}


def check_account(aws: Aws, environment: Environment, prices: Mapping[str, Decimal]) -> Iterator[Check]:
    """All findings, in the order in which a first deployment would meet them. Nothing is changed.

    Args:
        aws: Where to look.
        environment: What is to be deployed.
        prices: USD per hour by instance type.

    Raises:
        CommandError: There are no credentials.
    """
    yield account_check(aws.account(), environment)
    yield bootstrap_check(aws, environment)
    yield from permission_checks(aws, environment)
    yield from quota_checks(aws, environment)
    if isinstance(environment.network, CreatedNetwork):
        yield from zone_checks(aws, environment, environment.network.zones)
    elif isinstance(environment.network, ExistingNetwork):
        yield from offering_checks(aws, environment, sorted(environment.network.subnets))
    yield from cost_checks(environment, prices)


def account_check(found: str, environment: Environment) -> Check:
    """Return whether the credentials are those of the environment's account."""
    if environment.account in (None, found):
        return Check(name="account", level=Level.OK, finding=f"{found} in {environment.region}")
    return Check(
        name="account",
        level=Level.FAILED,
        finding=f"the credentials are of {found}, and environments/{environment.name}.toml has {environment.account}",
        advice="Use credentials of that account, or correct the file.",
    )


def bootstrap_check(aws: Aws, environment: Environment) -> Check:
    """Return whether the CDK can deploy there."""
    if is_bootstrapped(aws, environment):
        return Check(name="bootstrap", level=Level.OK, finding="the CDK's roles are there")
    return Check(
        name="bootstrap",
        level=Level.WARNING,
        finding="the CDK has not been bootstrapped here; that makes roles, one of them with administrator rights",
        advice=f"steelyard up does it after asking, or: npx cdk bootstrap aws://{aws.account()}/{aws.region} "
        f"--qualifier {environment.bootstrap.qualifier} --toolkit-stack-name {environment.bootstrap.stack}",
    )


def quota_checks(aws: Aws, environment: Environment) -> Iterator[Check]:
    """For each instance type: whether the quota lets the first deployment pass, and updates at full scale."""
    wanted = demands(environment)
    try:
        quotas = read_quotas(aws)
    except CommandError as error:
        yield Check(
            name="quotas",
            level=Level.WARNING,
            finding=f"cannot be asked: {error}",
            advice="Allow servicequotas:ListServiceQuotas and servicequotas:ListAWSDefaultServiceQuotas.",
        )
        return
    for name, demand in sorted(wanted.items()):
        yield quota_check(name, demand, quotas.get(name), region=aws.region)


def quota_check(name: str, demand: Demand, quota: Quota | None, *, region: str) -> Check:
    """The finding for one instance type."""
    title = f"quota {name}"
    if quota is None:
        return Check(
            name=title,
            level=Level.WARNING,
            finding="Service Quotas tells none for endpoints",
            advice=f"See whether SageMaker has {name} in {region}.",
        )
    needs = f"{demand.first} at first, {demand.most} for an update at full scale"
    if demand.fallback:
        needs = f"{demand.most} should a pool fall back to it"
    finding = f"{quota.value} instances; needed: {needs}"
    if quota.value >= demand.most:
        return Check(name=title, level=Level.OK, finding=finding)
    return Check(
        name=title,
        level=Level.FAILED if quota.value < demand.first else Level.WARNING,
        finding=finding,
        advice=f"aws service-quotas request-service-quota-increase --region {region} --service-code sagemaker "
        f"--quota-code {quota.code} --desired-value {demand.most}",
    )


def read_quotas(aws: Aws) -> dict[str, Quota]:
    """The quotas of instances behind endpoints, by instance type: AWS's defaults, and over them the account's own.

    Raises:
        CommandError: Service Quotas cannot be asked.
    """
    found: dict[str, Quota] = {}
    client = aws.client("service-quotas")
    for operation in ("list_aws_default_service_quotas", "list_service_quotas"):
        with aws_errors():
            for page in client.get_paginator(operation).paginate(ServiceCode="sagemaker"):
                found.update(_endpoint_quotas(page["Quotas"]))
    return found


def _endpoint_quotas(quotas: list[dict[str, Any]]) -> Iterator[tuple[str, Quota]]:
    for each in quotas:
        name = str(each.get("QuotaName", ""))
        if name.endswith(_QUOTA) and "Value" in each:
            quota = Quota(value=int(each["Value"]), code=str(each["QuotaCode"]))
            yield name.removesuffix(_QUOTA), quota


def zone_checks(aws: Aws, environment: Environment, zones: int) -> Iterator[Check]:
    """Return whether the region has as many zones as the network wants, and these the instance types."""
    try:
        with aws_errors():
            there = sorted(
                each["ZoneName"]
                for each in aws.client("ec2").describe_availability_zones()["AvailabilityZones"]
                if each.get("State", "available") == "available"
                and each.get("ZoneType", "availability-zone") == "availability-zone"
            )
    except CommandError as error:
        yield Check(name="zones", level=Level.WARNING, finding=f"cannot be asked: {error}")
        return
    if len(there) < zones:
        yield Check(
            name="zones",
            level=Level.FAILED,
            finding=f"{len(there)} in {aws.region} ({', '.join(there)}); zones is {zones}",
            advice=f"Set zones = {len(there)} in [network].",
        )
        return
    # Fn::GetAZs gives them in the order of their names.
    taken = there[:zones]
    yield Check(name="zones", level=Level.OK, finding=", ".join(taken))
    yield from offering_checks(aws, environment, taken)


def offering_checks(aws: Aws, environment: Environment, zones: list[str]) -> Iterator[Check]:
    """For each instance type: whether the zones of the network have it."""
    for name in sorted({name for each in environment.endpoints.values() for name in type_names(each)}):
        yield offering_check(aws, name, zones)


def offering_check(aws: Aws, instance_type: str, zones: list[str]) -> Check:
    """Return whether zones have an instance type, as far as EC2 tells: SageMaker does not."""
    title = f"zones of {instance_type}"
    try:
        with aws_errors():
            offered = {
                each["Location"]
                for each in aws.client("ec2").describe_instance_type_offerings(
                    LocationType="availability-zone",
                    Filters=[{"Name": "instance-type", "Values": [instance_type.removeprefix("ml.")]}],
                )["InstanceTypeOfferings"]
            }
    except CommandError as error:
        return Check(name=title, level=Level.WARNING, finding=f"cannot be asked: {error}")
    missing = [zone for zone in zones if zone not in offered]
    if not missing:
        return Check(name=title, level=Level.OK, finding="all")
    return Check(
        name=title,
        level=Level.FAILED if missing == zones else Level.WARNING,
        finding=f"EC2 has none in {', '.join(missing)}",
        advice=f"It is in {', '.join(sorted(offered)) or 'no zone of this region'}: name subnets there "
        '(kind = "existing" in [network]), or take another type.',
    )


def known_prices(aws: Aws, environment: Environment) -> dict[str, Decimal]:
    """Prices of an environment's instance types by AWS's Price List; none where it cannot be asked."""
    types = sorted({name for each in environment.endpoints.values() for name in type_names(each)})
    try:
        return ask_prices(aws, types)
    except CommandError:
        return {}


def cost_checks(environment: Environment, prices: Mapping[str, Decimal]) -> Iterator[Check]:
    """Yield the cost of each endpoint's instances in a month of 730 hours, before storage, requests and builds."""
    for name, endpoint in environment.endpoints.items():
        yield cost_check(name, endpoint, prices)


def cost_check(name: str, endpoint: Endpoint, prices: Mapping[str, Decimal]) -> Check:
    """The finding for one endpoint; a pool is priced at its first choice."""
    title, kind = f"cost of {name}", type_names(endpoint)[0]
    if kind not in prices:
        return Check(
            name=title,
            level=Level.WARNING,
            finding=f"no price of {kind} is known",
            advice="Name a file of prices: --prices FILE.",
        )
    least, most = endpoint.instances, most_instances(endpoint)
    if endpoint.scaling is not None:
        least = endpoint.scaling.min_instances

    def monthly(count: int) -> str:
        return f"{count * prices[kind] * HOURS_PER_MONTH:,.0f} USD"

    upto = f", up to {monthly(most)} with {most}" if most > least else ""
    return Check(
        name=title,
        level=Level.OK,
        finding=f"{monthly(least)} a month with {least} x {kind} around the clock{upto}",
    )

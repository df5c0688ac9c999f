"""An environment: one file of ``environments/``, typed, and checked before anything is made of it.

What a file says by itself is checked when it is read, by ``files.py``; what needs the release as well (an image's
architecture, its CUDA version) is checked by ``steelyard.releases.compatibility``. The constructs check the same again,
because others use them without these files.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal, NoReturn, Self

from pydantic import Field, field_validator, model_validator

from steelyard.environments.bucket_names import bucket_name_fault
from steelyard.environments.container_settings import setting_faults
from steelyard_base.exit_codes import CommandError
from steelyard_base.gates import Gates
from steelyard_base.strict import Listed, Named, Strict
from steelyard_constructs.container_variables import (
    PORT_NAMES,
    decision_port_faults,
    decision_variables,
    variable_faults,
)
from steelyard_constructs.declared_endpoint import Check, DeclaredEndpoint, Name, check_gpu_layers, endpoint_checks
from steelyard_constructs.hardware import Hardware
from steelyard_constructs.images import ImageReference
from steelyard_constructs.log_retention import check_log_retention
from steelyard_constructs.model_artifact import HubModel
from steelyard_constructs.numeric import LARGEST
from steelyard_constructs.refusal import Refused
from steelyard_constructs.thresholds import LATENCY_ALARM_MS
from steelyard_runtime.decisions.content import FULL_NAME_PATTERN

AccountId = Annotated[str, Field(pattern=r"^[0-9]{12}$")]
RegionName = Annotated[str, Field(pattern=r"^[a-z]{2,4}(-[a-z]+)+-[0-9]$")]
Email = Annotated[str, Field(pattern=r"^[^@\s]+@[^@\s]+\.[^@\s]+$", max_length=254)]
Seconds = Annotated[int, Field(ge=60, le=3600)]
# The CDK takes no larger number.
Positive = Annotated[int, Field(ge=1, le=LARGEST)]
Count = Annotated[int, Field(ge=0, le=LARGEST)]
DECISIONS_VARIABLE = "STEELYARD_DECISIONS_SHA256"
"""The variable that tells an endpoint's server which registered decisions its release names."""
DecisionName = Annotated[str, Field(pattern=FULL_NAME_PATTERN)]


class NoNetwork(Strict):
    """Endpoints outside any VPC of yours. They are still isolated from the network."""

    kind: Literal["none"] = "none"


class ExistingNetwork(Strict):
    """Endpoints in subnets of a VPC that exists. It needs a gateway endpoint for S3."""

    kind: Literal["existing"]
    vpc_id: Annotated[str, Field(pattern=r"^vpc-[0-9a-f]{8,17}$", description="The VPC.")]
    subnets: Annotated[
        Mapping[str, Annotated[str, Field(pattern=r"^subnet-[0-9a-f]{8,17}$")]],
        Field(
            min_length=1, description="Identifier of a subnet by availability zone; two zones or more for production."
        ),
    ]


class CreatedNetwork(Strict):
    """Endpoints in isolated subnets of a VPC that is made for them, with a gateway endpoint for S3."""

    kind: Literal["created"]
    cidr: Annotated[str, Field(description="Its addresses.")] = "10.20.0.0/16"
    zones: Annotated[int, Field(ge=1, le=3, description="Availability zones, each with one subnet.")] = 2

    @field_validator("cidr")
    @classmethod
    def _private(cls, value: str) -> str:
        network = ipaddress.ip_network(value)
        if network.version != 4 or not 16 <= network.prefixlen <= 24 or not network.is_private:
            raise ValueError(
                f"{value!r} is not a private IPv4 network between /16 and /24; take one such as 10.20.0.0/16"
            )
        return value


class NoKey(Strict):
    """Encryption with the keys that AWS owns."""

    kind: Literal["aws"] = "aws"


class ExistingKey(Strict):
    """Encryption with a KMS key that exists. Its policy must let this account use it."""

    kind: Literal["existing"]
    key_arn: Annotated[
        str, Field(pattern=r"^arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:key/[0-9a-f-]{36}$", description="Its ARN.")
    ]


class CreatedKey(Strict):
    """Encryption with a KMS key that is made for the environment, rotated every year."""

    kind: Literal["created"]


class Artifacts(Strict):
    """The bucket of model artifacts."""

    bucket_name: Annotated[str | None, Field(description="Its name; without one, CloudFormation chooses it.")] = None
    noncurrent_days: Annotated[
        Positive, Field(description="Days for which an overwritten object can be brought back.")
    ] = 30
    access_log_days: Annotated[Positive, Field(description="Days for which access logs are kept.")] = 90

    @field_validator("bucket_name")
    @classmethod
    def _can_exist(cls, value: str | None) -> str | None:
        if value is not None and (fault := bucket_name_fault(value)):
            raise ValueError(f"the bucket name {value!r} cannot exist: {fault}")
        return value


class Images(Strict):
    """The registries that endpoints pull from."""

    repository: Annotated[
        str | None, Field(description="ECR repository of our image; `steelyard-ENVIRONMENT` unless set.")
    ] = None
    account: Annotated[
        AccountId | None, Field(description="Account whose registry has our image; without one, this one makes it.")
    ] = None
    pull_accounts: Annotated[
        Listed[AccountId],
        Field(description="Other accounts that may pull our image from here; needs `removal_policy` `retain`."),
    ] = ()
    keep_images: Annotated[
        Positive, Field(description="Images kept that no release names; the oldest beyond them are deleted.")
    ] = 50
    chat_account: Annotated[
        AccountId | None,
        Field(description="Registry of the published chat container, where the CDK does not know that of the region."),
    ] = None

    @field_validator("repository")
    @classmethod
    def _names_a_repository(cls, value: str | None) -> str | None:
        if value is not None:
            ImageReference(repository=value, digest=f"sha256:{'0' * 64}")
        return value


class Builds(Strict):
    """The models and images that CodeBuild makes in this environment."""

    models: Annotated[
        Listed[str], Field(description="Models of the catalogue that can be fetched into the bucket.")
    ] = ()
    images: Annotated[Listed[Named[Hardware]], Field(description="Hardware for which our image can be built.")] = ()
    roles: Annotated[
        Mapping[Name, str],
        Field(description="Model of each role in a release that is built here; needed where models has more than one."),
    ] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _roles_are_built(self) -> Builds:
        for role, model in self.roles.items():
            if model not in self.models:
                raise ValueError(
                    f"role {role!r} has the model {model!r}, which is not built here: add it to models, or take one of "
                    f"{', '.join(self.models) or 'none'}"
                )
        return self


class Caller(Strict):
    """The role of an endpoint's callers, made when principals that may assume it are named."""

    principals: Annotated[
        Listed[Annotated[str, Field(pattern=r"^arn:aws[a-z-]*:iam::[0-9]{12}:(root|role/.+|user/.+)$")]],
        Field(
            description="ARNs of the principals that may assume it. Without any there is no such role, unless "
            "whole_account."
        ),
    ] = ()
    whole_account: Annotated[
        bool,
        Field(
            description="Let every principal of this account assume it whose own policy allows that, instead of named "
            "ones."
        ),
    ] = False
    bearer_token: Annotated[
        bool, Field(description="For the OpenAI-compatible path: InvokeEndpoint and CallWithBearerToken only.")
    ] = False

    @property
    def trusts_someone(self) -> bool:
        """Tell whether principals, or the account, may assume it."""
        return bool(self.principals) or self.whole_account

    @model_validator(mode="after")
    def _says_who(self) -> Self:
        if self.principals and self.whole_account:
            raise ValueError("names principals and the whole account; keep the principals, or whole_account = true")
        if self.bearer_token and not self.trusts_someone:
            raise ValueError("says how the role calls, but not who may assume it; set principals, or whole_account")
        return self


_NO_CALLER = Caller()


@dataclass(frozen=True, kw_only=True)
class Endpoint(DeclaredEndpoint):
    """One endpoint, with a stack of its own."""

    kind: Annotated[
        Literal["chat", "decision"], Field(description="`chat`: the published container; `decision`: our server.")
    ]
    model: Annotated[Name | None, Field(description="Role of its model in the release; its kind unless set.")] = None
    decisions: Annotated[
        Listed[DecisionName] | None,
        Field(
            description="For decisions: the registered ones of the release that it serves, as NAME@VERSION; unless "
            "set, those that belong to its model."
        ),
    ] = None
    hub: Annotated[HubModel | None, Field(description="For chat: a model from a hub instead of the release's.")] = None
    latency_alarm_ms: Annotated[
        Positive, Field(description="Alarm when one request in twenty takes longer in the container.")
    ] = LATENCY_ALARM_MS
    caller: Annotated[Caller, Field(description="The role of its callers, and the principals that may assume it.")] = (
        _NO_CALLER
    )

    @property
    def role(self) -> str:
        """Role of its model in the release."""
        return self.model or self.kind


class Bootstrap(Strict):
    """The CDK's own roles and bucket, where an account has them under other names than the CDK's."""

    qualifier: Annotated[
        str, Field(pattern=r"^[a-z0-9]{1,10}$", description="The part of the names of the CDK's roles and bucket.")
    ] = "hnb659fds"
    stack: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9-]{0,127}$", description="The stack that made them.")] = (
        "CDKToolkit"
    )


class Alarms(Strict):
    """The addresses that alarms are sent to."""

    emails: Annotated[Listed[Email], Field(description="Addresses; each must confirm its subscription.")] = ()


class Budget(Strict):
    """A limit on what the environment costs. It warns; it stops nothing."""

    monthly_usd: Annotated[Positive, Field(description="Dollars in a month.")]
    emails: Annotated[
        Listed[Email],
        Field(
            min_length=1,
            max_length=10,
            description="Addresses that are mailed at 80 % of it, and when 100 % is forecast.",
        ),
    ]


class Environment(Strict):
    """One environment. ``name`` is the name of its file."""

    name: Name
    account: Annotated[
        AccountId | None, Field(description="The AWS account; without one, that of the credentials at deployment.")
    ] = None
    region: Annotated[RegionName, Field(description="The AWS region.")]
    removal_policy: Annotated[
        Literal["destroy", "retain"],
        Field(description="Whether `cdk destroy` deletes buckets, repositories, logs and keys, or leaves them."),
    ]
    log_retention_days: Annotated[
        int, Field(description="Days for which logs are kept, of those that CloudWatch offers.")
    ] = 30
    network: Annotated[
        NoNetwork | ExistingNetwork | CreatedNetwork,
        Field(discriminator="kind", description="The VPC of the endpoints: `none`, `existing` or `created`."),
    ] = NoNetwork()
    encryption: Annotated[
        NoKey | ExistingKey | CreatedKey,
        Field(
            discriminator="kind",
            description="Keys for artifacts, images, disks and logs: `aws`, `existing` or `created`.",
        ),
    ] = NoKey()
    promotes_to: Annotated[
        Listed[Name],
        Field(description="Environments that a release built here is promoted to; it holds what these need, too."),
    ] = ()
    bootstrap: Annotated[Bootstrap, Field(description="The CDK's own roles and bucket.")] = Bootstrap()
    artifacts: Annotated[Artifacts, Field(description="The bucket of model artifacts.")] = Artifacts()
    images: Annotated[Images, Field(description="The registries that endpoints pull from.")] = Images()
    builds: Annotated[Builds, Field(description="Models and images that CodeBuild makes for it.")] = Builds()
    alarms: Annotated[Alarms, Field(description="Addresses that alarms are mailed to.")] = Alarms()
    budget: Annotated[Budget | None, Field(description="A limit on the cost that warns.")] = None
    gates: Annotated[
        Gates | None,
        Field(description="What the evaluations of a release must show before `release promote` brings it here."),
    ] = None
    endpoints: Annotated[Mapping[Name, Endpoint], Field(description="The endpoints, by name.")] = Field(
        default_factory=dict
    )

    @field_validator("log_retention_days")
    @classmethod
    def _offered(cls, value: int) -> int:
        check_log_retention(value)
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Environment:
        if faults := [*self._own_faults(), *endpoint_faults(self.endpoints, lambda each: _own_checks(self, each))]:
            raise ValueError("\n  ".join(faults))
        return self

    def _own_faults(self) -> Iterator[str]:
        if isinstance(self.network, ExistingNetwork):
            for zone in self.network.subnets:
                if not re.fullmatch(re.escape(self.region) + "[a-z]", zone):
                    yield f"network: availability zone {zone!r} is not in region {self.region!r}; name one that is"
        if isinstance(self.encryption, ExistingKey) and f":kms:{self.region}:" not in self.encryption.key_arn:
            yield f"encryption: the key {self.encryption.key_arn} is not in region {self.region!r}; use one that is"
        if self.images.account is not None and self.images.repository is None:
            yield "images: account is set and repository is not; name the repository that the account shares"
        if self.removal_policy == "destroy" and self.images.pull_accounts:
            # Their endpoints name these images by digest; gone from here, no build brings the same digest back.
            yield (
                f"images: pull_accounts has {', '.join(self.images.pull_accounts)}, and removal_policy is 'destroy', "
                "which would delete the images that those accounts run, and their key; set removal_policy to 'retain', "
                "or remove pull_accounts"
            )
        if self.images.account is not None and self.builds.images:
            yield (
                f"builds: images are built here, but endpoints pull from account {self.images.account}; remove either "
                "builds.images or images.account"
            )

    @property
    def repository_name(self) -> str:
        """The ECR repository of our image."""
        return self.images.repository or f"steelyard-{self.name}"

    @property
    def builds_or_stores(self) -> bool:
        """Tell whether models or images are built here, or images kept: CloudFormation refuses a stack of nothing."""
        return bool(self.builds.models or self.builds.images) or self.images.account is None

    def endpoint_name(self, name: str) -> str:
        """Return SageMaker's name of the endpoint ``name`` of this environment."""
        return f"steelyard-{self.name}-{name}"

    def stack_name(self, part: str) -> str:
        """The CloudFormation stack of ``part``: ``Artifacts``, ``Build``, ``Endpoint-NAME``, ``Observability``."""
        return f"Steelyard-{self.name}-{part}"


def endpoint_faults(endpoints: Mapping[str, Endpoint], checks: Callable[[Endpoint], Iterator[Check]]) -> list[str]:
    """Return a sentence, headed by the endpoint's name, for each check that refuses.

    Args:
        endpoints: The endpoints by name.
        checks: Gives the checks of one endpoint; each raises ``Refused`` or ``CommandError``.
    """
    faults = []
    for name, endpoint in endpoints.items():
        for check in checks(endpoint):
            try:
                check()
            except (Refused, CommandError) as error:
                faults.append(f"endpoints.{name}: {error}")
    # An instance type that is none breaks each rule about it.
    return list(dict.fromkeys(faults))


def _own_checks(environment: Environment, endpoint: Endpoint) -> Iterator[Check]:
    """Yield what can be checked of an endpoint without the release."""
    yield from endpoint_checks(endpoint, region=environment.region)
    yield lambda: check_gpu_layers(endpoint.gpu_layers, endpoint.hardware, needed=endpoint.kind == "decision")
    yield lambda: _check_model_source(environment, endpoint)
    yield lambda: _check_decisions(endpoint)
    for fault in _variable_faults(endpoint):
        yield partial(_refuse, fault)


def _check_model_source(environment: Environment, endpoint: Endpoint) -> None:
    if endpoint.hub is None:
        return
    if endpoint.kind != "chat":
        raise Refused("hub is set, but a decision endpoint takes its model from the release only; remove hub")
    if endpoint.model is not None:
        raise Refused(f"both hub and model {endpoint.model!r} are set; remove one of them")
    if isinstance(environment.network, CreatedNetwork):
        raise Refused(
            "hub is set, but the network is 'created', a VPC without any way out, so the container could never fetch "
            "its model: take it from the release, or set the network to 'none' or to existing subnets with a way out"
        )


def _check_decisions(endpoint: Endpoint) -> None:
    names = endpoint.decisions or ()
    if endpoint.decisions is not None and endpoint.kind != "decision":
        raise Refused("decisions is set, but the published container for chat serves none; remove decisions")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise Refused(f"decisions names {twice[0]} twice; name it once")


def _refuse(fault: str) -> NoReturn:
    raise Refused(fault)


def _variable_faults(endpoint: Endpoint) -> Iterator[str]:
    """Yield what is wrong with ``environment``: what the server would ignore, or would not start with."""
    given = endpoint.environment
    if endpoint.kind == "chat":
        yield from variable_faults({}, given)
        return
    try:
        own = decision_variables(endpoint_name="", gpu_layers=endpoint.gpu_layers, threads=endpoint.threads)
        own |= {DECISIONS_VARIABLE: ""}
    except Refused:
        return  # The rules about these two say so.
    yield from variable_faults(own, given)
    yield from decision_port_faults(given)
    # What was refused above is not reported twice.
    left = {name: value for name, value in given.items() if name not in {*own, *PORT_NAMES} and "\0" not in value}
    yield from setting_faults(left)

"""An environment: one file of ``environments/``, typed, and checked before anything is made of it.

What a file says by itself is checked when it is read, by ``files.py``; what needs the release as well (an image's
architecture, its CUDA version) is checked by ``steelyard.releases.compatibility``. The constructs check the same again,
because others use them without these files.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Annotated, Literal, NoReturn, Self

from pydantic import Field, field_validator, model_validator

from steelyard.environments.bucket_names import bucket_name_fault
from steelyard.environments.container_settings import setting_faults
from steelyard_base.exit_codes import CommandError
from steelyard_base.strict import Listed, Strict
from steelyard_constructs.container_variables import (
    PORT_NAMES,
    decision_port_faults,
    decision_variables,
    variable_faults,
)
from steelyard_constructs.hardware import (
    DEFAULT_AMI,
    Hardware,
    InstanceType,
    PooledInstance,
    check_instances,
    check_scalable,
    check_threads,
)
from steelyard_constructs.images import ImageReference
from steelyard_constructs.numeric import LARGEST
from steelyard_constructs.refusal import Refused

LOG_RETENTION_DAYS = (
    1,
    3,
    5,
    7,
    14,
    30,
    60,
    90,
    120,
    150,
    180,
    365,
    400,
    545,
    731,
    1096,
    1827,
    2192,
    2557,
    2922,
    3288,
    3653,
)
"""What CloudWatch Logs accepts, in days."""

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9]*(-[a-z0-9]+)*$", max_length=24)]
AccountId = Annotated[str, Field(pattern=r"^[0-9]{12}$")]
RegionName = Annotated[str, Field(pattern=r"^[a-z]{2}(-[a-z]+)+-[0-9]$")]
Email = Annotated[str, Field(pattern=r"^[^@\s]+@[^@\s]+\.[^@\s]+$", max_length=254)]
Seconds = Annotated[int, Field(ge=60, le=3600)]
# The CDK takes no larger number.
Positive = Annotated[int, Field(ge=1, le=LARGEST)]
Count = Annotated[int, Field(ge=0, le=LARGEST)]


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

    bucket_name: Annotated[str | None, Field(description="Its name; without one, CloudFormation makes it up.")] = None
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
    """What CodeBuild makes in this environment."""

    models: Annotated[
        Listed[str], Field(description="Models of the catalogue that can be fetched into the bucket.")
    ] = ()
    images: Annotated[
        Listed[Literal["cpu", "graviton", "cuda"]], Field(description="Hardware for which our image can be built.")
    ] = ()
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


class Schedule(Strict):
    """Other limits of the instance count from a point in time on."""

    name: Annotated[Name, Field(description="Unique within the endpoint.")]
    cron: Annotated[str, Field(pattern=r"^cron\(.+\)$", description="When, such as cron(0 7 ? * MON-FRI *).")]
    time_zone: Annotated[str, Field(description="Whose clock it goes by.")] = "Etc/UTC"
    min_instances: Annotated[Count, Field(description="From then on at least so many.")]
    max_instances: Annotated[Count, Field(description="From then on at most so many.")]


class Scaling(Strict):
    """Automatic scaling of the instance count on the requests in progress."""

    min_instances: Annotated[Count, Field(description="At least so many instances.")]
    max_instances: Annotated[Count, Field(description="At most so many instances.")]
    target_concurrency: Annotated[
        float, Field(gt=0, description="Requests in progress per instance that scaling aims at.")
    ]
    schedules: Annotated[Listed[Schedule], Field(description="Other limits at other times.")] = ()

    @model_validator(mode="after")
    def _bounded(self) -> Scaling:
        for name, low, high in [
            ("scaling", self.min_instances, self.max_instances),
            *((f"schedule {each.name!r}", each.min_instances, each.max_instances) for each in self.schedules),
        ]:
            if low == 0:
                raise ValueError(
                    f"{name} has min_instances 0: an endpoint without inference components cannot scale to zero; set "
                    "min_instances to 1 or more, or destroy the endpoint's stack when it is not needed"
                )
            if low > high:
                raise ValueError(f"{name} has min_instances {low} above max_instances {high}; swap or change them")
        names = [each.name for each in self.schedules]
        if twice := {each for each in names if names.count(each) > 1}:
            raise ValueError(f"the schedule name {sorted(twice)[0]!r} is given twice; give each schedule its own")
        return self


class Canary(Strict):
    """How an update reaches the traffic: a share first, and back if an alarm goes off."""

    percent: Annotated[
        int, Field(ge=1, le=50, description="Share of the instances that is updated first, in percent.")
    ] = 10
    wait_s: Annotated[
        int, Field(ge=60, le=3600, description="How long the alarms are watched before the rest follows, in seconds.")
    ] = 300


class Caller(Strict):
    """The role that calls an endpoint, made when it is said who may assume it."""

    principals: Annotated[
        Listed[Annotated[str, Field(pattern=r"^arn:aws[a-z-]*:iam::[0-9]{12}:(root|role/.+|user/.+)$")]],
        Field(description="ARNs of those who may assume it. Without any there is no such role, unless whole_account."),
    ] = ()
    whole_account: Annotated[
        bool,
        Field(description="Let everyone assume it whom this account's policies allow to, instead of named principals."),
    ] = False
    bearer_token: Annotated[
        bool, Field(description="For the OpenAI-compatible path: InvokeEndpoint and CallWithBearerToken only.")
    ] = False

    @property
    def trusts_someone(self) -> bool:
        """Whether principals, or the account, may assume it."""
        return bool(self.principals) or self.whole_account

    @model_validator(mode="after")
    def _says_who(self) -> Self:
        if self.principals and self.whole_account:
            raise ValueError("names principals and the whole account; keep the principals, or whole_account = true")
        if self.bearer_token and not self.trusts_someone:
            raise ValueError("says how the role calls, but not who may assume it; set principals, or whole_account")
        return self


class Hub(Strict):
    """A model that the published chat container fetches from a hub itself. Network isolation is off then."""

    repository: Annotated[str, Field(description="Repository on the hub, OWNER/NAME.")]
    file: Annotated[str, Field(description="The GGUF file in it.")]
    bytes: Annotated[Positive, Field(description="Its size in bytes, from which the timeouts are derived.")]


class Place(Strict):
    """One instance type of a pool."""

    instance_type: Annotated[str, Field(description="Such as ml.g6e.xlarge.")]
    priority: Annotated[int, Field(description="1 is tried first; 1 to 5, each once.")]


class Endpoint(Strict):
    """One endpoint, with a stack of its own."""

    kind: Annotated[
        Literal["chat", "decision"], Field(description="`chat`: the published container; `decision`: our server.")
    ]
    hardware: Annotated[
        Literal["cpu", "graviton", "cuda"], Field(description="x86 processors, Arm processors, or NVIDIA GPUs.")
    ]
    instance_type: Annotated[str | None, Field(description="The only instance type. Either this or a pool.")] = None
    instance_pool: Annotated[
        Listed[Place], Field(description="Instance types in order of preference. Either this or one type.")
    ] = ()
    instances: Annotated[
        Positive,
        Field(description="Instances; with scaling, those of the first deployment, which it changes later."),
    ] = 1
    model: Annotated[Name | None, Field(description="Role of its model in the release; its kind unless set.")] = None
    hub: Annotated[Hub | None, Field(description="For chat: a model from a hub instead of the release's.")] = None
    threads: Annotated[Positive | None, Field(description="Threads of llama.cpp; every physical core unless set.")] = (
        None
    )
    gpu_layers: Annotated[int, Field(ge=-1, le=LARGEST, description="Layers of the model on the GPU; -1 for all.")] = 0
    inference_ami: Annotated[
        str | None, Field(description=f"AMI of GPU instances; {DEFAULT_AMI} (driver 580) unless set.")
    ] = None
    environment: Annotated[
        Mapping[Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]*$")], str],
        Field(description="Settings of the container: STEELYARD_* for decisions, SM_LLAMA_CPP_* for chat."),
    ] = Field(default_factory=dict)
    scaling: Annotated[Scaling | None, Field(description="Automatic scaling; a fixed instance count without it.")] = (
        None
    )
    startup_timeout_s: Annotated[
        Seconds | None, Field(description="Longest until the container is healthy; from the model's size unless set.")
    ] = None
    download_timeout_s: Annotated[
        Seconds | None, Field(description="Longest that fetching the model may take; from the model's size unless set.")
    ] = None
    canary: Annotated[
        Canary | None, Field(description="Updates reach a share of the instances first; all at once without it.")
    ] = None
    latency_alarm_ms: Annotated[
        Positive | None,
        Field(description="Alarm when one request in twenty takes longer in the container; 30000 unless set."),
    ] = None
    caller: Annotated[Caller, Field(description="The role that calls it, and who may assume it.")] = Caller()

    @property
    def role(self) -> str:
        """Role of its model in the release."""
        return self.model or self.kind

    @property
    def machine(self) -> Hardware:
        """Its hardware, as the constructs know it."""
        return Hardware(self.hardware)

    @property
    def pool(self) -> tuple[PooledInstance, ...]:
        """Its instance pool, as the constructs know it."""
        return tuple(PooledInstance(each.instance_type, each.priority) for each in self.instance_pool)


class Alarms(Strict):
    """Who hears of alarms."""

    emails: Annotated[Listed[Email], Field(description="Addresses; each must confirm its subscription.")] = ()


class Budget(Strict):
    """A limit on what the environment costs. It warns; it stops nothing."""

    monthly_usd: Annotated[Positive, Field(description="Dollars in a month.")]
    emails: Annotated[
        Listed[Email],
        Field(min_length=1, max_length=10, description="Who hears at 80 % of it, and when 100 % is forecast."),
    ]


class Environment(Strict):
    """What one environment is. ``name`` is the name of its file."""

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
        Field(description="Environments that a release built here goes to next; it holds what these need, too."),
    ] = ()
    artifacts: Annotated[Artifacts, Field(description="The bucket of model artifacts.")] = Artifacts()
    images: Annotated[Images, Field(description="The registries that endpoints pull from.")] = Images()
    builds: Annotated[Builds, Field(description="What CodeBuild makes here.")] = Builds()
    alarms: Annotated[Alarms, Field(description="Who hears of alarms.")] = Alarms()
    budget: Annotated[Budget | None, Field(description="A limit on the cost that warns.")] = None
    endpoints: Annotated[Mapping[Name, Endpoint], Field(description="The endpoints, by name.")] = Field(
        default_factory=dict
    )

    @field_validator("log_retention_days")
    @classmethod
    def _offered(cls, value: int) -> int:
        if value not in LOG_RETENTION_DAYS:
            raise ValueError(
                f"CloudWatch cannot keep logs for {value} days; use one of {', '.join(map(str, LOG_RETENTION_DAYS))}"
            )
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

    def endpoint_name(self, name: str) -> str:
        """What SageMaker calls the endpoint ``name`` of this environment."""
        return f"steelyard-{self.name}-{name}"

    def stack_name(self, part: str) -> str:
        """The CloudFormation stack of ``part``: ``Artifacts``, ``Build``, ``Endpoint-NAME``, ``Observability``."""
        return f"Steelyard-{self.name}-{part}"


def endpoint_faults(
    endpoints: Mapping[str, Endpoint], checks: Callable[[Endpoint], Iterator[Callable[[], object]]]
) -> list[str]:
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
    return faults


def _own_checks(environment: Environment, endpoint: Endpoint) -> Iterator[Callable[[], object]]:
    """What can be said about an endpoint without the release. Each check raises a sentence."""
    yield lambda: check_threads(endpoint.threads, instance_types(environment.region, endpoint))
    if endpoint.scaling is not None:
        yield lambda: check_scalable(instance_types(environment.region, endpoint))
    yield lambda: _check_gpu(endpoint)
    yield lambda: _check_model_source(environment, endpoint)
    yield lambda: _check_count(endpoint)
    for fault in _variable_faults(endpoint):
        yield partial(_refuse, fault)


def instance_types(region: str, endpoint: Endpoint) -> tuple[InstanceType, ...]:
    """Return the instance types of an endpoint, in order of preference.

    Raises:
        Refused: SageMaker has no such type, or not there, or its hardware is another.
    """
    return check_instances(
        instance_type=endpoint.instance_type,
        instance_pool=endpoint.pool,
        hardware=endpoint.machine,
        region=region,
    )


def _check_gpu(endpoint: Endpoint) -> None:
    if endpoint.machine is Hardware.CUDA:
        if endpoint.kind == "decision" and endpoint.gpu_layers == 0:
            raise Refused(
                "a decision endpoint on 'cuda' has gpu_layers 0, so its GPU would stay idle; set it to -1 for all"
            )
        return
    if endpoint.gpu_layers:
        raise Refused(
            f"gpu_layers is {endpoint.gpu_layers}, but {endpoint.hardware!r} instances have no GPU; remove it, or set "
            "hardware to 'cuda'"
        )
    if endpoint.inference_ami:
        raise Refused(
            f"inference_ami is {endpoint.inference_ami!r}, which is for GPU instances, but hardware is "
            f"{endpoint.hardware!r}; remove it"
        )


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


def _check_count(endpoint: Endpoint) -> None:
    if endpoint.canary and endpoint.instances < 2:
        raise Refused(
            f"a canary of {endpoint.canary.percent} % needs 2 instances or more, but instances is "
            f"{endpoint.instances}; raise it, or remove canary: alarms undo an update of all instances at once too"
        )
    if (limits := endpoint.scaling) and not limits.min_instances <= endpoint.instances <= limits.max_instances:
        raise Refused(
            f"instances is {endpoint.instances}, outside scaling's {limits.min_instances} to {limits.max_instances}; "
            "set it within"
        )


def _refuse(fault: str) -> NoReturn:
    raise Refused(fault)


def _variable_faults(endpoint: Endpoint) -> Iterator[str]:
    """What is wrong with ``environment``: what the server would ignore, or would not start with."""
    given = endpoint.environment
    if endpoint.kind == "chat":
        yield from variable_faults({}, given)
        return
    own = decision_variables(gpu_layers=endpoint.gpu_layers, threads=endpoint.threads)
    yield from variable_faults(own, given)
    yield from decision_port_faults(given)
    # What was refused above is not told twice.
    left = {name: value for name, value in given.items() if name not in {*own, *PORT_NAMES} and "\0" not in value}
    yield from setting_faults(left)

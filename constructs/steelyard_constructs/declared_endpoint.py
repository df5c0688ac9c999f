"""The declared fields of an endpoint, in an environment file or in code, and the rules that they keep.

Each field and each rule stands here once: the schema of environment files and the constructs are made of them. Nothing
here needs the CDK, so files can be checked without it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from steelyard_base.strict import Listed, Named, Table
from steelyard_constructs.hardware import (
    DEFAULT_AMI,
    Hardware,
    InferenceAmi,
    InstanceType,
    PooledInstance,
    check_ami,
    check_instances,
    check_scalable,
    check_threads,
)
from steelyard_constructs.images import ImageReference, check_image
from steelyard_constructs.model_artifact import check_timeout
from steelyard_constructs.numeric import check_finite, check_whole
from steelyard_constructs.refusal import Refused

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9]*(-[a-z0-9]+)*$", max_length=24)]
VariableName = Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]*$")]

_CRON = re.compile(r"cron\(.+\)")


@dataclass(frozen=True)
class Schedule(Table):
    """Other limits of the instance count from a point in time on."""

    name: Annotated[Name, Field(description="Unique within the endpoint.")]
    cron: Annotated[str, Field(description="Its times, such as cron(0 7 ? * MON-FRI *).")]
    min_instances: Annotated[int, Field(description="Fewest instances from then on.")]
    max_instances: Annotated[int, Field(description="Most instances from then on.")]
    time_zone: Annotated[str, Field(description="Time zone of its times.")] = "Etc/UTC"


@dataclass(frozen=True, kw_only=True)
class Scaling(Table):
    """Automatic scaling of the instance count on the requests in progress."""

    min_instances: Annotated[int, Field(description="Fewest instances.")]
    max_instances: Annotated[int, Field(description="Most instances.")]
    target_concurrency: Annotated[float, Field(description="Target of requests in progress per instance; more than 0.")]
    schedules: Annotated[Listed[Schedule], Field(description="Other limits at other times.")] = ()


@dataclass(frozen=True)
class Canary(Table):
    """An update that reaches a share of the instances first, and goes back if an alarm goes off."""

    percent: Annotated[int, Field(description="Share of the instances that is updated first, in percent, 1 to 50.")] = (
        10
    )
    wait_s: Annotated[
        int,
        Field(description="Seconds for which the alarms are watched before the rest follows, 60 to 3600."),
    ] = 300


@dataclass(frozen=True)
class Rolling(Table):
    """An update that replaces a share of the instances after the other, so that no second fleet is needed."""

    percent: Annotated[int, Field(description="Share that is replaced at a time, in percent, 5 to 50.")] = 25
    wait_s: Annotated[
        int,
        Field(description="Seconds for which the alarms are watched after each share, 60 to 3600."),
    ] = 300


@dataclass(frozen=True, kw_only=True)
class DeclaredEndpoint(Table):
    """The fields of an endpoint that an environment file and the constructs have in common."""

    hardware: Annotated[Named[Hardware], Field(description="x86 processors, Arm processors, or NVIDIA GPUs.")]
    instance_type: Annotated[str | None, Field(description="The only instance type. Either this or a pool.")] = None
    instance_pool: Annotated[
        Listed[PooledInstance], Field(description="Instance types in order of preference. Either this or one type.")
    ] = ()
    instances: Annotated[
        int, Field(description="Instances; with scaling, those of the first deployment, which it changes later.")
    ] = 1
    threads: Annotated[int | None, Field(description="Threads of llama.cpp; every physical core unless set.")] = None
    gpu_layers: Annotated[
        int | None,
        Field(
            description="Layers of the model on the GPU, -1 for all; unless set, none for decisions, and for chat as "
            "many as fit."
        ),
    ] = None
    inference_ami: Annotated[
        str | None, Field(description=f"AMI of GPU instances; {DEFAULT_AMI} (driver 580) unless set.")
    ] = None
    environment: Annotated[
        Mapping[VariableName, str],
        Field(description="Settings of the container: STEELYARD_* for decisions, SM_LLAMA_CPP_* for chat."),
    ] = field(default_factory=dict)
    scaling: Annotated[Scaling | None, Field(description="Automatic scaling; a fixed instance count without it.")] = (
        None
    )
    startup_timeout_s: Annotated[
        int | None,
        Field(description="Longest start, until the container is healthy; from the model's size unless set."),
    ] = None
    download_timeout_s: Annotated[
        int | None, Field(description="Longest download of the model; from the model's size unless set.")
    ] = None
    canary: Annotated[
        Canary | None, Field(description="Updates reach a share of the instances first; all at once without it.")
    ] = None
    rolling: Annotated[
        Rolling | None,
        Field(
            description="Updates replace a share of the instances at a time, for instance types that are too scarce "
            "for twice as many. Either this or a canary."
        ),
    ] = None

    def declared(self) -> dict[str, Any]:
        """Return the fields of this class, for another class that has them too."""
        return {each.name: getattr(self, each.name) for each in dataclasses.fields(DeclaredEndpoint)}


Check = Callable[[], object]


def endpoint_checks(endpoint: DeclaredEndpoint, *, region: str | None) -> Iterator[Check]:
    """Yield the rules of every endpoint, each as a function that raises ``Refused`` where it is broken.

    Args:
        endpoint: The endpoint.
        region: Where it will be; None where that is not known.
    """

    def types() -> tuple[InstanceType, ...]:
        return instance_types(endpoint, region=region)

    yield lambda: check_instance_count(endpoint.instances)
    yield types
    yield lambda: check_threads(endpoint.threads, types())
    yield lambda: check_inference_ami(endpoint.inference_ami, endpoint.hardware)
    yield lambda: check_timeout("startup_timeout_s", endpoint.startup_timeout_s)
    yield lambda: check_timeout("download_timeout_s", endpoint.download_timeout_s)
    if (scaling := endpoint.scaling) is not None:
        yield lambda: check_scaling(scaling)
        yield lambda: check_within(endpoint.instances, scaling)
        yield lambda: check_scalable(types())
    if (canary := endpoint.canary) is not None:
        yield lambda: check_canary(canary, endpoint.instances)
    if (rolling := endpoint.rolling) is not None:
        yield lambda: check_rolling(rolling, endpoint.instances, canary=canary)


def instance_types(endpoint: DeclaredEndpoint, *, region: str | None) -> tuple[InstanceType, ...]:
    """Return the instance types of an endpoint, first choice first.

    Raises:
        Refused: As :func:`~steelyard_constructs.hardware.check_instances`.
    """
    return check_instances(
        instance_type=endpoint.instance_type,
        instance_pool=endpoint.instance_pool,
        hardware=endpoint.hardware,
        region=region,
    )


def check_instance_count(instances: int) -> None:
    """Refuse no instances.

    Raises:
        Refused: With the number.
    """
    check_whole("instances", instances)
    if instances < 1:
        raise Refused(
            f"instances is {instances}, but an endpoint without inference components cannot have less than 1 instance; "
            "set 1 or more, or destroy its stack while it is not needed"
        )


def check_within(instances: int, scaling: Scaling) -> None:
    """Refuse more or fewer instances than scaling allows.

    Raises:
        Refused: With the limits.
    """
    if not scaling.min_instances <= instances <= scaling.max_instances:
        raise Refused(
            f"instances is {instances}, outside scaling's {scaling.min_instances} to {scaling.max_instances}; set it "
            "within"
        )


def check_gpu_layers(gpu_layers: int | None, hardware: Hardware, *, needed: bool) -> None:
    """Refuse layers on a GPU that is not there, and a GPU that would stay idle.

    Args:
        gpu_layers: Layers on the GPU, -1 for all; None where the server chooses.
        hardware: The hardware.
        needed: Whether the server uses a GPU only when the number of layers is set.

    Raises:
        Refused: With what to set.
    """
    if gpu_layers is not None:
        check_whole("gpu_layers", gpu_layers)
        if gpu_layers < -1:
            raise Refused(f"gpu_layers is {gpu_layers}; set -1 for all layers, or how many")
    if hardware is Hardware.CUDA and needed and not gpu_layers:
        raise Refused(
            f"gpu_layers is {gpu_layers or 0} on a 'cuda' endpoint for decisions, so its GPU would be paid for and "
            "stay idle; set -1 for all layers, or choose hardware without a GPU"
        )
    if hardware is not Hardware.CUDA and gpu_layers:
        raise Refused(
            f"gpu_layers is {gpu_layers}, but {hardware.value!r} instances have no GPU; leave it out, or set hardware "
            "to 'cuda'"
        )


def check_inference_ami(inference_ami: str | None, hardware: Hardware) -> None:
    """Refuse an AMI for GPUs where there is none.

    Raises:
        Refused: With the AMI and the hardware.
    """
    if inference_ami is not None and hardware is not Hardware.CUDA:
        raise Refused(
            f"inference_ami is {inference_ami!r}, which is for GPU instances, but hardware is {hardware.value!r}; "
            "leave it out"
        )


def check_endpoint_image(
    endpoint: DeclaredEndpoint, image: ImageReference, *, region: str | None
) -> InferenceAmi | None:
    """Refuse an image that does not run on every instance type of an endpoint, with the driver of its AMI.

    Returns:
        The AMI of its instances; None where they have no GPU.

    Raises:
        Refused: With what the image needs and what the instances have.
    """
    check_image(image, endpoint.hardware)
    if image.cuda is None:
        return None
    types = instance_types(endpoint, region=region)
    return check_ami(endpoint.inference_ami or DEFAULT_AMI, cuda=image.cuda, instance_types=types)


def check_scaling(scaling: Scaling) -> None:
    """Refuse zero instances, limits that contradict each other, and schedules with the same name.

    Raises:
        Refused: With the value and what to set.
    """
    _check_limits("scaling", scaling.min_instances, scaling.max_instances)
    check_finite("target_concurrency", scaling.target_concurrency)
    if not scaling.target_concurrency > 0:
        raise Refused(
            f"target_concurrency is {scaling.target_concurrency}; aim at more than 0 requests in progress per instance"
        )
    names = [each.name for each in scaling.schedules]
    for position, each in enumerate(scaling.schedules):
        if each.name in names[:position]:
            raise Refused(f"the schedule name {each.name!r} is given twice; give each schedule its own")
        if not _CRON.fullmatch(each.cron):
            raise Refused(
                f"schedule {each.name!r} has the cron {each.cron!r}; write it as cron(MINUTE HOUR DAY MONTH WEEKDAY "
                "YEAR), such as cron(0 7 ? * MON-FRI *)"
            )
        _check_limits(f"schedule {each.name!r}", each.min_instances, each.max_instances)


def _check_limits(what: str, least: int, most: int) -> None:
    check_whole(f"min_instances of {what}", least)
    check_whole(f"max_instances of {what}", most)
    if least < 1:
        raise Refused(
            f"{what} has min_instances {least}: an endpoint without inference components cannot scale to zero; set "
            "min_instances to 1 or more, or destroy the endpoint's stack when it is not needed"
        )
    if least > most:
        raise Refused(f"{what} has min_instances {least} above max_instances {most}; swap or change them")


def check_canary(canary: Canary, instances: int) -> None:
    """Refuse a canary that SageMaker would refuse, or that is no share of the instances.

    Raises:
        Refused: With the value and the limit.
    """
    check_whole("the canary's percent", canary.percent)
    check_whole("the canary's wait_s", canary.wait_s)
    if not 1 <= canary.percent <= 50:
        raise Refused(f"the canary is {canary.percent} % of the instances; SageMaker takes 1 to 50")
    if not 60 <= canary.wait_s <= 3600:
        raise Refused(
            f"the canary waits {canary.wait_s} s; set 60, a minute of the alarms' metrics, to 3600, SageMaker's longest"
        )
    if instances < 2:
        raise Refused(
            f"a canary of {canary.percent} % needs 2 instances or more, but instances is {instances}; raise it, or "
            "leave out the canary: alarms undo an update of all instances at once too"
        )


def check_rolling(rolling: Rolling, instances: int, *, canary: Canary | None) -> None:
    """Refuse a rolling update that SageMaker would refuse, or that is no share of the instances.

    Raises:
        Refused: With the value and the limit.
    """
    check_whole("the rolling update's percent", rolling.percent)
    check_whole("the rolling update's wait_s", rolling.wait_s)
    if canary is not None:
        raise Refused("canary and rolling are both given; an update goes one way: leave one out")
    if not 5 <= rolling.percent <= 50:
        raise Refused(f"the rolling update replaces {rolling.percent} % at a time; SageMaker takes 5 to 50")
    if not 60 <= rolling.wait_s <= 3600:
        raise Refused(
            f"the rolling update waits {rolling.wait_s} s; it must be 60 (a minute of the alarms' metrics) to 3600 "
            "(SageMaker's longest)"
        )
    if instances < 2:
        raise Refused(
            f"a rolling update of {rolling.percent} % needs 2 instances or more, but instances is {instances}; raise "
            "it, or leave out rolling"
        )

"""SageMaker's instance types, and which of them an image can run on. Facts with their sources; no AWS calls.

Nothing here needs the CDK, so configuration files can be checked without it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, TypeVar

from pydantic import Field

from steelyard_base.strict import Table
from steelyard_constructs.numeric import check_whole, shown
from steelyard_constructs.refusal import Refused

_Value = TypeVar("_Value")


class Architecture(StrEnum):
    """Instruction set of a processor, and of the images built for it."""

    X86_64 = "x86_64"
    ARM64 = "arm64"


class Hardware(StrEnum):
    """The kinds of machine that an endpoint runs on."""

    CPU = "cpu"
    GRAVITON = "graviton"
    CUDA = "cuda"

    @property
    def architecture(self) -> Architecture:
        """The instruction set that images for this hardware are built for."""
        return Architecture.ARM64 if self is Hardware.GRAVITON else Architecture.X86_64


@dataclass(frozen=True)
class Family:
    """Facts that the instance types of one family share.

    Attributes:
        architecture: Instruction set of its processors.
        gpu: Name of its NVIDIA GPU, or None.
        local_storage: Whether its instances bring their own disks. SageMaker encrypts those in hardware and refuses
            a KMS key or a volume size for them
            (API reference of CreateEndpointConfig, ``KmsKeyId``).
        unusable: Why llama.cpp cannot run there, or None.
    """

    architecture: Architecture
    gpu: str | None = None
    local_storage: bool = False
    unusable: str | None = None


_X86 = Family(Architecture.X86_64)
_X86_DISK = Family(Architecture.X86_64, local_storage=True)
_ARM = Family(Architecture.ARM64)
_ARM_DISK = Family(Architecture.ARM64, local_storage=True)
# deep-learning-containers, docker/llama_cpp/Dockerfile.arm64: -mcpu=neoverse-v1; its docs: "Graviton3 and newer".
_GRAVITON2 = Family(
    Architecture.ARM64,
    unusable="it has Graviton2 processors, and the Arm container is built for Graviton3 and newer: it would end at its "
    "first instruction that Graviton2 lacks, without a line in its log",
)


def _gpu(name: str, *, local_storage: bool = True, architecture: Architecture = Architecture.X86_64) -> Family:
    return Family(architecture, gpu=name, local_storage=local_storage)


def _unusable(why: str) -> Family:
    return Family(Architecture.X86_64, unusable=why)


_NEURON = _unusable("it has AWS Neuron accelerators, for which llama.cpp has no backend")

#: Families of ``ProductionVariantInstanceType`` in the SageMaker API (botocore 1.43), by the name between the dots.
FAMILIES: Mapping[str, Family] = {
    **dict.fromkeys(("t2", "m4", "m5", "c4", "c5", "r5", "c6i", "c6in", "m6i", "r6i", "c7i", "m7i", "r7i"), _X86),
    **dict.fromkeys(("m5d", "c5d", "r5d"), _X86_DISK),
    **dict.fromkeys(("c7g", "c8g", "m8g", "r8g"), _ARM),
    "r7gd": _ARM_DISK,
    **dict.fromkeys(("c6g", "c6gn", "m6g", "r6g", "c6gd", "m6gd", "r6gd"), _GRAVITON2),
    "p2": _gpu("K80", local_storage=False),
    "p3": _gpu("V100", local_storage=False),
    "g4dn": _gpu("T4"),
    "g5": _gpu("A10G"),
    "g6": _gpu("L4"),
    "g6e": _gpu("L40S"),
    "g7": _gpu("RTX PRO 4500"),
    "g7e": _gpu("RTX PRO 6000"),
    "p4d": _gpu("A100"),
    "p4de": _gpu("A100"),
    "p5": _gpu("H100"),
    "p5e": _gpu("H200"),
    "p5en": _gpu("H200"),
    "p6-b200": _gpu("B200"),
    "p6-b300": _gpu("B300"),
    "p6e-gb200": _gpu("GB200", architecture=Architecture.ARM64),
    **dict.fromkeys(("inf1", "inf2", "trn1", "trn1n", "trn2"), _NEURON),
    "dl1": _unusable("it has Gaudi accelerators, for which llama.cpp has no backend"),
}

# Sizes by family, from the same list of the API.
_FAMILIES_BY_SIZES = {
    "medium large xlarge 2xlarge": "t2",
    "large xlarge 2xlarge 4xlarge 8xlarge": "c4",
    "large xlarge 2xlarge 4xlarge 9xlarge 18xlarge": "c5 c5d",
    "large xlarge 2xlarge 4xlarge 12xlarge 24xlarge": "m5 m5d r5 r5d",
    "large xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge": "c6g c6gd c6gn c7g m6g m6gd r6g r6gd",
    "large xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge 24xlarge 32xlarge": "c6i c6in m6i r6i",
    "large xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge 24xlarge 48xlarge": "c7i m7i r7i",
    "medium large xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge": "r7gd",
    "medium large xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge 24xlarge 48xlarge": "c8g m8g r8g",
    "xlarge 2xlarge 4xlarge 10xlarge 16xlarge": "m4",
    "xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge": "g4dn",
    "xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge 24xlarge 48xlarge": "g5 g6 g6e",
    "2xlarge 4xlarge 8xlarge 12xlarge 24xlarge 48xlarge": "g7 g7e",
    "xlarge 8xlarge 16xlarge": "p2",
    "2xlarge 8xlarge 16xlarge": "p3",
    "4xlarge 48xlarge": "p5",
    "xlarge 2xlarge 6xlarge 24xlarge": "inf1",
    "xlarge 8xlarge 24xlarge 48xlarge": "inf2",
    "2xlarge 32xlarge": "trn1",
    "24xlarge": "dl1 p4d p4de",
    "32xlarge": "trn1n",
    "36xlarge": "p6e-gb200",
    "48xlarge": "p5e p5en p6-b200 p6-b300 trn2",
}
SIZES: Mapping[str, tuple[str, ...]] = {
    family: tuple(sizes.split()) for sizes, families in _FAMILIES_BY_SIZES.items() for family in families.split()
}

_NAME = re.compile(
    r"ml\.(?P<family>[a-z][a-z0-9]*(?:-[a-z0-9]+)?)\.(?P<size>medium|large|(?P<times>[1-9][0-9]{0,2})?xlarge)"
)


@dataclass(frozen=True)
class InstanceType:
    """A SageMaker hosting instance type, such as ``ml.c7g.2xlarge``.

    >>> InstanceType.parse("ml.g6e.xlarge").family.gpu
    'L40S'
    """

    name: str
    family_name: str
    vcpus: int

    @property
    def family(self) -> Family:
        """Facts of its family."""
        return FAMILIES[self.family_name]

    @property
    def hardware(self) -> Hardware | None:
        """The kind of machine that it is, or None for one that none of our images runs on."""
        if self.family.unusable:
            return None
        if self.family.gpu:
            return Hardware.CUDA if self.family.architecture is Architecture.X86_64 else None
        return Hardware.GRAVITON if self.family.architecture is Architecture.ARM64 else Hardware.CPU

    @classmethod
    def parse(cls, name: str) -> InstanceType:
        """The instance type called ``name``.

        Raises:
            Refused: It is not written like an instance type, or SageMaker has no such family or size.
        """
        match = _NAME.fullmatch(name)
        if match is None:
            raise Refused(
                f"{name!r} is not a SageMaker instance type: write it as ml.FAMILY.SIZE, for example ml.c7i.2xlarge"
            )
        family_name = match["family"]
        if family_name not in FAMILIES:
            raise Refused(
                f"{name!r} is of the family {family_name!r}, of which nothing is known here: use one of "
                f"{', '.join(sorted(FAMILIES))}, or add it to FAMILIES in steelyard_constructs.hardware"
            )
        if match["size"] not in SIZES[family_name]:
            raise Refused(
                f"{name!r} does not exist: the family {family_name!r} has the sizes {', '.join(SIZES[family_name])}"
            )
        vcpus = {"medium": 1, "large": 2}.get(match["size"]) or 4 * int(match["times"] or 1)
        return cls(name, family_name, vcpus)


def check_hardware(instance_type: InstanceType, hardware: Hardware) -> None:
    """Refuse an instance type that is not of the kind ``hardware``, or that llama.cpp cannot use.

    Raises:
        Refused: With the kind that it is.
    """
    if instance_type.hardware is hardware:
        return
    if why := instance_type.family.unusable:
        raise Refused(f"instance type {instance_type.name!r} cannot serve: {why}; choose one for {hardware.value!r}")
    if instance_type.hardware is None:
        raise Refused(
            f"instance type {instance_type.name!r} has {instance_type.family.architecture.value} processors beside "
            f"its {instance_type.family.gpu}, for which there is no image; choose an x86_64 one, such as ml.g6e.xlarge"
        )
    raise Refused(
        f"instance type {instance_type.name!r} is {instance_type.hardware.value!r} hardware, but the endpoint says "
        f"{hardware.value!r}; set hardware to {instance_type.hardware.value!r} with an image for it, or choose another "
        "instance type"
    )


@dataclass(frozen=True)
class InferenceAmi:
    """An AMI for GPU instances that ``InferenceAmiVersion`` names.

    Attributes:
        name: As SageMaker calls it.
        driver: Major version of its NVIDIA driver.
        families: Instance families on which SageMaker accepts it.
    """

    name: str
    driver: int
    families: frozenset[str]


# Drivers: API reference of ProductionVariant, ``InferenceAmiVersion`` (botocore 1.43). Families: the same reference as
# of February 2025 for the AMIs of Amazon Linux 2; for the one of Amazon Linux 2023 the table of "Best practices to
# minimize interruptions during GPU driver upgrades" in the developer guide, as AutoGluon-Cloud and the SageMaker
# hosting examples of aws-samples use it (the families after p5en). CUDA 13 itself needs compute capability 7.5,
# which p2 and p3 have not.
_FAMILIES_OF_DRIVER_535 = frozenset({"g4dn", "g5", "g6", "p3", "p4d", "p4de", "p5"})
_FAMILIES_OF_DRIVER_550 = frozenset({"g4dn", "g5", "g6", "g6e", "p4d", "p4de", "p5", "p5e", "p5en"})
_FAMILIES_OF_DRIVER_580 = _FAMILIES_OF_DRIVER_550 | {"g7", "g7e", "p6-b200"}

AMIS: Mapping[str, InferenceAmi] = {
    ami.name: ami
    for ami in (
        InferenceAmi("al2-ami-sagemaker-inference-gpu-2", 535, _FAMILIES_OF_DRIVER_535),
        InferenceAmi("al2-ami-sagemaker-inference-gpu-2-1", 535, _FAMILIES_OF_DRIVER_535),
        InferenceAmi("al2-ami-sagemaker-inference-gpu-3-1", 550, _FAMILIES_OF_DRIVER_550),
        InferenceAmi("al2023-ami-sagemaker-inference-gpu-4-1", 580, _FAMILIES_OF_DRIVER_580),
    )
}

#: The AMI that CUDA endpoints get unless another is named: without one, SageMaker takes the family's default, whose
#: driver is too old for CUDA 13, and the container does not start and logs nothing.
DEFAULT_AMI = "al2023-ami-sagemaker-inference-gpu-4-1"

#: Oldest NVIDIA driver by major version of CUDA (NVIDIA, "CUDA Compatibility", minor version compatibility).
OLDEST_DRIVER: Mapping[int, int] = {11: 450, 12: 525, 13: 580}


def check_ami(ami_name: str, *, cuda: str, instance_types: Sequence[InstanceType]) -> InferenceAmi:
    """The AMI called ``ami_name``, if an image with CUDA ``cuda`` (such as ``13.0``) runs on it on every instance type.

    Raises:
        Refused: The AMI is unknown, its driver is older than the image needs, or a family does not support it.
    """
    ami = AMIS.get(ami_name)
    if ami is None:
        raise Refused(f"inference AMI {ami_name!r} is not one of {', '.join(sorted(AMIS))}")
    major = cuda.partition(".")[0]
    needed = next((driver for known, driver in OLDEST_DRIVER.items() if str(known) == major), None)
    if needed is None:
        raise Refused(f"CUDA {cuda} is not known here; use an image with CUDA {', '.join(map(str, OLDEST_DRIVER))}")
    if ami.driver < needed:
        raise Refused(
            f"the image has CUDA {cuda}, which needs NVIDIA driver {needed}, but inference AMI {ami.name!r} has driver "
            f"{ami.driver}: the container would not start and would log nothing; use {DEFAULT_AMI!r}"
        )
    for instance_type in instance_types:
        if instance_type.family_name not in ami.families:
            raise Refused(
                f"instance type {instance_type.name!r} is not supported by inference AMI {ami.name!r}; choose one of "
                f"the families {', '.join(sorted(ami.families))}"
            )
    return ami


@dataclass(frozen=True)
class PooledInstance(Table):
    """One place in an ordered instance pool: SageMaker takes the lowest priority number that has capacity."""

    instance_type: Annotated[str, Field(description="Such as ml.g6e.xlarge.")]
    priority: Annotated[int, Field(description="1 is tried first; 1 to 5, each once.")]


MAX_POOL = 5

#: Regions with instance pools: README of ``03-features/capacity-aware-instance-pool`` in
#: aws-samples/sagemaker-genai-hosting-examples ("available in 16 AWS regions", read in August 2026). The launch post
#: of May 2026 says "all commercial Regions"; this is the narrower of the two.
INSTANCE_POOL_REGIONS = frozenset(
    {
        "ap-northeast-1",
        "ap-northeast-2",
        "ap-south-1",
        "ap-southeast-1",
        "ap-southeast-2",
        "ap-southeast-3",
        "ca-central-1",
        "eu-central-1",
        "eu-central-2",
        "eu-north-1",
        "eu-west-1",
        "eu-west-2",
        "sa-east-1",
        "us-east-1",
        "us-east-2",
        "us-west-2",
    }
)


def check_instances(
    *,
    instance_type: str | None,
    instance_pool: Sequence[PooledInstance],
    hardware: Hardware,
    region: str | None = None,
) -> tuple[InstanceType, ...]:
    """The instance types of an endpoint, first choice first, if they are well formed and all of ``hardware``.

    Args:
        instance_type: The only type, or None when there is a pool.
        instance_pool: The pool, or empty when there is one type.
        hardware: What all of them must be.
        region: Where the endpoint will be, or None where that is not known.

    Raises:
        Refused: Both or neither are given, the pool is too long, repeats a type or a priority, has a priority outside
            1 to 5, or the region has no pools; or a type is not what ``hardware`` says.
    """
    if (instance_type is None) == (not instance_pool):
        given = "both" if instance_pool else "neither"
        raise Refused(f"{given} of instance_type and instance_pool are set; set exactly one of them")
    types = (InstanceType.parse(instance_type),) if instance_type is not None else _pooled_types(instance_pool, region)
    for each in types:
        check_hardware(each, hardware)
    return types


def _pooled_types(pool: Sequence[PooledInstance], region: str | None) -> tuple[InstanceType, ...]:
    if region is not None and region not in INSTANCE_POOL_REGIONS:
        raise Refused(
            f"region {region!r} has no instance pools; set instance_type instead of instance_pool there, or use one of "
            f"{', '.join(sorted(INSTANCE_POOL_REGIONS))}"
        )
    if len(pool) > MAX_POOL:
        raise Refused(f"the instance pool has {len(pool)} places; SageMaker takes at most {MAX_POOL}: remove some")
    for place in pool:
        if type(place.priority) is not int or not 1 <= place.priority <= MAX_POOL:
            raise Refused(
                f"{place.instance_type!r} has priority {shown(place.priority)} in the instance pool; "
                f"give it one from 1 (first choice) to {MAX_POOL}"
            )
    if repeated := _first_repeated([place.priority for place in pool]):
        raise Refused(f"priority {repeated} is given twice in the instance pool; give each type its own")
    if repeated_type := _first_repeated([place.instance_type for place in pool]):
        raise Refused(f"instance type {repeated_type!r} is in the instance pool twice; remove one of the two")
    return tuple(InstanceType.parse(place.instance_type) for place in sorted(pool, key=lambda place: place.priority))


def _first_repeated(values: Sequence[_Value]) -> _Value | None:
    return next((value for position, value in enumerate(values) if value in values[:position]), None)


def check_scalable(instance_types: Sequence[InstanceType]) -> None:
    """Refuse to scale instances whose processors run on credits: load would exhaust them before a count follows.

    Raises:
        Refused: A type is burstable (the CDK's own SageMaker endpoints refuse these, too).
    """
    if burstable := [each.name for each in instance_types if each.family_name.startswith("t")]:
        raise Refused(
            f"instance type {burstable[0]!r} is burstable, and scaling cannot follow its load: choose another type, "
            "such as ml.c7i.xlarge, or leave out the scaling"
        )


def check_threads(threads: int | None, instance_types: Sequence[InstanceType]) -> None:
    """Refuse more threads than the smallest instance has processors: llama.cpp's threads wait for one another.

    Raises:
        Refused: With the number that fits.
    """
    if threads is None:
        return
    check_whole("threads", threads)
    smallest = min(instance_types, key=lambda each: each.vcpus)
    if not 1 <= threads <= smallest.vcpus:
        raise Refused(
            f"threads is {threads}, but {smallest.name!r} has {smallest.vcpus} vCPUs and more threads than that stall "
            f"one another; set 1 to {smallest.vcpus}, or leave it out to use every physical core"
        )

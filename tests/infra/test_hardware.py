"""Instance types, AMIs and pools: the facts against AWS's own lists, and each refusal with its sentence."""

from __future__ import annotations

import ast
import doctest
import subprocess
import sys

import botocore.session
import pytest

from steelyard_constructs import hardware
from steelyard_constructs.hardware import (
    AMIS,
    DEFAULT_AMI,
    FAMILIES,
    INSTANCE_POOL_REGIONS,
    OLDEST_DRIVER,
    SIZES,
    Architecture,
    Hardware,
    InstanceType,
    PooledInstance,
    check_ami,
    check_hardware,
    check_instances,
    check_threads,
)
from steelyard_constructs.refusal import Refused

SAGEMAKER = botocore.session.get_session().get_service_model("sagemaker")
HOSTING_TYPES = SAGEMAKER.shape_for("ProductionVariantInstanceType").enum
KNOWN_AMIS = SAGEMAKER.shape_for("ProductionVariantInferenceAmiVersion").enum


def types(*names: str) -> list[InstanceType]:
    return [InstanceType.parse(name) for name in names]


def pool(*places: tuple[str, int]) -> list[PooledInstance]:
    return [PooledInstance(name, priority) for name, priority in places]


def test_the_examples_in_the_docstrings_are_right():
    assert doctest.testmod(hardware) == (0, 1)


@pytest.mark.parametrize("name", HOSTING_TYPES)
def test_every_instance_type_of_the_api_is_known(name):
    parsed = InstanceType.parse(name)
    assert parsed.name == name
    assert name.startswith(f"ml.{parsed.family_name}.")


def test_no_other_instance_type_is_taken():
    assert {f"ml.{family}.{size}" for family, sizes in SIZES.items() for size in sizes} == set(HOSTING_TYPES)


def test_every_family_exists_in_the_api():
    assert {InstanceType.parse(name).family_name for name in HOSTING_TYPES} == set(FAMILIES)


def test_every_gpu_ami_of_the_api_is_known_and_no_other():
    assert set(AMIS) == {name for name in KNOWN_AMIS if "gpu" in name}


@pytest.mark.parametrize(
    ("name", "hardware", "vcpus", "disks"),
    [
        ("ml.c6i.8xlarge", Hardware.CPU, 32, False),
        ("ml.m5d.large", Hardware.CPU, 2, True),
        ("ml.c7g.xlarge", Hardware.GRAVITON, 4, False),
        ("ml.m8g.medium", Hardware.GRAVITON, 1, False),
        ("ml.g6e.xlarge", Hardware.CUDA, 4, True),
        ("ml.p5.48xlarge", Hardware.CUDA, 192, True),
        ("ml.p6e-gb200.36xlarge", None, 144, True),
        ("ml.inf2.xlarge", None, 4, False),
    ],
)
def test_what_an_instance_type_is(name, hardware, vcpus, disks):
    parsed = InstanceType.parse(name)
    assert (parsed.hardware, parsed.vcpus, parsed.family.local_storage) == (hardware, vcpus, disks)


def test_each_hardware_has_the_architecture_of_its_images():
    assert {hardware: hardware.architecture for hardware in Hardware} == {
        Hardware.CPU: Architecture.X86_64,
        Hardware.GRAVITON: Architecture.ARM64,
        Hardware.CUDA: Architecture.X86_64,
    }


def test_every_family_of_an_ami_has_a_gpu():
    for ami in AMIS.values():
        assert all(FAMILIES[family].gpu for family in ami.families), ami.name


def test_the_default_ami_has_the_newest_driver_and_runs_cuda_13():
    assert max(AMIS.values(), key=lambda ami: ami.driver).name == DEFAULT_AMI
    assert AMIS[DEFAULT_AMI].driver >= OLDEST_DRIVER[13]


@pytest.mark.parametrize("cuda", ["12.4", "13.0"])
def test_an_image_runs_where_the_driver_is_new_enough(cuda):
    chosen = check_ami(
        DEFAULT_AMI, cuda=cuda, instance_types=types("ml.g4dn.xlarge", "ml.g6e.xlarge", "ml.p5.48xlarge")
    )
    assert chosen.driver == 580


# A call, and what its refusal must say: what is wrong, the value, and what to do.
REFUSED = {
    "a size that does not exist": (
        lambda: InstanceType.parse("ml.c7i.3xlarge"),
        ["'ml.c7i.3xlarge' does not exist", "'c7i' has the sizes large, xlarge, 2xlarge"],
    ),
    "Graviton2, which the Arm container was not built for": (
        lambda: check_hardware(InstanceType.parse("ml.c6g.xlarge"), Hardware.GRAVITON),
        ["'ml.c6g.xlarge' cannot serve", "built for Graviton3 and newer", "choose one for 'graviton'"],
    ),
    "not an instance type": (
        lambda: InstanceType.parse("c7i.large"),
        ["'c7i.large' is not a SageMaker instance type", "write it as ml.FAMILY.SIZE"],
    ),
    "a size that there is not": (lambda: InstanceType.parse("ml.c7i.huge"), ["'ml.c7i.huge' is not"]),
    "an unknown family": (
        lambda: InstanceType.parse("ml.z9.large"),
        ["'ml.z9.large' is of the family 'z9'", "use one of c4, c5", "add it to FAMILIES"],
    ),
    "Arm where x86 is meant": (
        lambda: check_hardware(*types("ml.c7g.large"), Hardware.CPU),
        ["'ml.c7g.large' is 'graviton' hardware", "the endpoint says 'cpu'", "set hardware to 'graviton'"],
    ),
    "no GPU where one is meant": (
        lambda: check_hardware(*types("ml.c7i.large"), Hardware.CUDA),
        ["'ml.c7i.large' is 'cpu' hardware", "says 'cuda'"],
    ),
    "an accelerator that llama.cpp cannot use": (
        lambda: check_hardware(*types("ml.inf2.xlarge"), Hardware.CPU),
        ["'ml.inf2.xlarge' cannot serve", "Neuron", "choose one for 'cpu'"],
    ),
    "a GPU beside Arm processors": (
        lambda: check_hardware(*types("ml.p6e-gb200.36xlarge"), Hardware.CUDA),
        ["'ml.p6e-gb200.36xlarge' has arm64 processors", "choose an x86_64 one"],
    ),
    "an AMI that there is not": (
        lambda: check_ami("gpu-9", cuda="13.0", instance_types=types("ml.g5.xlarge")),
        ["inference AMI 'gpu-9' is not one of", DEFAULT_AMI],
    ),
    "an AMI whose driver is older": (
        lambda: check_ami(
            "al2-ami-sagemaker-inference-gpu-3-1", cuda="13.0", instance_types=types("ml.g6.xlarge", "ml.g6e.xlarge")
        ),
        ["CUDA 13.0, which needs NVIDIA driver 580", "gpu-3-1' has driver 550", f"use '{DEFAULT_AMI}'"],
    ),
    "a family that the AMI does not support": (
        lambda: check_ami(DEFAULT_AMI, cuda="13.0", instance_types=types("ml.g5.xlarge", "ml.p3.2xlarge")),
        ["'ml.p3.2xlarge' is not supported by inference AMI", "choose one of the families g4dn, g5"],
    ),
    "a CUDA that is not known": (
        lambda: check_ami(DEFAULT_AMI, cuda="14.1", instance_types=types("ml.g5.xlarge")),
        ["CUDA 14.1 is not known", "use an image with CUDA 11, 12, 13"],
    ),
    "both a type and a pool": (
        lambda: check_instances(
            instance_type="ml.c7i.large", instance_pool=pool(("ml.c6i.large", 1)), hardware=Hardware.CPU
        ),
        ["both of instance_type and instance_pool are set", "set exactly one"],
    ),
    "neither a type nor a pool": (
        lambda: check_instances(instance_type=None, instance_pool=(), hardware=Hardware.CPU),
        ["neither of instance_type and instance_pool are set", "set exactly one"],
    ),
    "a region without pools": (
        lambda: check_instances(
            instance_type=None, instance_pool=pool(("ml.c6i.large", 1)), hardware=Hardware.CPU, region="af-south-1"
        ),
        ["region 'af-south-1' has no instance pools", "set instance_type instead", "ap-northeast-1, "],
    ),
    "six places": (
        lambda: check_instances(
            instance_type=None,
            instance_pool=pool(
                *((f"ml.c6i.{size}", 1) for size in ("large", *(f"{n}xlarge" for n in (2, 4, 8, 12, 16))))
            ),
            hardware=Hardware.CPU,
        ),
        ["the instance pool has 6 places", "at most 5", "remove some"],
    ),
    **{
        f"priority {priority}": (
            lambda priority=priority: check_instances(
                instance_type=None, instance_pool=pool(("ml.c6i.large", priority)), hardware=Hardware.CPU
            ),
            [f"'ml.c6i.large' has priority {priority}", "one from 1 (first choice) to 5"],
        )
        for priority in (0, 6, -1, True)
    },
    "a priority given twice": (
        lambda: check_instances(
            instance_type=None,
            instance_pool=pool(("ml.c6i.large", 1), ("ml.c7i.large", 2), ("ml.m7i.large", 2)),
            hardware=Hardware.CPU,
        ),
        ["priority 2 is given twice", "give each type its own"],
    ),
    "a type given twice": (
        lambda: check_instances(
            instance_type=None, instance_pool=pool(("ml.c6i.large", 1), ("ml.c6i.large", 2)), hardware=Hardware.CPU
        ),
        ["'ml.c6i.large' is in the instance pool twice", "remove one"],
    ),
    "a pool of two kinds": (
        lambda: check_instances(
            instance_type=None, instance_pool=pool(("ml.c6i.large", 1), ("ml.c7g.large", 2)), hardware=Hardware.CPU
        ),
        ["'ml.c7g.large' is 'graviton' hardware"],
    ),
    "more threads than the smallest has": (
        lambda: check_threads(8, types("ml.c7i.4xlarge", "ml.c7i.xlarge")),
        ["threads is 8", "'ml.c7i.xlarge' has 4 vCPUs", "set 1 to 4"],
    ),
    "no thread": (lambda: check_threads(0, types("ml.c7i.large")), ["threads is 0", "set 1 to 2"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_with_the_value_and_what_to_do(case):
    call, sentence = REFUSED[case]
    with pytest.raises(Refused) as refusal:
        call()
    for part in sentence:
        assert part in str(refusal.value)


def test_a_pool_is_in_order_of_priority_whatever_the_order_it_was_written_in():
    ordered = check_instances(
        instance_type=None,
        instance_pool=pool(("ml.g5.xlarge", 5), ("ml.g6e.xlarge", 1), ("ml.g6.xlarge", 3)),
        hardware=Hardware.CUDA,
        region="eu-west-1",
    )
    assert [each.name for each in ordered] == ["ml.g6e.xlarge", "ml.g6.xlarge", "ml.g5.xlarge"]


def test_a_pool_is_accepted_in_every_region_that_has_them():
    for region in INSTANCE_POOL_REGIONS:
        check_instances(
            instance_type=None, instance_pool=pool(("ml.c6i.large", 1)), hardware=Hardware.CPU, region=region
        )


def test_one_type_is_accepted_in_a_region_without_pools():
    (only,) = check_instances(
        instance_type="ml.c6i.large", instance_pool=(), hardware=Hardware.CPU, region="me-south-1"
    )
    assert only.name == "ml.c6i.large"


def test_threads_may_be_left_to_the_server():
    check_threads(None, types("ml.c7i.large"))
    check_threads(2, types("ml.c7i.large"))


def test_configuration_can_be_checked_without_the_cdk():
    code = (
        "import sys\n"
        "from steelyard_constructs import hardware, images, model_artifact\n"
        "print([name for name in sys.modules if name in ('aws_cdk', 'jsii', 'constructs')])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ast.literal_eval(answer.stdout) == []

"""The rules of an endpoint: each is refused by the environment file and by the construct, in the same words."""

from __future__ import annotations

import dataclasses
from typing import Any

import aws_cdk as cdk
import pytest

from steelyard.environments.files import parse_environment
from steelyard.environments.schema import Endpoint
from steelyard_base.exit_codes import CommandError
from steelyard_base.strict import fields_of
from steelyard_constructs.decision_endpoint import DecisionEndpoint
from steelyard_constructs.declared_endpoint import Canary, DeclaredEndpoint, Rolling, Scaling, Schedule, endpoint_checks
from steelyard_constructs.endpoint import EndpointProps
from steelyard_constructs.hardware import Hardware, PooledInstance
from steelyard_constructs.images import ImageReference
from steelyard_constructs.model_artifact import ModelArtifact
from steelyard_constructs.refusal import Refused

REGION = "eu-west-1"
DIGEST = "sha256:" + "a1" * 32
AMI = "al2023-ami-sagemaker-inference-gpu-4-1"


def declared(**changes: Any) -> DeclaredEndpoint:
    """An endpoint for decisions on x86 processors that keeps every rule, with changes."""
    given: dict[str, Any] = {"hardware": Hardware.CPU, "instance_type": "ml.c7i.2xlarge", **changes}
    return DeclaredEndpoint(**given)


def on_gpu(**changes: Any) -> DeclaredEndpoint:
    return declared(**{"hardware": Hardware.CUDA, "instance_type": "ml.g6e.xlarge", "gpu_layers": -1, **changes})


def pool(*places: tuple[str, int]) -> DeclaredEndpoint:
    return declared(instance_type=None, instance_pool=tuple(PooledInstance(*each) for each in places))


def scaled(low: int = 1, high: int = 4, *schedules: Schedule, target: float = 2, **changes: Any) -> DeclaredEndpoint:
    limits = Scaling(min_instances=low, max_instances=high, target_concurrency=target, schedules=schedules)
    return declared(scaling=limits, **changes)


def night(low: int, high: int, cron: str = "cron(0 20 ? * * *)") -> Schedule:
    return Schedule("night", cron, low, high)


RULES: dict[str, tuple[DeclaredEndpoint, str]] = {
    "both a type and a pool": (
        declared(instance_pool=(PooledInstance("ml.c6i.xlarge", 1),)),
        "both of instance_type and instance_pool are set; set exactly one of them",
    ),
    "neither a type nor a pool": (
        declared(instance_type=None),
        "neither of instance_type and instance_pool are set; set exactly one of them",
    ),
    "a priority given twice": (
        pool(("ml.c6i.xlarge", 1), ("ml.c7i.xlarge", 1)),
        "priority 1 is given twice in the instance pool; give each type its own",
    ),
    "a priority outside 1 to 5": (
        pool(("ml.c6i.xlarge", 0)),
        "'ml.c6i.xlarge' has priority 0 in the instance pool; give it one from 1 (first choice) to 5",
    ),
    "a type in the pool twice": (
        pool(("ml.c6i.xlarge", 1), ("ml.c6i.xlarge", 2)),
        "instance type 'ml.c6i.xlarge' is in the instance pool twice",
    ),
    "a pool of six": (
        pool(*((f"ml.c6i.{n}xlarge", n) for n in (1, 2, 3, 4, 5)), ("ml.c7i.xlarge", 5)),
        "the instance pool has 6 places; SageMaker takes at most 5",
    ),
    "an instance type that is none": (
        declared(instance_type="c7i.xlarge"),
        "'c7i.xlarge' is not a SageMaker instance type",
    ),
    "an unknown family": (declared(instance_type="ml.c99.xlarge"), "is of the family 'c99', of which nothing is known"),
    "an instance type that does not exist": (
        declared(instance_type="ml.c7i.3xlarge"),
        "'ml.c7i.3xlarge' does not exist: the family 'c7i' has the sizes large",
    ),
    "x86 hardware on an Arm instance": (
        declared(instance_type="ml.c7g.xlarge"),
        "instance type 'ml.c7g.xlarge' is 'graviton' hardware, but the endpoint says 'cpu'",
    ),
    "a CPU endpoint on a GPU instance": (
        declared(instance_type="ml.g6e.xlarge"),
        "instance type 'ml.g6e.xlarge' is 'cuda' hardware, but the endpoint says 'cpu'",
    ),
    "a pool of two architectures": (
        pool(("ml.c6i.xlarge", 1), ("ml.c7g.xlarge", 2)),
        "instance type 'ml.c7g.xlarge' is 'graviton' hardware, but the endpoint says 'cpu'",
    ),
    "processors that the Arm container was not built for": (
        declared(hardware=Hardware.GRAVITON, instance_type="ml.m6g.xlarge"),
        "built for Graviton3 and newer",
    ),
    "no instances": (
        declared(instances=0),
        "instances is 0, but an endpoint without inference components cannot have less than 1 instance; set 1 or more",
    ),
    "more threads than processors": (declared(threads=9), "threads is 9, but 'ml.c7i.2xlarge' has 8 vCPUs"),
    "more threads than a double can count": (
        declared(threads=10**400),
        "threads is a number of 1329 bits; give a whole number of at most 9007199254740991",
    ),
    "a GPU for decisions without layers on it": (
        on_gpu(gpu_layers=0),
        "gpu_layers is 0 on a 'cuda' endpoint for decisions, so its GPU would be paid for and stay idle; set -1",
    ),
    "a GPU for decisions of which nothing is said": (on_gpu(gpu_layers=None), "gpu_layers is 0 on a 'cuda' endpoint"),
    "layers on a GPU that is not there": (
        declared(gpu_layers=-1),
        "gpu_layers is -1, but 'cpu' instances have no GPU; leave it out, or set hardware to 'cuda'",
    ),
    "fewer layers than none": (on_gpu(gpu_layers=-2), "gpu_layers is -2; set -1 for all layers, or how many"),
    "a GPU's AMI without a GPU": (
        declared(inference_ami=AMI),
        f"inference_ami is '{AMI}', which is for GPU instances, but hardware is 'cpu'; leave it out",
    ),
    "a start-up timeout beyond SageMaker's": (
        declared(startup_timeout_s=3601),
        "startup_timeout_s of 3601 s is outside the 60 to 3600 s that SageMaker accepts",
    ),
    "a download timeout below SageMaker's": (
        declared(download_timeout_s=59),
        "download_timeout_s of 59 s is outside the 60 to 3600 s that SageMaker accepts",
    ),
    "a canary of all": (declared(instances=4, canary=Canary(percent=51)), "the canary is 51 % of the instances"),
    "a canary that waits too long": (declared(instances=4, canary=Canary(wait_s=3601)), "the canary waits 3601 s"),
    "a canary that watches nothing": (declared(instances=4, canary=Canary(wait_s=59)), "the canary waits 59 s; set 60"),
    "a rolling update of all": (declared(instances=4, rolling=Rolling(percent=51)), "replaces 51 % at a time"),
    "a rolling update of nothing": (declared(instances=40, rolling=Rolling(percent=4)), "SageMaker takes 5 to 50"),
    "a rolling update that watches nothing": (
        declared(instances=4, rolling=Rolling(wait_s=59)),
        "waits 59 s; it must be 60",
    ),
    "a rolling update that waits too long": (declared(instances=4, rolling=Rolling(wait_s=3601)), "waits 3601 s"),
    "a rolling update of one instance": (declared(rolling=Rolling()), "of 25 % needs 2 instances or more"),
    "two ways of an update": (
        declared(instances=2, rolling=Rolling(), canary=Canary()),
        "canary and rolling are both given",
    ),
    "a canary of one instance": (
        declared(canary=Canary()),
        "a canary of 10 % needs 2 instances or more, but instances is 1; raise it, or leave out the canary",
    ),
    "scale to zero": (
        scaled(0),
        "scaling has min_instances 0: an endpoint without inference components cannot scale to zero; set "
        "min_instances to 1 or more",
    ),
    "scale to zero by schedule": (scaled(1, 4, night(0, 1)), "schedule 'night' has min_instances 0: an endpoint"),
    "limits the wrong way round": (scaled(3, 2), "scaling has min_instances 3 above max_instances 2; swap or change"),
    "a schedule with its limits the wrong way round": (
        scaled(1, 4, night(2, 1)),
        "schedule 'night' has min_instances 2 above max_instances 1",
    ),
    "a schedule given twice": (
        scaled(1, 4, night(1, 2), night(1, 3)),
        "the schedule name 'night' is given twice; give each schedule its own",
    ),
    "a schedule that says no time": (
        scaled(1, 4, night(1, 1, cron="0 20 * * *")),
        "schedule 'night' has the cron '0 20 * * *'; write it as cron(MINUTE HOUR DAY MONTH WEEKDAY YEAR)",
    ),
    "a target of nothing": (scaled(target=0.0), "target_concurrency is 0.0; aim at more than 0"),
    "more instances than scaling allows": (scaled(instances=5), "instances is 5, outside scaling's 1 to 4"),
    "scaling of burstable instances": (
        scaled(instance_type="ml.t2.xlarge"),
        "instance type 'ml.t2.xlarge' is burstable, and scaling cannot follow its load",
    ),
}


def as_file(value: Any) -> Any:
    """A value as a TOML file has it."""
    match value:
        case Hardware():
            return value.value
        case tuple():
            return [as_file(each) for each in value]
        case _ if dataclasses.is_dataclass(value):
            named = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
            return {name: as_file(each) for name, each in named.items() if each is not None}
    return value


def in_a_file(endpoint: DeclaredEndpoint) -> Endpoint:
    endpoints = {"one": {"kind": "decision", **as_file(endpoint)}}
    content = {"region": REGION, "removal_policy": "destroy", "endpoints": endpoints}
    return parse_environment(content, name="test", source="test.toml").endpoints["one"]


def in_a_stack(endpoint: DeclaredEndpoint) -> DecisionEndpoint:
    stack = cdk.Stack(cdk.App(), "Stack", env=cdk.Environment(region=REGION, account="111122223333"))
    props = EndpointProps(
        endpoint_name="decisions",
        image=ImageReference("steelyard", DIGEST, cuda="13.0" if endpoint.hardware is Hardware.CUDA else None),
        **endpoint.declared(),
    )
    return DecisionEndpoint(stack, "Decisions", model=ModelArtifact("models", "qwen/0123abcd/", 10**9), props=props)


@pytest.mark.parametrize("case", RULES)
def test_a_broken_rule_is_refused_by_the_file_and_by_the_construct(case: str) -> None:
    endpoint, sentence = RULES[case]
    with pytest.raises(CommandError) as refused:
        in_a_file(endpoint)
    assert "test.toml is refused" in refused.value.message
    assert "endpoints.one: " in refused.value.message
    assert sentence in refused.value.message
    with pytest.raises(Refused) as refusal:
        in_a_stack(endpoint)
    assert sentence in str(refusal.value)


def test_a_region_without_pools_is_refused() -> None:
    checks = endpoint_checks(pool(("ml.c6i.xlarge", 1)), region="eu-south-1")
    with pytest.raises(Refused, match=r"region 'eu-south-1' has no instance pools; set instance_type instead of inst"):
        [check() for check in checks]


WHOLE = scaled(1, 4, night(1, 2), instances=2, canary=Canary(25, 120), threads=4, startup_timeout_s=600, gpu_layers=0)


@pytest.mark.parametrize("endpoint", [declared(), on_gpu(inference_ami=AMI), WHOLE], ids=["least", "cuda", "most"])
def test_what_keeps_the_rules_is_the_same_in_a_file_and_in_code(endpoint: DeclaredEndpoint) -> None:
    assert in_a_file(endpoint).declared() == endpoint.declared()
    for check in endpoint_checks(endpoint, region=REGION):
        check()


def test_what_is_declared_stands_once() -> None:
    """The file and the construct add fields to those that are declared, and declare none of them again."""
    shared = set(fields_of(DeclaredEndpoint))
    for kind in (Endpoint, EndpointProps):
        assert shared < {each.name for each in dataclasses.fields(kind)}
        assert not shared & set(kind.__annotations__)

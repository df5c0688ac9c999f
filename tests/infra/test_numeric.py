"""Numbers that Node.js cannot hold, digits of other scripts, numbers too long: refused by the constructs themselves."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import aws_cdk as cdk
import pytest

from steelyard.models.catalogue import S3, HuggingFace
from steelyard_constructs.artifact_store import ArtifactStore
from steelyard_constructs.chat_endpoint import ChatFlags
from steelyard_constructs.cost_budget import CostBudget
from steelyard_constructs.decision_endpoint import DecisionEndpoint
from steelyard_constructs.declared_endpoint import Canary, Rolling, Scaling, Schedule
from steelyard_constructs.endpoint import EndpointProps
from steelyard_constructs.endpoint_alarms import EndpointAlarms
from steelyard_constructs.endpoint_scaling import EndpointScaling
from steelyard_constructs.hardware import DEFAULT_AMI, Hardware, InstanceType, PooledInstance, check_ami
from steelyard_constructs.image_repository import ImageRepository
from steelyard_constructs.images import ImageReference
from steelyard_constructs.isolated_network import IsolatedNetwork
from steelyard_constructs.model_artifact import HubModel, ModelArtifact
from steelyard_constructs.numeric import LARGEST, check_finite, check_whole
from steelyard_constructs.refusal import Refused
from steelyard_constructs.thresholds import Thresholds

DIGEST = "sha256:" + "0" * 64
DESTROY = cdk.RemovalPolicy.DESTROY
Make = Callable[[cdk.Stack, Any], object]


def scaled(name: str, make: Callable[[Any], Any] = lambda n: n) -> Make:
    def scale(stack: cdk.Stack, n: Any) -> object:
        limits = {"min_instances": 1, "max_instances": 4, "target_concurrency": 2, name: make(n)}
        more = {each: limits.pop(each) for each in list(limits) if each.endswith("cooldown_s")}
        return EndpointScaling(stack, "S", endpoint_name="e", variant_name="v", scaling=Scaling(**limits), **more)

    return scale


def endpoint(name: str, make: Callable[[Any], Any] = lambda n: n, **more: Any) -> Make:
    given = {
        "endpoint_name": "e",
        "image": ImageReference("steelyard", DIGEST),
        "hardware": Hardware.CPU,
        "instance_type": "ml.c7i.xlarge",
        **more,
    }
    model = ModelArtifact("models", "m/", 1)
    return lambda stack, n: DecisionEndpoint(stack, "E", model=model, props=EndpointProps(**{**given, name: make(n)}))


WHOLE: dict[str, Make] = {
    "noncurrent_days": lambda stack, n: ArtifactStore(stack, "S", removal_policy=DESTROY, noncurrent_days=n),
    "access_log_days": lambda stack, n: ArtifactStore(stack, "S", removal_policy=DESTROY, access_log_days=n),
    "keep_images": lambda stack, n: ImageRepository(stack, "R", removal_policy=DESTROY, keep_images=n),
    "zones": lambda stack, n: IsolatedNetwork(stack, "N", removal_policy=DESTROY, zones=n),
    "monthly_usd": lambda stack, n: CostBudget(stack, "B", monthly_usd=n, tag=("a", "b"), emails=["a@example.com"]),
    "min_instances": scaled("min_instances"),
    "max_instances": scaled("max_instances"),
    "scale_in_cooldown_s": scaled("scale_in_cooldown_s"),
    "scale_out_cooldown_s": scaled("scale_out_cooldown_s"),
    "min_instances of schedule": scaled("schedules", lambda n: [Schedule("s", "cron(* * * * ? *)", n, 9)]),
    "max_instances of schedule": scaled("schedules", lambda n: [Schedule("s", "cron(* * * * ? *)", 1, n)]),
    "instances": endpoint("instances"),
    "threads": endpoint("threads"),
    "startup_timeout_s": endpoint("startup_timeout_s"),
    "download_timeout_s": endpoint("download_timeout_s"),
    "provision_timeout_s": endpoint("provision_timeout_s"),
    "drain_s": endpoint("drain_s"),
    "gpu_layers": endpoint("gpu_layers"),
    "percent": endpoint("canary", lambda n: Canary(percent=n), instances=2),
    "rolling percent": endpoint("rolling", lambda n: Rolling(percent=n), instances=2),
    "rolling wait_s": endpoint("rolling", lambda n: Rolling(wait_s=n), instances=2),
    "wait_s": endpoint("canary", lambda n: Canary(wait_s=n), instances=2),
    "priority": endpoint("instance_pool", lambda n: [PooledInstance("ml.c7i.xlarge", n)], instance_type=None),
    "bytes": lambda _, n: ModelArtifact("models", "m/", n),
    "bytes of the hub": lambda _, n: HubModel("a/b", "x.gguf", n),
}
FINITE: dict[str, Make] = {
    "target_concurrency": scaled("target_concurrency"),
    "ctx-size": lambda _, n: ChatFlags(ctx_size=n).environment(),
    "rope-scale": lambda _, n: ChatFlags(extra={"rope-scale": n}).environment(),
    **{
        name: lambda stack, n, name=name: EndpointAlarms(
            stack, "A", endpoint_name="e", variant_name="v", thresholds=Thresholds(**{name: n})
        )
        for name in Thresholds.__dataclass_fields__
    },
}
ENDLESS = [math.inf, -math.inf, math.nan, 10**400, 10**5000]


@pytest.mark.parametrize(
    "value", [*ENDLESS, 1.5, True, "1"], ids=lambda value: str(value)[:8] if value != 10**5000 else "huge"
)
@pytest.mark.parametrize("name", WHOLE)
def test_what_is_no_whole_number_is_refused_here_and_not_in_node(name: str, value: Any, stack: cdk.Stack) -> None:
    with pytest.raises(Refused, match=name.partition(" ")[0]):
        WHOLE[name](stack, value)


@pytest.mark.parametrize("value", ENDLESS, ids=["inf", "-inf", "nan", "400 digits", "5000 digits"])
@pytest.mark.parametrize("name", FINITE)
def test_what_is_not_finite_is_refused_here_and_not_in_node(name: str, value: Any, stack: cdk.Stack) -> None:
    with pytest.raises(Refused, match=name):
        FINITE[name](stack, value)


def test_a_threshold_that_is_infinite_in_microseconds(stack: cdk.Stack) -> None:
    with pytest.raises(Refused, match="latency_alarm_ms times 1000 is inf; give a finite number"):
        FINITE["latency_alarm_ms"](stack, 1e306)


def test_what_is_said_of_a_number() -> None:
    for value in (-LARGEST, 0, LARGEST):
        check_whole("n", value)
        check_finite("n", value)
    check_finite("n", 2.5)
    with pytest.raises(Refused, match=r"^n is inf; give a whole number of at most 9007199254740991$"):
        check_whole("n", math.inf)
    with pytest.raises(Refused, match=r"^n is a number of 16610 bits; give a whole number"):
        check_finite("n", 10**5000)


ARABIC = "١" * 12
OTHER_SCRIPTS: dict[str, Callable[[], object]] = {
    "account of an image": lambda: ImageReference("a", DIGEST, account=ARABIC),
    "account in an address": lambda: ImageReference.parse(f"{ARABIC}.dkr.ecr.eu-west-1.amazonaws.com/a@{DIGEST}"),
    "account that pulls": lambda: ImageRepository(
        cdk.Stack(cdk.App(), "S"), "R", removal_policy=DESTROY, pull_accounts=[ARABIC]
    ),
    "version of CUDA": lambda: ImageReference("a", DIGEST, cuda="١٣.0"),
    "version of CUDA for an AMI": lambda: check_ami(DEFAULT_AMI, cuda="١٣.0", instance_types=[]),
    "version of CUDA that is none": lambda: check_ami(DEFAULT_AMI, cuda="new", instance_types=[]),
    "endless version of CUDA": lambda: ImageReference("a", DIGEST, cuda=f"{'9' * 5001}.0"),
    "size of an instance": lambda: InstanceType.parse("ml.c7i.1٢xlarge"),
    "endless size of an instance": lambda: InstanceType.parse(f"ml.c7i.{'9' * 5001}xlarge"),
    "size of four digits": lambda: InstanceType.parse("ml.c7i.1000xlarge"),
    "repository on a hub": lambda: HubModel("a/bé", "x.gguf", 1),
    "owner on a hub": lambda: HubModel("aß/b", "x.gguf", 1),
    "line after a repository": lambda: HubModel("a/b\n", "x.gguf", 1),
    "line after an account": lambda: ImageReference("a", DIGEST, account="1" * 12 + "\n"),
    "line after an instance type": lambda: InstanceType.parse("ml.c7i.xlarge\n"),
    "region of a bucket": lambda: S3(kind="s3", bucket="bucket", prefix="", region="eu-west-٢"),
    "line after a region": lambda: S3(kind="s3", bucket="bucket", prefix="", region="eu-west-2\n"),
    "revision": lambda: HuggingFace(kind="hugging-face", repository="a/b", revision="٢" * 40),
}


@pytest.mark.parametrize("case", OTHER_SCRIPTS)
def test_names_are_ascii(case: str) -> None:
    # pydantic's ValidationError is a ValueError too; Python's own message about digits is neither.
    with pytest.raises(ValueError, match=r".") as refused:
        OTHER_SCRIPTS[case]()
    assert "integer string conversion" not in str(refused.value)

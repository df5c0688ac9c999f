"""ChatEndpoint: the published container with its flags, from S3 or a hub, and each refusal with its sentence."""

from __future__ import annotations

import doctest
from dataclasses import replace
from pathlib import Path
from typing import Any

import aws_cdk as cdk
import pytest
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3_assets as s3_assets
from aws_cdk.assertions import Annotations, Match, Template

from steelyard_constructs.artifact_store import ArtifactStore
from steelyard_constructs.build_project import BuildProps
from steelyard_constructs.chat_endpoint import ChatEndpoint, ChatFlags
from steelyard_constructs.endpoint import EndpointProps
from steelyard_constructs.hardware import Architecture, Hardware
from steelyard_constructs.image_build import ImageBuild
from steelyard_constructs.image_repository import ImageRepository
from steelyard_constructs.images import ImageReference
from steelyard_constructs.model_artifact import HubModel, ModelArtifact
from steelyard_constructs.refusal import Refused
from steelyard_constructs.release_gate import ReleaseGate

DIGEST = "sha256:" + "c3" * 32
MODEL = ModelArtifact("models", "qwen/0123abcd/", 2_700_000_000, file="Qwen3.5-4B-Q4_K_M.gguf")
HUB = HubModel("bartowski/Qwen_Qwen3.5-4B-GGUF", "Qwen_Qwen3.5-4B-Q4_K_M.gguf", 2_700_000_000)
ON_CPU: dict[str, Any] = {
    "image": ImageReference.dlc(digest=DIGEST),
    "hardware": Hardware.CPU,
    "instance_type": "ml.c7i.4xlarge",
}
ON_GPU: dict[str, Any] = {
    "image": ImageReference.dlc(digest=DIGEST, cuda="13.0"),
    "hardware": Hardware.CUDA,
    "instance_type": "ml.g6e.xlarge",
}
ON_GRAVITON: dict[str, Any] = {
    "image": ImageReference.dlc(digest=DIGEST, architecture=Architecture.ARM64),
    "hardware": Hardware.GRAVITON,
    "instance_type": "ml.c8g.4xlarge",
}


def new_stack(region: str | None = "eu-west-1") -> cdk.Stack:
    env = cdk.Environment(region=region, account="111122223333") if region else None
    return cdk.Stack(cdk.App(), "Stack", env=env)


def endpoint(stack: cdk.Stack, **changes: Any) -> ChatEndpoint:
    """A chat endpoint on x86 processors, with changes."""
    given = {"endpoint_name": "chat", "model": MODEL, **ON_CPU, **changes}
    model, flags = given.pop("model"), given.pop("flags", None)
    return ChatEndpoint(stack, "Chat", model=model, props=EndpointProps(**given), flags=flags)


def model(region: str = "eu-west-1", **changes: Any) -> dict[str, Any]:
    """Properties of the model of such an endpoint."""
    stack = new_stack(region)
    endpoint(stack, **changes)
    (found,) = Template.from_stack(stack).find_resources("AWS::SageMaker::Model").values()
    return found["Properties"]


def environment(**changes: Any) -> dict[str, str]:
    return model(**changes)["PrimaryContainer"]["Environment"]


def test_the_example_of_the_flags_is_right():
    (example,) = doctest.DocTestFinder().find(ChatFlags.environment, globs={"ChatFlags": ChatFlags})
    assert doctest.DocTestRunner().run(example) == (0, 1)


@pytest.mark.parametrize("on", [ON_CPU, ON_GRAVITON, ON_GPU], ids=["cpu", "graviton", "cuda"])
def test_no_finding_of_cdk_nag_or_cfn_lint(on, nag_findings, lint_findings):
    stack = new_stack()
    endpoint(stack, flags=ChatFlags(ctx_size=8192), **on)
    assert nag_findings(stack) == []
    assert lint_findings(stack) == []


@pytest.mark.parametrize(
    ("region", "registry"),
    [
        ("eu-west-1", "763104351884.dkr.ecr.eu-west-1.amazonaws.com"),
        ("eu-central-2", "380420809688.dkr.ecr.eu-central-2.amazonaws.com"),
        ("cn-north-1", "727897471807.dkr.ecr.cn-north-1.amazonaws.com.cn"),
    ],
)
def test_the_container_comes_from_the_registry_of_the_region_by_digest(region, registry):
    assert model(region)["PrimaryContainer"]["Image"] == f"{registry}/llama-cpp@{DIGEST}"


def test_the_role_pulls_from_that_repository_only():
    stack = new_stack()
    endpoint(stack)
    Template.from_stack(stack).has_resource_properties(
        "AWS::IAM::Policy",
        {
            "PolicyDocument": {
                "Statement": Match.array_with(
                    [
                        Match.object_like(
                            {
                                "Sid": "PullImage",
                                "Resource": {
                                    "Fn::Join": [
                                        "",
                                        [
                                            "arn:",
                                            {"Ref": "AWS::Partition"},
                                            ":ecr:eu-west-1:763104351884:repository/llama-cpp",
                                        ],
                                    ]
                                },
                            }
                        )
                    ]
                )
            }
        },
    )


def test_where_the_cdk_knows_no_registry_an_account_can_be_given():
    image = ImageReference.dlc(digest=DIGEST, account="626614931356")
    assert model("af-south-1", image=image)["PrimaryContainer"]["Image"].startswith("626614931356.dkr.ecr.af-south-1.")


def test_the_model_is_named_so_that_no_other_file_can_win():
    made = model()
    assert made["EnableNetworkIsolation"] is True
    assert made["PrimaryContainer"]["Environment"] == {"SM_LLAMA_CPP_MODEL": "/opt/ml/model/Qwen3.5-4B-Q4_K_M.gguf"}
    assert made["PrimaryContainer"]["ModelDataSource"]["S3DataSource"]["S3Uri"] == "s3://models/qwen/0123abcd/"


def test_flags_become_the_containers_variables():
    flags = ChatFlags(
        ctx_size=16384,
        parallel=4,
        flash_attn="on",
        cache_type_k="q8_0",
        reasoning_budget=0,
        metrics=True,
        extra={"cache-reuse": 256, "no_slots": True, "temp": 0.2},
    )
    assert environment(flags=flags, threads=8, environment={"SM_LLAMA_CPP_VERBOSE": "true", "TZ": "UTC"}) == {
        "SM_LLAMA_CPP_CACHE_REUSE": "256",
        "SM_LLAMA_CPP_CACHE_TYPE_K": "q8_0",
        "SM_LLAMA_CPP_CTX_SIZE": "16384",
        "SM_LLAMA_CPP_FLASH_ATTN": "on",
        "SM_LLAMA_CPP_METRICS": "true",
        "SM_LLAMA_CPP_MODEL": "/opt/ml/model/Qwen3.5-4B-Q4_K_M.gguf",
        "SM_LLAMA_CPP_NO_SLOTS": "true",
        "SM_LLAMA_CPP_PARALLEL": "4",
        "SM_LLAMA_CPP_REASONING_BUDGET": "0",
        "SM_LLAMA_CPP_TEMP": "0.2",
        "SM_LLAMA_CPP_THREADS": "8",
        "SM_LLAMA_CPP_VERBOSE": "true",
        "TZ": "UTC",
    }


@pytest.mark.parametrize("switch", ["jinja", "cont_batching", "context_shift", "mmap", "warmup"])
def test_a_switch_is_turned_off_by_its_other_name_because_the_container_drops_false(switch):
    assert ChatFlags(**{switch: False}).environment() == {f"SM_LLAMA_CPP_NO_{switch.upper()}": "true"}
    assert ChatFlags(**{switch: True}).environment() == {f"SM_LLAMA_CPP_{switch.upper()}": "true"}


@pytest.mark.parametrize(
    ("llama_cpp", "flags"),
    [
        ("b10433", ChatFlags(mmap=False, mlock=True)),
        ("b10435", ChatFlags(mmap=True, load_mode="mmap")),
        ("b10883", ChatFlags(load_mode="none", extra={"lazy-mode": "on"})),
        ("b11434", ChatFlags(extra={"nextn": 1})),
    ],
)
def test_flags_that_the_build_has_are_taken(llama_cpp, flags):
    assert environment(**of_build(llama_cpp), flags=flags).items() >= flags.environment().items()


def test_no_flag_no_variable():
    assert ChatFlags().environment() == {}


@pytest.mark.parametrize(
    ("on", "gpu_layers", "variable"),
    [(ON_GPU, None, None), (ON_GPU, -1, "999"), (ON_GPU, 20, "20"), (ON_GPU, 0, "0"), (ON_CPU, 0, None)],
)
def test_layers_on_the_gpu(on, gpu_layers, variable):
    assert environment(**on, gpu_layers=gpu_layers).get("SM_LLAMA_CPP_N_GPU_LAYERS") == variable


def test_a_model_from_a_hub_turns_network_isolation_off_and_says_so():
    stack = new_stack()
    made = endpoint(stack, model=HUB)
    template = Template.from_stack(stack)
    template.has_resource_properties(
        "AWS::SageMaker::Model",
        {
            "EnableNetworkIsolation": False,
            "PrimaryContainer": {
                "Environment": {"SM_LLAMA_CPP_HF_REPO": HUB.repository, "SM_LLAMA_CPP_HF_FILE": HUB.file},
                "ModelDataSource": Match.absent(),
            },
        },
    )
    Annotations.from_stack(stack).has_warning(
        f"/{made.node.path}", Match.string_like_regexp("'chat' fetches Qwen.*network isolation is off.*into S3")
    )
    # 180 s + 2.7 GB at 20 MB/s and at 80 MB/s, in whole minutes; SageMaker itself fetches nothing.
    template.has_resource_properties(
        "AWS::SageMaker::EndpointConfig",
        {
            "ProductionVariants": [
                Match.object_like(
                    {
                        "ContainerStartupHealthCheckTimeoutInSeconds": 600,
                        "ModelDataDownloadTimeoutInSeconds": 60,
                    }
                )
            ]
        },
    )
    actions = [
        statement["Action"]
        for policy in template.find_resources("AWS::IAM::Policy").values()
        for statement in policy["Properties"]["PolicyDocument"]["Statement"]
    ]
    assert not [action for action in actions if "s3:" in str(action)]


def test_a_model_in_s3_gets_no_warning():
    stack = new_stack()
    endpoint(stack)
    Annotations.from_stack(stack).has_no_warning("*", Match.any_value())


def test_what_the_kinds_have_in_common_works_here_too():
    stack = new_stack()
    made = endpoint(stack, log_retention=logs.RetentionDays.ONE_DAY, instances=3)
    template = Template.from_stack(stack)
    template.has_resource_properties(
        "AWS::Logs::LogGroup", {"LogGroupName": "/aws/sagemaker/Endpoints/chat", "RetentionInDays": 1}
    )
    template.has_resource_properties(
        "AWS::SageMaker::EndpointConfig", {"ProductionVariants": [Match.object_like({"InitialInstanceCount": 3})]}
    )
    assert (made.endpoint_name, made.variant_name) == ("chat", "primary")


def of_build(llama_cpp: str) -> dict[str, Any]:
    return {"image": replace(ON_CPU["image"], llama_cpp=llama_cpp)}


REFUSED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a model whose file is not named": (
        {"model": ModelArtifact("models", "qwen/", 10)},
        ["'qwen/' names no file", "a projector or another quantization", "set file"],
    ),
    "a flag in extra that has a place": (
        {"flags": ChatFlags(extra={"ctx-size": 1})},
        ["'ctx-size' is in extra", "set ctx_size there"],
    ),
    "a switch in extra that has a place": (
        {"flags": ChatFlags(extra={"no-mmap": True})},
        ["'no-mmap' is in extra", "ChatFlags has it"],
    ),
    "false, which is dropped": (
        {"flags": ChatFlags(extra={"slots": False})},
        ["'slots' is 'false', which the container drops", "set 'no-slots' to true"],
    ),
    "false in the environment": (
        {"environment": {"SM_LLAMA_CPP_SLOTS": "False"}},
        ["'slots' is 'false', which the container drops"],
    ),
    "a flag with dashes in front": (
        {"flags": ChatFlags(extra={"--slots": True})},
        ["'--slots' is not a flag", "without dashes in front"],
    ),
    "a flag that the endpoint sets": (
        {"flags": ChatFlags(extra={"model": "/other.gguf"})},
        ["'model' is set by the endpoint itself"],
    ),
    "the port in the environment": ({"environment": {"SM_LLAMA_CPP_PORT": "1"}}, ["'port' is set by the endpoint"]),
    "a secret": (
        {"environment": {"SM_LLAMA_CPP_API_KEY": "hunter2"}},
        ["'api-key' would put a secret into the template", "leave it out"],
    ),
    "a value of two lines": (
        {"flags": ChatFlags(extra={"grammar": "a\nb"})},
        ["'grammar' has the value 'a\\nb'", "in one line"],
    ),
    "a value of nothing": ({"flags": ChatFlags(extra={"grammar": ""})}, ["'grammar' has the value ''"]),
    "a flag set twice": (
        {"flags": ChatFlags(ctx_size=1), "environment": {"SM_LLAMA_CPP_CTX_SIZE": "2"}},
        ["the environment sets SM_LLAMA_CPP_CTX_SIZE", "use the endpoint's own setting"],
    ),
    "a switch that its build has no more": (
        {**of_build("b10964"), "flags": ChatFlags(mmap=False)},
        ["'no-mmap' would stop the container of llama.cpp b10964: b10883 does not have it any more", "set load-mode"],
    ),
    "a flag of the environment that its build has no more": (
        {**of_build("b10883"), "environment": {"SM_LLAMA_CPP_MLOCK": "true"}},
        ["'mlock' would stop the container of llama.cpp b10883"],
    ),
    "a flag that its build does not have yet": (
        {**of_build("b10433"), "flags": ChatFlags(extra={"lazy-mode": "on"})},
        ["'lazy-mode' would stop the container of llama.cpp b10433: b10435 does not have it yet", "leave it out"],
    ),
    "a flag of which its build is not known to have it": (
        {**of_build("b10600"), "flags": ChatFlags(mlock=True)},
        ["it went after b10435 and not after b10883, so b10600 may have it or not"],
    ),
    "layers on a GPU that is not there": (
        {"gpu_layers": -1},
        ["gpu_layers is -1, but 'cpu' instances have no GPU", "leave it out"],
    ),
    "fewer layers than none": ({**ON_GPU, "gpu_layers": -2}, ["gpu_layers is -2", "set -1 for all layers"]),
    "the CPU container on a GPU": (
        {**ON_GPU, "image": ON_CPU["image"]},
        ["'llama-cpp' has no CUDA", "use a CUDA image"],
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_with_the_value_and_what_to_do(case):
    changes, sentence = REFUSED[case]
    with pytest.raises(Refused) as refusal:
        endpoint(new_stack(), **changes)
    for part in sentence:
        assert part in str(refusal.value)


def build(stack: cdk.Stack) -> ImageBuild:
    """A build of an image on the published container."""
    source = s3_assets.Asset(stack, "Source", path=str(Path(__file__).parents[2] / "models"))
    return ImageBuild(
        stack,
        "Image",
        repository=ImageRepository(stack, "Repository", removal_policy=cdk.RemovalPolicy.RETAIN).repository,
        artifacts=ArtifactStore(stack, "Store", removal_policy=cdk.RemovalPolicy.RETAIN).bucket,
        base=ON_CPU["image"],
        llama_cpp="b10433",
        dockerfile="images/cpu.Dockerfile",
        props=BuildProps(source=source, buildspec=Path("images/image.buildspec.yml")),
    )


ASKING = {
    "an endpoint": endpoint,
    "a gate": lambda stack: ReleaseGate(stack, "Gate", image=ON_CPU["image"]),
    "a build": build,
}


@pytest.mark.parametrize("region", ["af-south-1", "us-gov-west-1"])
@pytest.mark.parametrize("asking", ASKING)
def test_an_unknown_registry_is_refused_by_whatever_asks_first(asking, region):
    with pytest.raises(
        Refused,
        match=rf"knows no registry of AWS Deep Learning Containers in '{region}': .*chat_account of \[images\]",
    ):
        ASKING[asking](new_stack(region))


def test_a_stack_without_a_region_is_refused():
    with pytest.raises(Refused, match=r"published by AWS in a registry of each region.*give the stack env="):
        endpoint(new_stack(region=None))

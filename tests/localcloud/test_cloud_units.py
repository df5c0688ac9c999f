"""The parts of the local cloud that need no cloud: flags, policies, images, frames, shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from botocore.eventstream import EventStreamBuffer
from endpoint_template import ACCOUNT, CHAT_IMAGE, REGION

from steelyard_localcloud import shapes
from steelyard_localcloud.errors import ServiceError
from steelyard_localcloud.options import Options
from steelyard_localcloud.sagemaker import event_stream, llama_flags
from steelyard_localcloud.sagemaker.images import parse_image, resolve
from steelyard_localcloud.sagemaker.model_data import model_data_of
from steelyard_localcloud.sagemaker.stand_in import plan
from steelyard_localcloud.sagemaker.traffic import Policy, Step, policy_of

S3 = {"S3Uri": "s3://b/p/", "S3DataType": "S3Prefix", "CompressionType": "None"}


def test_frames_are_read_by_botocore() -> None:
    buffer = EventStreamBuffer()
    frames = [
        event_stream.payload_part(b"one\xff"),
        event_stream.failure("ModelStreamError", Message="m", ErrorCode="c"),
    ]
    for index, frame in enumerate(frames):
        buffer.add_data(frame[:5])
        buffer.add_data(frame[5:])
        message = next(iter(buffer))
        if index == 0:
            assert message.payload == b"one\xff"
            assert message.headers[":event-type"] == "PayloadPart"
        else:
            assert message.headers == {
                ":message-type": "exception",
                ":exception-type": "ModelStreamError",
                ":content-type": "application/json",
            }


def test_flags_become_words_as_the_container_makes_them() -> None:
    environment = {
        "SM_LLAMA_CPP_CTX_SIZE": "4096",
        "SM_LLAMA_CPP_NO_MMAP": "true",
        "SM_LLAMA_CPP_JINJA": "false",
        "OTHER": "x",
    }
    flags = llama_flags.flags_of(environment)
    assert llama_flags.arguments(flags) == ["--ctx-size", "4096", "--no-mmap"]


@pytest.mark.parametrize(
    ("flags", "settings"),
    [
        ({"ctx-size": "8192"}, {"STEELYARD_CONTEXT_TOKENS": "8192"}),
        (
            {"ctx-size": "8192", "parallel": "4"},
            {"STEELYARD_CONTEXT_TOKENS": "2048", "STEELYARD_CHATS": "4"},
        ),
        ({"parallel": "10"}, {"STEELYARD_CHATS": "10"}),
        ({"threads": "2", "flash-attn": "on"}, {"STEELYARD_THREADS": "2", "STEELYARD_FLASH_ATTENTION": "on"}),
        ({"flash-attn": "true"}, {"STEELYARD_FLASH_ATTENTION": "on"}),
        ({"no-mmap": "true", "metrics": "true"}, {}),
    ],
)
def test_flags_become_settings(flags: dict[str, str], settings: dict[str, str]) -> None:
    said: list[str] = []
    assert llama_flags.settings(flags, say=said.append) == settings
    assert len(said) == len(settings) or not settings


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"split-mode": "row", "rope-scale": "2"}, "SM_LLAMA_CPP_SPLIT_MODE, SM_LLAMA_CPP_ROPE_SCALE"),
        ({"ctx-size": "many"}, "takes a whole number"),
    ],
)
def test_flags_that_are_refused(flags: dict[str, str], message: str) -> None:
    with pytest.raises(ServiceError, match=message):
        llama_flags.settings(flags, say=lambda _: None)


def test_llama_server_runs_in_place_of_the_chat_container(tmp_path: Path) -> None:
    options = Options(home=tmp_path, llama_server="/usr/bin/llama-server")
    environment = {"SM_LLAMA_CPP_MODEL": "/opt/ml/model/a.gguf", "SM_LLAMA_CPP_SPLIT_MODE": "row"}
    launch = plan(parse_image(CHAT_IMAGE), environment, model_folder=tmp_path, port=7, options=options)
    assert launch.command == [
        "/usr/bin/llama-server",
        *("--host", "127.0.0.1", "--port", "7", "--model", f"{tmp_path}/a.gguf"),
        *("--split-mode", "row"),
    ]
    assert (launch.ping_path, launch.invocation_path) == ("/health", "/v1/chat/completions")


def test_llama_server_gets_the_first_model_as_in_the_container(tmp_path: Path) -> None:
    (tmp_path / "deep" / "deeper").mkdir(parents=True)
    for name in ("deep/b.gguf", "deep/deeper/a.gguf"):
        (tmp_path / name).touch()
    options = Options(home=tmp_path, llama_server="llama-server")
    launch = plan(parse_image(CHAT_IMAGE), {}, model_folder=tmp_path, port=7, options=options)
    assert launch.command[-1] == f"{tmp_path}/deep/b.gguf"


def test_our_server_is_told_where_the_model_is_and_keeps_to_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of the developer")
    environment = {
        "STEELYARD_MODEL": "/opt/ml/model/sub",
        "STEELYARD_THREADS": "100000",
        "STEELYARD_HOST": "0.0.0.0",
        "PATH_NOT": "/opt/ml/models",
    }
    options = Options(home=tmp_path)
    launch = plan(
        parse_image(f"763104351884.dkr.ecr.{REGION}.amazonaws.com/llama-cpp:1"),
        {**environment, "SM_LLAMA_CPP_N_PREDICT": "9"},
        model_folder=tmp_path,
        port=7,
        options=options,
    )
    got = launch.environment
    assert (got["STEELYARD_HOST"], got["STEELYARD_PORT"], got["SAGEMAKER_BIND_TO_PORT"]) == ("127.0.0.1", "7", "7")
    assert got["STEELYARD_MODEL"] == str(tmp_path)
    assert got["PATH_NOT"] == "/opt/ml/models"
    assert got["STEELYARD_DEFAULT_MAX_TOKENS"] == "9"
    assert int(got["STEELYARD_THREADS"]) < 100000
    assert "AWS_SECRET_ACCESS_KEY" not in got
    assert any("is cut to this machine's" in note for note in launch.notes)


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("public.ecr.aws/x/llama-cpp:1", "non-ECR image"),
        ("docker.io/library/python:3", "non-ECR image"),
        (f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/repo", "neither a tag nor a digest"),
        (f"111122223333.dkr.ecr.{REGION}.amazonaws.com/their/repo:1", "not known to the local cloud"),
        (f"{ACCOUNT}.dkr.ecr.eu-west-1.amazonaws.com/repo:1", "pulls from its own region"),
    ],
)
def test_images_that_are_refused(uri: str, message: str) -> None:
    with pytest.raises(ServiceError, match=message):
        resolve(parse_image(uri))


def test_published_container_is_known_without_being_seen() -> None:
    image = parse_image(CHAT_IMAGE)
    assert image.is_chat
    assert resolve(image) == CHAT_IMAGE
    assert image.repository_arn == f"arn:aws:ecr:{REGION}:763104351884:repository/llama-cpp"
    assert image.published_architecture == "x86_64"
    assert (
        parse_image(f"763104351884.dkr.ecr.{REGION}.amazonaws.com/llama-cpp-arm64:1").published_architecture == "arm64"
    )
    assert not parse_image(f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/llama-cpp:1").is_chat


@pytest.mark.parametrize(
    ("container", "message"),
    [
        ({"ModelDataUrl": "s3://b/k", "ModelDataSource": {"S3DataSource": S3}}, "not both"),
        ({"ModelDataUrl": "https://b/k"}, "s3://BUCKET/KEY"),
        ({"ModelDataSource": {"S3DataSource": {**S3, "S3Uri": "s3://b/p"}}}, "ends in '/'"),
        ({"ModelDataSource": {"S3DataSource": {**S3, "CompressionType": "Gzip"}}}, "needs S3DataType S3Object"),
        ({"ModelDataSource": {"S3DataSource": {**S3, "ETag": "a"}}}, "with S3DataSource alone"),
    ],
)
def test_model_data_that_is_refused(container: dict[str, Any], message: str) -> None:
    with pytest.raises(ServiceError, match=message):
        model_data_of(container)


def routing(kind: str, **members: Any) -> dict[str, Any]:
    given = {"Type": kind, "WaitIntervalInSeconds": 60, **members}
    return {"BlueGreenUpdatePolicy": {"TrafficRoutingConfiguration": given, "TerminationWaitInSeconds": 30}}


def percent(value: int) -> dict[str, Any]:
    return {"Type": "CAPACITY_PERCENT", "Value": value}


@pytest.mark.parametrize(
    ("config", "policy"),
    [
        (None, Policy((Step(1.0, 0.0),), 0.0, ())),
        (routing("ALL_AT_ONCE"), Policy((Step(1.0, 60.0),), 30.0, ())),
        (routing("CANARY", CanarySize=percent(10)), Policy((Step(0.1, 60.0), Step(1.0, 60.0)), 30.0, ())),
        (
            routing("LINEAR", LinearStepSize=percent(40)),
            Policy((Step(0.4, 60.0), Step(0.8, 60.0), Step(1.0, 60.0)), 30.0, ()),
        ),
        (
            routing("CANARY", CanarySize={"Type": "INSTANCE_COUNT", "Value": 1}),
            Policy((Step(0.25, 60.0), Step(1.0, 60.0)), 30.0, ()),
        ),
        (
            {"RollingUpdatePolicy": {"MaximumBatchSize": percent(50), "WaitIntervalInSeconds": 5}},
            Policy((Step(0.5, 5.0), Step(1.0, 5.0)), 0.0, ()),
        ),
        (
            {"AutoRollbackConfiguration": {"Alarms": [{"AlarmName": "a"}, {"AlarmName": "b"}]}},
            Policy((Step(1.0, 0.0),), 0.0, ("a", "b")),
        ),
    ],
)
def test_policies(config: dict[str, Any] | None, policy: Policy) -> None:
    assert policy_of(config, instances=4) == policy


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (routing("CANARY"), "needs CanarySize"),
        (routing("CANARY", CanarySize=percent(60)), "at most 50%"),
        (routing("ALL_AT_ONCE", CanarySize=percent(10)), "does not go with"),
        (
            {**routing("ALL_AT_ONCE"), "RollingUpdatePolicy": {}},
            "not both",
        ),
    ],
)
def test_policies_that_are_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ServiceError, match=message):
        policy_of(config, instances=4)


def test_template_values_become_the_services_types() -> None:
    properties = {
        "EndpointConfigName": "a",
        "ProductionVariants": [{"VariantName": "v", "InitialInstanceCount": "2", "InitialVariantWeight": "1.5"}],
    }
    (variant,) = shapes.from_template("sagemaker", "CreateEndpointConfig", properties)["ProductionVariants"]
    assert (variant["InitialInstanceCount"], variant["InitialVariantWeight"]) == (2, 1.5)
    model = {"EnableNetworkIsolation": "true", "PrimaryContainer": {"Environment": {"A": 1, "B": True}}}
    converted = shapes.from_template("sagemaker", "CreateModel", model)
    assert converted == {"EnableNetworkIsolation": True, "PrimaryContainer": {"Environment": {"A": "1", "B": "true"}}}


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"EndpointName": "bad_name", "EndpointConfigName": "a"}, "does not match"),
        ({"EndpointName": "a" * 64, "EndpointConfigName": "a"}, "above the maximum 63"),
        ({"EndpointName": "a"}, "EndpointConfigName"),
        ({"EndpointName": "a", "EndpointConfigName": "a", "Extra": 1}, "Extra"),
    ],
)
def test_shapes_that_aws_would_refuse(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ServiceError, match=message):
        shapes.validate("sagemaker", "CreateEndpoint", parameters)

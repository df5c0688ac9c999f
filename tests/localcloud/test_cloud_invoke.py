"""Invocations with boto3: what reaches the container, and what of its answer reaches the caller."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import botocore.exceptions
import pytest
from botocore.config import Config
from endpoint_template import ACCOUNT, CHAT_IMAGE, reasons

from conftest import Furnished, wait_until

CHAT = {"messages": [{"role": "user", "content": "the ticket is"}], "max_tokens": 4, "temperature": 0}


def events(answer: dict[str, Any]) -> list[bytes]:
    return [event["PayloadPart"]["Bytes"] for event in answer["Body"]]


def test_only_the_headers_that_sagemaker_forwards_arrive(furnished: Furnished, echo: str) -> None:
    told = furnished.invoke(
        echo, {"a": 1}, Accept="application/json", CustomAttributes="request-7", InferenceId="inference-7"
    )
    headers = {key.lower(): value for key, value in told["headers"].items()}
    transport = {key: headers.pop(key) for key in ("host", "content-length")}
    assert headers == {
        "content-type": "application/json",
        "accept": "application/json",
        "x-amzn-sagemaker-custom-attributes": "request-7",
        "x-amzn-sagemaker-inference-id": "inference-7",
    }
    assert transport["content-length"] == "8"
    assert told["path"] == "/invocations"


def test_content_type_and_custom_attributes_come_back_untouched(furnished: Furnished, echo: str) -> None:
    answer = furnished.runtime.invoke_endpoint(EndpointName=echo, Body=b"{}", ContentType="application/json")
    assert answer["ContentType"] == "application/json; charset=utf-8; flavour=echo"
    assert answer["CustomAttributes"] == "from-the-container"
    assert answer["InvokedProductionVariant"] == "primary"
    assert "x-private" not in answer["ResponseMetadata"]["HTTPHeaders"]


@pytest.mark.parametrize(("status", "kind"), [(400, "client"), (422, "client"), (500, "server"), (503, "server")])
def test_container_errors_are_model_errors(furnished: Furnished, echo: str, status: int, kind: str) -> None:
    with pytest.raises(furnished.runtime.exceptions.ModelError) as caught:
        furnished.invoke(echo, {"status": status})
    response = caught.value.response
    assert response["ResponseMetadata"]["HTTPStatusCode"] == 424
    assert response["OriginalStatusCode"] == status
    assert json.loads(response["OriginalMessage"])["version"] == "1"
    assert response["Error"]["Message"].startswith(f"Received {kind} error ({status}) from primary with message")
    assert response["LogStreamArn"].startswith(
        f"arn:aws:logs:us-east-1:{ACCOUNT}:log-group:/aws/sagemaker/Endpoints/{echo}:log-stream:primary/i-"
    )


@pytest.mark.parametrize("call", ["invoke_endpoint", "invoke_endpoint_with_response_stream"])
def test_errors_before_a_stream_are_model_errors_too(furnished: Furnished, echo: str, call: str) -> None:
    with pytest.raises(furnished.runtime.exceptions.ModelError) as caught:
        getattr(furnished.runtime, call)(EndpointName=echo, Body=json.dumps({"status": 418}))
    assert caught.value.response["OriginalStatusCode"] == 418


def test_slow_container_is_cut_off(furnished: Furnished, echo: str) -> None:
    with pytest.raises(furnished.runtime.exceptions.ModelError) as caught:
        furnished.invoke(echo, {"sleep_s": 30})
    assert caught.value.response["OriginalStatusCode"] == 0
    assert "timed out while waiting for a response" in caught.value.response["OriginalMessage"]


def test_stream_arrives_while_it_is_made(furnished: Furnished, echo: str) -> None:
    """The first part is read before the last one can have been written."""
    body = json.dumps({"chunks": ["one", "two", "three"], "interval_s": 0.5})
    answer = furnished.runtime.invoke_endpoint_with_response_stream(EndpointName=echo, Body=body)
    assert answer["ContentType"] == "text/event-stream"
    stream = iter(answer["Body"])
    parts = [next(stream)["PayloadPart"]["Bytes"]]
    # While this stream is open others are answered, and its end is still to come.
    assert furnished.invoke(echo)["version"] == "1"
    parts += [event["PayloadPart"]["Bytes"] for event in stream]
    assert parts == [b"one", b"two", b"three"]


def test_broken_stream_is_an_error_in_the_stream(furnished: Furnished, echo: str) -> None:
    before = broken_streams(furnished, echo)
    body = json.dumps({"chunks": ["one"], "breaks": True})
    answer = furnished.runtime.invoke_endpoint_with_response_stream(EndpointName=echo, Body=body)
    stream = iter(answer["Body"])
    assert next(stream)["PayloadPart"]["Bytes"] == b"one"
    with pytest.raises(botocore.exceptions.EventStreamError, match="ModelStreamError"):
        next(stream)
    wait_until(lambda: broken_streams(furnished, echo) == before + 1)
    whole = furnished.runtime.invoke_endpoint_with_response_stream(
        EndpointName=echo, Body=json.dumps({"chunks": ["a"]})
    )
    assert events(whole) == [b"a"]
    assert broken_streams(furnished, echo) == before + 1


def broken_streams(furnished: Furnished, endpoint: str) -> float:
    now = datetime.now(UTC)
    found = furnished.cloud.client("cloudwatch").get_metric_statistics(
        Namespace="AWS/SageMaker",
        MetricName="MidStreamErrors",
        Dimensions=[{"Name": "EndpointName", "Value": endpoint}, {"Name": "VariantName", "Value": "primary"}],
        StartTime=now - timedelta(minutes=10),
        EndTime=now + timedelta(minutes=1),
        Period=60,
        Statistics=["Sum"],
    )
    return sum(each["Sum"] for each in found["Datapoints"])


def test_endless_stream_is_ended(furnished: Furnished, echo: str) -> None:
    body = json.dumps({"chunks": ["tick"] * 100, "interval_s": 0.5})
    answer = furnished.runtime.invoke_endpoint_with_response_stream(EndpointName=echo, Body=body)
    with pytest.raises(botocore.exceptions.EventStreamError, match="took more than 4 seconds"):
        events(answer)


def test_caller_who_leaves_a_stream_frees_the_fleet(furnished: Furnished, stack: Callable[..., str], name: str) -> None:
    assert stack(environment={"VERSION": "1"}) == "CREATE_COMPLETE"
    body = json.dumps({"chunks": ["tick"] * 50, "interval_s": 0.1})
    answer = furnished.runtime.invoke_endpoint_with_response_stream(EndpointName=name, Body=body)
    next(iter(answer["Body"]))
    answer["Body"].close()
    # The old fleet is stopped once its last request is over.
    assert stack(environment={"VERSION": "2"}) == "UPDATE_COMPLETE"
    assert furnished.invoke(name)["version"] == "2"


def test_request_in_flight_during_an_update_is_answered_by_the_old_version(
    furnished: Furnished, stack: Callable[..., str], name: str
) -> None:
    assert stack(environment={"VERSION": "1"}) == "CREATE_COMPLETE"
    told: list[dict[str, Any]] = []
    slow = threading.Thread(target=lambda: told.append(furnished.invoke(name, {"sleep_s": 1.5})))
    slow.start()
    assert stack(environment={"VERSION": "2"}) == "UPDATE_COMPLETE"
    slow.join()
    assert told[0]["version"] == "1"


def test_request_larger_than_six_mib_is_refused(furnished: Furnished, echo: str) -> None:
    assert furnished.runtime.invoke_endpoint(EndpointName=echo, Body=b"x" * (6 << 20))["ContentType"]
    with pytest.raises(furnished.runtime.exceptions.ValidationError, match="at most 6291456"):
        furnished.runtime.invoke_endpoint(EndpointName=echo, Body=b"x" * ((6 << 20) + 1))


def test_response_larger_than_six_mib_is_an_error(furnished: Furnished, echo: str) -> None:
    with pytest.raises(furnished.runtime.exceptions.ModelError, match="more than 6291456 bytes"):
        furnished.invoke(echo, {"size": (6 << 20) + 1})


def test_long_custom_attributes_are_refused(furnished: Furnished, echo: str) -> None:
    with pytest.raises(furnished.runtime.exceptions.ValidationError, match="at most 1024"):
        furnished.invoke(echo, CustomAttributes="a" * 1025)


def test_unknown_endpoint_and_variant(furnished: Furnished, echo: str) -> None:
    with pytest.raises(furnished.runtime.exceptions.ValidationError, match="Endpoint nobody of account"):
        furnished.invoke("nobody")
    with pytest.raises(furnished.runtime.exceptions.ValidationError, match="Variant other not found"):
        furnished.invoke(echo, TargetVariant="other")
    assert furnished.invoke(echo, TargetVariant="primary")["version"] == "1"


@pytest.mark.parametrize("parameter", ["TargetModel", "InferenceComponentName", "SessionId", "EnableExplanations"])
def test_what_is_not_emulated_says_so(furnished: Furnished, echo: str, parameter: str) -> None:
    with pytest.raises(botocore.exceptions.ClientError, match=f"does not emulate {parameter}"):
        furnished.invoke(echo, **{parameter: "something"})


def test_asynchronous_invocation_says_that_it_is_not_emulated(furnished: Furnished, echo: str) -> None:
    with pytest.raises(botocore.exceptions.ClientError, match="does not emulate"):
        furnished.runtime.invoke_endpoint_async(EndpointName=echo, InputLocation="s3://models/x")


def test_chat_container_is_played_by_our_server(furnished: Furnished, stack: Callable[..., str], name: str) -> None:
    flags = {
        "SM_LLAMA_CPP_MODEL": "/opt/ml/model/model.gguf",
        "SM_LLAMA_CPP_CTX_SIZE": "2048",
        "SM_LLAMA_CPP_PARALLEL": "2",
        "SM_LLAMA_CPP_ALIAS": "little",
        "SM_LLAMA_CPP_NO_MMAP": "true",
    }
    assert stack(image=CHAT_IMAGE, prefix="tiny/", environment=flags) == "CREATE_COMPLETE"
    answer = furnished.invoke(name, CHAT)
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "little"
    body = json.dumps({**CHAT, "stream": True})
    stream = furnished.runtime.invoke_endpoint_with_response_stream(
        EndpointName=name, Body=body, ContentType="application/json"
    )
    text = b"".join(events(stream)).decode()
    assert text.startswith("data: {")
    assert text.endswith("data: [DONE]\n\n")
    log = "\n".join(path.read_text() for path in (furnished.cloud.options.home / "logs").glob(f"{name}-*.log"))
    assert "our server's chat answers in its place" in log
    assert "container flags become STEELYARD_CONTEXT_TOKENS=1024" in log
    # A decision is not what the chat container answers.
    with pytest.raises(furnished.runtime.exceptions.ModelError):
        furnished.invoke(name, {"decision": {}})


def test_chat_flag_without_counterpart_is_refused_by_name(
    furnished: Furnished, stack: Callable[..., str], name: str
) -> None:
    assert stack(image=CHAT_IMAGE, environment={"SM_LLAMA_CPP_SPLIT_MODE": "row"}) == "ROLLBACK_COMPLETE"
    assert "cannot translate SM_LLAMA_CPP_SPLIT_MODE" in reasons(furnished.cloudformation, name)


def test_model_of_a_hub_is_refused(furnished: Furnished, stack: Callable[..., str], name: str) -> None:
    hub = {"SM_LLAMA_CPP_HF_REPO": "someone/something", "SM_LLAMA_CPP_HF_FILE": "model.gguf"}
    assert stack(image=CHAT_IMAGE, environment=hub) == "ROLLBACK_COMPLETE"
    assert "reaches no hub" in reasons(furnished.cloudformation, name)


def test_wrong_signature_is_refused(furnished: Furnished, echo: str) -> None:
    wrong = furnished.cloud.client("sagemaker-runtime", aws_secret_access_key="wrong", config=Config(proxies={}))
    with pytest.raises(botocore.exceptions.ClientError, match="signature"):
        wrong.invoke_endpoint(EndpointName=echo, Body=b"{}")

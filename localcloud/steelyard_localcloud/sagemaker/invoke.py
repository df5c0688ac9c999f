"""The SageMaker runtime API: InvokeEndpoint and InvokeEndpointWithResponseStream.

A request goes to the endpoint's process with the headers that SageMaker forwards, and no others; the response comes
back with the container's content type. What the container refuses comes back as ``ModelError``, never as its status.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import httpx
from ministack.core.responses import StreamingResponse, get_account_id, get_region

from steelyard_localcloud import wire
from steelyard_localcloud.errors import ServiceError, not_emulated
from steelyard_localcloud.options import Options
from steelyard_localcloud.ports import HOST
from steelyard_localcloud.sagemaker import event_stream, metrics
from steelyard_localcloud.sagemaker.endpoints import Endpoints
from steelyard_localcloud.sagemaker.fleet import Fleet

MAX_BODY_BYTES = 6 << 20
MAX_CUSTOM_ATTRIBUTES = 1024

_ATTRIBUTES = "x-amzn-sagemaker-custom-attributes"
_FORWARDED = (_ATTRIBUTES, "x-amzn-sagemaker-inference-id")
_NOT_EMULATED = {
    "x-amzn-sagemaker-target-model": "TargetModel",
    "x-amzn-sagemaker-target-container-hostname": "TargetContainerHostname",
    "x-amzn-sagemaker-enable-explanations": "EnableExplanations",
    "x-amzn-sagemaker-inference-component": "InferenceComponentName",
    "x-amzn-sagemaker-session-id": "SessionId",
    "x-amzn-sagemaker-prefix-aware-id": "PrefixAwareId",
}
_TIMED_OUT = (
    "Your invocation timed out while waiting for a response from container primary. Review the latency metrics for "
    "each container in Amazon CloudWatch, resolve the issue, and try again."
)
_NO_ANSWER = "The container primary closed the connection without an answer."

Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]


@dataclass
class _Call:
    """One invocation under way."""

    fleet: Fleet
    held: ExitStack
    concurrent: int
    began: float
    account_region: tuple[str, str]

    def end(self, container_status: int, *, broken: bool = False) -> None:
        """Let the fleet go and count the outcome."""
        self.held.close()
        outcome = metrics.Outcome(container_status, time.monotonic() - self.began, self.concurrent, broken)
        metrics.record(self.fleet.endpoint, self.fleet.name, self.fleet.config_name, outcome)


class Runtime:
    """Forwards invocations."""

    def __init__(self, endpoints: Endpoints, options: Options) -> None:
        self._endpoints = endpoints
        self._options = options
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._client = httpx.AsyncClient(trust_env=False, timeout=None, limits=limits)  # noqa: S113 - handle() sets the limits

    async def handle(self, path: str, headers: Mapping[str, str], body: bytes) -> wire.Response:
        """Answer one request to ``/endpoints/NAME/...``."""
        parts = path.strip("/").split("/")
        if len(parts) != 3 or parts[2] not in ("invocations", "invocations-response-stream"):
            raise not_emulated(f"the path {path} of the SageMaker runtime")
        streamed = parts[2] == "invocations-response-stream"
        _check(headers, body)
        call = self._begin(parts[1], headers)
        # Not built by the client, which would add headers of its own.
        request = httpx.Request(
            "POST",
            f"http://{HOST}:{call.fleet.port}{call.fleet.invocation_path}",
            content=body,
            headers=_forwarded(headers, streamed=streamed),
        )
        limit_s = self._options.stream_timeout_s if streamed else self._options.invocation_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                response = await self._client.send(request, stream=True)
                if streamed and response.is_success:
                    return self._stream(call, response, limit_s=limit_s)
                content = await _read(response)
        except TimeoutError:
            return _model_error(call, 0, _TIMED_OUT)
        except httpx.HTTPError:
            return _model_error(call, 0, _NO_ANSWER)
        except BaseException:
            call.end(0)
            raise
        if not response.is_success:
            return _model_error(call, response.status_code, content.decode("utf-8", "replace"))
        if len(content) > MAX_BODY_BYTES:
            return _model_error(call, 0, f"The response has more than {MAX_BODY_BYTES} bytes.")
        call.end(response.status_code)
        # In lower case: ministack rewrites what it finds under "Content-Type" to what the service itself would send.
        return 200, {"content-type": _content_type(response), **_answered(response, call.fleet)}, content

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    def _begin(self, name: str, headers: Mapping[str, str]) -> _Call:
        scope = (get_account_id(), get_region())
        unknown = ServiceError(f"Endpoint {name} of account {scope[0]} not found.", code="ValidationError")
        try:
            router = self._endpoints.get(name).router
        except ServiceError:
            raise unknown from None
        held = ExitStack()
        fleet = held.enter_context(router.lease())
        if fleet is None:
            raise unknown
        target = headers.get("x-amzn-sagemaker-target-variant")
        if target is not None and target != fleet.name:
            held.close()
            raise ServiceError(f"Variant {target} not found in endpoint {name}.", code="ValidationError")
        return _Call(fleet, held, fleet.in_flight, time.monotonic(), scope)

    def _stream(self, call: _Call, response: httpx.Response, *, limit_s: float) -> wire.Response:
        headers = {
            "content-type": event_stream.CONTENT_TYPE,
            "x-amzn-sagemaker-content-type": _content_type(response),
            **_answered(response, call.fleet),
        }

        async def run(send: Send, receive: Receive) -> None:
            gone = asyncio.create_task(_until_gone(receive))
            broken = asyncio.Event()
            sending = asyncio.create_task(_send_events(send, response, broken, limit_s=limit_s))
            try:
                await asyncio.wait((gone, sending), return_when=asyncio.FIRST_COMPLETED)
            finally:
                gone.cancel()
                sending.cancel()
                await asyncio.gather(gone, sending, return_exceptions=True)
                await response.aclose()
                call.end(response.status_code, broken=broken.is_set())

        return 200, headers, StreamingResponse(run)


async def _send_events(send: Send, response: httpx.Response, broken: asyncio.Event, *, limit_s: float) -> None:
    """Send the parts of a stream as they come; ``broken`` is set when it does not come whole."""

    async def emit(message: bytes, *, more: bool = True) -> None:
        await send({"type": "http.response.body", "body": message, "more_body": more})

    try:
        async with asyncio.timeout(limit_s):
            async for chunk in _chunks(response):
                await emit(event_stream.payload_part(chunk))
    except TimeoutError:
        message = f"The stream took more than {limit_s:g} seconds."
        broken.set()
        await emit(event_stream.failure("ModelStreamError", Message=message, ErrorCode="ModelInvocationTimeExceeded"))
    except httpx.HTTPError as error:
        message = f"The container broke off the stream: {error}."
        broken.set()
        await emit(event_stream.failure("ModelStreamError", Message=message, ErrorCode="StreamBroken"))
    await emit(b"", more=False)


async def _chunks(response: httpx.Response) -> AsyncIterator[bytes]:
    async for chunk in response.aiter_raw():
        if chunk:
            yield chunk


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _read(response: httpx.Response) -> bytes:
    content = bytearray()
    try:
        async for chunk in response.aiter_raw():
            content += chunk
            if len(content) > MAX_BODY_BYTES:
                break
    finally:
        await response.aclose()
    return bytes(content)


def _check(headers: Mapping[str, str], body: bytes) -> None:
    for header, member in _NOT_EMULATED.items():
        if header in headers:
            raise not_emulated(f"{member} of an invocation")
    if len(body) > MAX_BODY_BYTES:
        raise ServiceError(
            f"The request has {len(body)} bytes; InvokeEndpoint takes at most {MAX_BODY_BYTES}.", code="ValidationError"
        )
    attributes = headers.get(_ATTRIBUTES, "")
    if len(attributes) > MAX_CUSTOM_ATTRIBUTES or not attributes.isascii():
        raise ServiceError(
            f"CustomAttributes takes at most {MAX_CUSTOM_ATTRIBUTES} ASCII characters; it has {len(attributes)}.",
            code="ValidationError",
        )


def _forwarded(headers: Mapping[str, str], *, streamed: bool) -> dict[str, str]:
    accept = headers.get("x-amzn-sagemaker-accept" if streamed else "accept")
    given = {"Content-Type": headers.get("content-type"), "Accept": accept}
    given |= {name: headers.get(name) for name in _FORWARDED}
    return {name: value for name, value in given.items() if value}


def _answered(response: httpx.Response, fleet: Fleet) -> dict[str, str]:
    headers = {"x-Amzn-Invoked-Production-Variant": fleet.name}
    if (attributes := response.headers.get(_ATTRIBUTES)) is not None:
        headers["X-Amzn-SageMaker-Custom-Attributes"] = attributes
    return headers


def _content_type(response: httpx.Response) -> str:
    content_type: str = response.headers.get("content-type", "application/octet-stream")
    return content_type


def _model_error(call: _Call, status: int, message: str) -> wire.Response:
    """Return the error that SDKs raise as ``ModelError``, with the container's status and words."""
    call.end(status)
    account, region = call.account_region
    group, stream = call.fleet.log_stream
    kind = "client" if HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR else "server"
    console = f"https://{region}.console.aws.amazon.com/cloudwatch/home?region={region}#logEventViewer:group={group}"
    payload = {
        "ErrorCode": "CLIENT_ERROR_FROM_MODEL" if kind == "client" else "INTERNAL_FAILURE_FROM_MODEL",
        "LogStreamArn": f"arn:aws:logs:{region}:{account}:log-group:{group}:log-stream:{stream}",
        "Message": f'Received {kind} error ({status}) from primary with message "{message}". See {console} in account '
        f"{account} for more information.",
        "OriginalMessage": message,
        "OriginalStatusCode": status,
    }
    headers = {"content-type": "application/json", "x-amzn-ErrorType": "ModelError"}
    return int(HTTPStatus.FAILED_DEPENDENCY), headers, json.dumps(payload).encode()

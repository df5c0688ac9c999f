"""A client for one SageMaker endpoint: decisions and chat through boto3, as ``client`` does it over HTTP."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from steelyard.aws.session import aws_errors, error_code
from steelyard.client.decision_file import encoded, results_of
from steelyard.client.refusals import RequestError, message_of, refused, retry_after_s
from steelyard_base.exit_codes import CommandError, ExitCode

Json = dict[str, Any]
JSON_TYPE = "application/json"
STREAM_TYPE = "text/event-stream"


class EndpointClient:
    """Talks to the endpoint ``name``.

    Whatever a container refuses arrives as ``ModelError``, whose own status and body are read here: a container that is
    busy says when to come back, and boto3 does not retry it.

    Args:
        name: What SageMaker calls the endpoint.
        runtime: A boto3 client for ``sagemaker-runtime``.
        timeout_s: Longest a call may take, its retries included, in seconds.
        sleep: For tests.
    """

    def __init__(
        self, name: str, *, runtime: Any, timeout_s: float = 60.0, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.name = name
        self._runtime = runtime
        self._timeout_s = timeout_s
        self._sleep = sleep

    def decide(self, body: Json) -> list[Json]:
        """Ask for decisions.

        Args:
            body: ``{"decision": {...}}`` or ``{"decisions": [...]}``, see docs/reference/routes.md.

        Returns:
            One result per decision, in order.

        Raises:
            CommandError: The container refused (its message is quoted), SageMaker did, or neither can be reached.
        """
        answer = self._whole(body)
        return results_of(
            answer, otherwise=f"the endpoint {self.name} did not answer with a decision; is it a decision endpoint?"
        )

    def chat(self, messages: list[Json], **options: Any) -> Json:
        """A whole chat completion, as OpenAI's API has it.

        Raises:
            CommandError: As in ``decide``.
        """
        return self._whole({"messages": messages} | options)

    def stream_chat(self, messages: list[Json], **options: Any) -> Iterator[Json]:
        """The chunks of a streamed chat completion. A stream that has begun is not retried.

        Raises:
            CommandError: As in ``decide``, or the stream broke off.
        """
        body = {"messages": messages, "stream": True} | options
        answer = self._send(self._runtime.invoke_endpoint_with_response_stream, body, accept=STREAM_TYPE)
        for line in self._lines(answer["Body"]):
            data = line.removeprefix(b"data:").strip() if line.startswith(b"data:") else b""
            if data == b"[DONE]":
                return
            if data:
                chunk = self._decoded(data)
                if "error" in chunk:
                    raise CommandError(message_of(chunk), code=ExitCode.REFUSED)
                yield chunk

    def _whole(self, body: Json) -> Json:
        with aws_errors():
            content = self._send(self._runtime.invoke_endpoint, body, accept=JSON_TYPE)["Body"].read()
        return self._decoded(content)

    def _send(self, operation: Callable[..., Json], body: Json, *, accept: str) -> Json:
        """One call; a container that says when to come back is asked again until the time is up."""
        from botocore.exceptions import ClientError, ReadTimeoutError

        content = encoded(body)
        end = time.monotonic() + self._timeout_s
        with aws_errors():
            while True:
                try:
                    return operation(EndpointName=self.name, Body=content, ContentType=JSON_TYPE, Accept=accept)
                except ReadTimeoutError as error:
                    message = f"the endpoint {self.name} did not answer within {self._timeout_s:g} s"
                    raise RequestError(message, code=ExitCode.UNREACHABLE, hint="Raise --timeout.") from error
                except ClientError as error:
                    pause = _pause_after(error)
                    if pause is None or time.monotonic() + pause >= end:
                        if known := self._explained(error):
                            raise known from error
                        raise
                self._sleep(pause)

    def _explained(self, error: Any) -> CommandError | None:
        """The error in better words than botocore's, where there are any."""
        code = error_code(error)
        if code == "ModelError":
            return self._model_error(error.response)
        if code in ("ValidationError", "ValidationException") and "not found" in str(error):
            return CommandError(
                f"there is no endpoint {self.name} in service here",
                code=ExitCode.UNREACHABLE,
                hint="Its stack may not be deployed, or still be deploying: steelyard up",
            )
        return None

    def _model_error(self, response: Json) -> CommandError:
        status = int(response.get("OriginalStatusCode", 0))
        body = _json_or_text(response.get("OriginalMessage", ""))
        if not status:
            return RequestError(
                f"the container of {self.name} did not answer: {message_of(body)}",
                code=ExitCode.UNREACHABLE,
                hint=f"Its log: {response.get('LogStreamArn', 'in CloudWatch')}",
            )
        return refused(f"the endpoint {self.name}", status, body)

    def _lines(self, events: Iterable[Json]) -> Iterator[bytes]:
        """The lines of a stream, whose parts may end anywhere."""
        rest = b""
        try:
            with aws_errors():
                for event in events:
                    *lines, rest = (rest + event.get("PayloadPart", {}).get("Bytes", b"")).split(b"\n")
                    yield from lines
        except CommandError as error:
            raise CommandError(f"the stream of {self.name} broke off: {error.message}", code=error.code) from error
        if rest:
            yield rest

    def _decoded(self, content: bytes) -> Json:
        try:
            decoded = json.loads(content)
        except (ValueError, RecursionError):
            decoded = None
        if not isinstance(decoded, dict):
            raise CommandError(f"the endpoint {self.name} did not answer with a JSON object; is it ours?")
        return decoded


def _pause_after(error: Any) -> float | None:
    """Seconds until the container may answer; None when what was refused will not be accepted later either."""
    if error_code(error) != "ModelError":
        return None
    status = int(error.response.get("OriginalStatusCode", 0))
    return retry_after_s(status, _json_or_text(error.response.get("OriginalMessage", "")))


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text

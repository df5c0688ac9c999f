"""A client for one Steelyard server: decisions and chat over HTTP, with retries inside one time limit."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import httpx

from steelyard.client.decision_file import encoded, results_of
from steelyard.client.refusals import RequestError, message_of, refused, retry_after_s
from steelyard_base.exit_codes import CommandError, ExitCode

DEFAULT_URL = "http://127.0.0.1:8080"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
Json = dict[str, Any]


class Client:
    """Talks to the server at ``url``.

    Args:
        url: Scheme, host and port, without a path.
        timeout_s: Longest a call may take, its retries included, in seconds.
        transport: For tests.
        sleep: For tests.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        timeout_s: float = 60.0,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        try:
            parsed = httpx.URL(url)
        except httpx.InvalidURL as error:
            raise CommandError(f"{url!r} is not an address: {error}", code=ExitCode.USAGE) from error
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise CommandError(f"{url!r} is not an address", code=ExitCode.USAGE, hint=f"Give one like {DEFAULT_URL}.")
        self.url = url.rstrip("/")
        self._timeout_s = timeout_s
        self._sleep = sleep
        # A proxy cannot reach this machine. Redirects are not followed: a state goes to the named server alone.
        self._http = httpx.Client(base_url=self.url, transport=transport, trust_env=parsed.host not in LOOPBACK)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _tb: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def ready(self) -> bool:
        """Return whether ``/ping`` says 200; False as well while nothing listens."""
        try:
            return self._http.get("/ping", timeout=2.0).status_code == 200
        except httpx.TransportError:
            return False

    def identity(self) -> Json:
        """``GET /v1/identity``: the model, the engine and the machine behind the answers."""
        return self._json(self._send("GET", "/v1/identity"))

    def decide(self, body: Json) -> list[Json]:
        """Ask for decisions.

        Args:
            body: ``{"decision": {...}}`` or ``{"decisions": [...]}``, see docs/reference/routes.md.

        Returns:
            One result per decision, in order.

        Raises:
            CommandError: The server refused (its message is quoted) or cannot be reached.
        """
        answer = self._json(self._send("POST", "/invocations", body))
        return results_of(answer, otherwise=f"{self.url} did not answer with a decision; is it a Steelyard server?")

    def chat(self, messages: list[Json], **options: Any) -> Json:
        """A whole chat completion, as OpenAI's API has it."""
        return self._json(self._send("POST", "/v1/chat/completions", {"messages": messages} | options))

    def stream_chat(self, messages: list[Json], **options: Any) -> Iterator[Json]:
        """The chunks of a streamed chat completion. A stream that has begun is not retried."""
        body = {"messages": messages, "stream": True} | options
        response = self._send("POST", "/v1/chat/completions", body, stream=True)
        try:
            for line in response.iter_lines():
                data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
                if data == "[DONE]":
                    return
                if data:
                    chunk = self._chunk(data)
                    if "error" in chunk:
                        raise CommandError(message_of(chunk), code=ExitCode.REFUSED)
                    yield chunk
        except httpx.TransportError as error:
            raise CommandError(f"the server at {self.url} broke off: {error}", code=ExitCode.UNREACHABLE) from error
        finally:
            response.close()

    def _send(self, method: str, path: str, body: Json | None = None, *, stream: bool = False) -> httpx.Response:
        """One call; 503 answers that say when to come back are retried until the time is up."""
        end = time.monotonic() + self._timeout_s
        content = None if body is None else encoded(body)
        headers = {} if body is None else {"Content-Type": "application/json"}
        while True:
            left = max(0.1, end - time.monotonic())
            request = self._http.build_request(
                method, path, content=content, headers=headers, timeout=httpx.Timeout(left, connect=5.0)
            )
            try:
                response = self._http.send(request, stream=stream)
                if response.is_success:
                    return response
                response.read()
            except httpx.TimeoutException as error:
                message = f"the server at {self.url} did not answer within {self._timeout_s:g} s"
                raise RequestError(message, code=ExitCode.UNREACHABLE, hint="Raise --timeout.") from error
            except httpx.TransportError as error:
                raise CommandError(
                    f"no server answers at {self.url}: {error}",
                    code=ExitCode.UNREACHABLE,
                    hint="Start one with: steelyard serve (or name another one with --url).",
                ) from error
            decoded = _decoded(response)
            pause = retry_after_s(response.status_code, decoded)
            response.close()
            if pause is None or time.monotonic() + pause >= end:
                raise refused("the server", response.status_code, decoded)
            self._sleep(pause)

    def _chunk(self, data: str) -> Json:
        try:
            chunk = json.loads(data)
        except (ValueError, RecursionError):
            chunk = None
        if not isinstance(chunk, dict):
            raise CommandError(f"{self.url} streamed {data[:80]!r}, not a JSON object; is it a Steelyard server?")
        return chunk

    def _json(self, response: httpx.Response) -> Json:
        decoded = _decoded(response)
        if not isinstance(decoded, dict):
            raise CommandError(f"{self.url} did not answer with a JSON object; is it a Steelyard server?")
        return decoded


def _decoded(response: httpx.Response) -> Any:
    try:
        return response.json()
    except (ValueError, RecursionError):
        return response.text.strip() or response.reason_phrase

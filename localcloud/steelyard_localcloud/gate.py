"""Lets in what is signed with a key of this cloud, and refuses the rest before the emulator sees it.

Ministack answers a number of paths to anyone: it resets itself, changes its configuration, gives the code of functions,
and passes requests on to functions. On a machine with several users, and beside a browser, that is everyone. Here a
request is answered when its signature is right, and when CloudFormation waits for it: a custom resource answers at an
address that holds a random token.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import parse_qs, quote

import ministack.app as ministack
from ministack.core import iam_evaluator
from ministack.core.responses import _account_from_sts_session, request_scope
from ministack.core.router import extract_access_key_id
from ministack.core.sigv4 import decode_header_value
from ministack.services.cloudformation import custom_resource, wait_conditions

from steelyard_localcloud.details import CloudDetails

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

LARGEST_SIGNED_BODY = 128 << 20
"""Bytes of a body that its signature covers: AWS's largest is a function's code, below 70 MB."""

_RESPONSES = "/_ministack/cfn-response/"
_SIGNALS = wait_conditions.SIGNAL_PATH
# First parts of paths that are ministack's own (as all that begin with "_"), of registries, of signing in, of APIs.
_CLOSED = frozenset({"graphql", "health", "login", "logout", "oauth2", "restapis", "v2"})
_NOT_SIGNED = "Sign the request with a key of this local cloud; `steelyard cloud env` prints one."

log = logging.getLogger("steelyard.localcloud")


class _RefusedError(Exception):
    """A request that is not let in."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Gate:
    """The emulator behind a check of every request, an ASGI application.

    Args:
        application: The emulator.
        cloud: Whose address requests must be sent to: a page in a browser whose name was made to point here is not.
    """

    def __init__(self, application: Application, cloud: CloudDetails) -> None:
        self._application = application
        self._cloud = cloud
        port = cloud.url.rpartition(":")[2]
        self._hosts = frozenset({f"127.0.0.1:{port}", f"localhost:{port}"})

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request, or the connection's beginning and end."""
        if scope["type"] == "lifespan":
            await self._application(scope, receive, send)
            return
        if scope["type"] != "http":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = {name.decode("latin-1").lower(): decode_header_value(value) for name, value in scope["headers"]}
        query = parse_qs(scope.get("query_string", b"").decode("utf-8", "replace"), keep_blank_values=True)
        try:
            if not self._is_awaited(scope, headers):
                receive = await self._signed(scope, headers, query, receive)
        except _RefusedError as error:
            await _refuse(scope, headers, query, error, send)
            return
        await self._application(scope, receive, send)

    def _is_awaited(self, scope: Mapping[str, Any], headers: Mapping[str, str]) -> bool:
        """Return whether CloudFormation waits for this answer, at an address that only it gave away."""
        path = scope["path"]
        if scope["method"] != "PUT" or headers.get("host") not in self._hosts:
            return False
        if path.startswith(_RESPONSES):
            return path.removeprefix(_RESPONSES) in custom_resource._pending
        return path.startswith(_SIGNALS) and bool(wait_conditions.has_handle(path.removeprefix(_SIGNALS)))

    async def _signed(
        self,
        scope: Mapping[str, Any],
        headers: Mapping[str, str],
        query: dict[str, list[str]],
        receive: Receive,
    ) -> Receive:
        """Check the signature; gives what the emulator then reads the body from.

        Raises:
            _RefusedError: The request is not signed by a key of this cloud, or asks for what no key opens.
        """
        path = scope["path"]
        if _is_closed(path):
            raise _RefusedError("AccessDenied", f"The local cloud does not serve {path}.")
        if (host := headers.get("host", "")) not in self._hosts:
            raise _RefusedError(
                "AccessDenied", f"The local cloud is {self._cloud.url}, not {host!r}; address buckets by path."
            )
        key = extract_access_key_id(headers, query)
        if not key:
            raise _RefusedError("AccessDenied", _NOT_SIGNED)
        account = self._account(key)
        found = iam_evaluator.resolve_credential(key, account)
        if isinstance(found, iam_evaluator.CredentialResolutionError):
            # Before its body is read: strangers' bodies take no memory.
            raise _RefusedError(found.code, found.message)
        raw = scope.get("raw_path") or quote(path).encode()
        iam_evaluator.pin_signed_request(scope["method"], raw.decode("latin-1"), query, scope["headers"])
        payload = headers.get("x-amz-content-sha256", "")
        if not payload or payload.startswith("STREAMING-AWS4-HMAC-SHA256-PAYLOAD"):
            body = await _whole(receive)
            iam_evaluator.pin_signed_body(body)
            receive = _again(body, receive)
        with request_scope(account, self._cloud.region):
            checked = iam_evaluator.authenticate(key, account)
        if isinstance(checked, iam_evaluator.AuthError):
            raise _RefusedError(checked.code, checked.message)
        if checked is None:
            raise _RefusedError("AccessDenied", _NOT_SIGNED)
        return receive

    def _account(self, key: str) -> str:
        try:
            known = iam_evaluator.find_iam_access_key_account(key)
        except iam_evaluator.AmbiguousAccessKeyError:
            known = None
        return str(known or _account_from_sts_session(key) or self._cloud.account)


def _is_closed(path: str) -> bool:
    first = path.split("/")[1] if "/" in path else ""
    return first.startswith("_") or first in _CLOSED or "/.well-known/" in path


async def _whole(receive: Receive) -> bytes:
    """A request's body.

    Raises:
        _RefusedError: It is larger than ``LARGEST_SIGNED_BODY``.
    """
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            break
        part = message.get("body", b"")
        size += len(part)
        if size > LARGEST_SIGNED_BODY:
            raise _RefusedError(
                "RequestEntityTooLarge",
                f"The body is larger than {LARGEST_SIGNED_BODY} bytes, the limit for this call.",
            )
        parts.append(part)
        more = message.get("more_body", False)
    return b"".join(parts)


def _again(body: bytes, receive: Receive) -> Receive:
    """Give a body that was read, and then what comes next."""
    left = [body]

    async def replay() -> Message:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return await receive()

    return replay


async def _refuse(
    scope: Mapping[str, Any],
    headers: dict[str, str],
    query: dict[str, list[str]],
    error: _RefusedError,
    send: Send,
) -> None:
    """Answer 403 in the protocol of the service that was asked, or as JSON."""
    request_id = str(uuid.uuid4())
    path = scope["path"]
    if _is_closed(path):
        body = json.dumps({"__type": error.code, "message": str(error)}).encode()
        sent_headers: Mapping[str, str] = {"Content-Type": "application/json", "x-amzn-requestid": request_id}
    else:
        service = ministack.detect_service(scope["method"], path, headers, query)
        failure = iam_evaluator.AuthError(error.code, str(error))
        _, sent_headers, body = ministack._credential_failure(service, "", request_id, failure, headers)
    log.debug("refused %s %s: %s", scope["method"], path, error)
    sent = [(name.lower().encode(), str(value).encode()) for name, value in sent_headers.items()]
    # The body was not read, so the connection cannot carry another request.
    sent += [(b"content-length", str(len(body)).encode()), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 403, "headers": sent})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

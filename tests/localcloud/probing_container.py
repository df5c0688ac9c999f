"""The scripted container as a real one: it also tells what it sees from inside, and ends when it is told to.

Its variables, beside those of ``echo_container``: ``BIND_HOST`` (0.0.0.0), ``DEAF`` (ignores SIGTERM). A request with
``look`` is answered with what is around; ``reach`` lists addresses that it then tries to connect to.
"""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import sys
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import echo_container

PORT = 8080


class Handler(echo_container.Handler):
    def do_POST(self) -> None:  # noqa: N802 - the base's name
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        order = json.loads(body) if body.startswith(b"{") else {}
        if order.get("look"):
            self._answer(200, json.dumps(look(order.get("reach", []))).encode())
            return
        connection, self.rfile = self.rfile, io.BytesIO(body)
        try:
            super().do_POST()
        finally:
            self.rfile = connection


def look(addresses: list[list[Any]]) -> dict[str, Any]:
    return {
        "words": sys.argv[1:],
        "pid": os.getpid(),
        "user": os.getuid(),
        "variables": dict(os.environ),
        "interfaces": sorted(line.partition(":")[0].strip() for line in _lines("/proc/net/dev")[2:]),
        "routes": _lines("/proc/net/route")[1:],
        "routes_6": [line for line in _lines("/proc/net/ipv6_route") if not line.endswith(" lo")],
        "model": {str(path): oct(path.stat().st_mode) for path in Path("/opt/ml/model").rglob("*")},
        "model_is_writable": _writable("/opt/ml/model/new"),
        "root_is_writable": _writable("/new"),
        "reached": [_reach(host, port) for host, port in addresses],
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def _writable(path: str) -> str:
    try:
        Path(path).write_text("x")
    except OSError as error:
        return error.strerror or "no"
    return "yes"


def _reach(host: str, port: int) -> str:
    try:
        socket.create_connection((host, port), timeout=3).close()
    except OSError as error:
        return error.strerror or type(error).__name__
    return "reached"


def stop(*_: object) -> None:
    print("told to stop", flush=True)
    os._exit(0)


if __name__ == "__main__":
    if status := os.environ.get("EXIT_STATUS"):
        print("this image is broken", file=sys.stderr, flush=True)
        raise SystemExit(int(status))
    # The first process of a container is not ended by a signal that it does not handle.
    signal.signal(signal.SIGTERM, signal.SIG_IGN if os.environ.get("DEAF") else stop)
    ThreadingHTTPServer((os.environ.get("BIND_HOST", "0.0.0.0"), PORT), Handler).serve_forever()

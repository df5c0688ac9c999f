"""Ports of this machine."""

from __future__ import annotations

import socket

HOST = "127.0.0.1"


def free_port() -> int:
    """A free port of 127.0.0.1."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        port: int = listener.getsockname()[1]
        return port

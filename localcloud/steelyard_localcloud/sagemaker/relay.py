"""Leads from a port of this machine to port 8080 of a container that has a network of its own.

Started by path, as ``python -I -S relay.py PORT PID_FILE``. It listens here, waits until the file names the container's
first process, and then moves itself into that container's network: a socket stays in the network in which it was made,
so those that it accepts come from here and those that it opens are the container's. The container needs no device that
leads anywhere, nothing of this machine's network is changed, and nothing is left when it ends.

It calls the container at an address of its own that is not 127.0.0.1: as behind SageMaker, a server that listens on
127.0.0.1 alone is not reached. It ends with its standard input, whose other end the emulator holds.

Imports nothing but the standard library: it starts with every container.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import os
import socket
import struct
import sys
from pathlib import Path

CONTAINER_PORT = 8080
ADDRESS = "192.0.2.1"
"""Kept for documentation, so no network has it; here it is one more address of the container's loopback device."""

_LOOK_EVERY_S = 0.02
_PIECE = 1 << 16
_CLONE_NEWNET = 0x40000000
_SIOCSIFADDR, _SIOCSIFNETMASK = 0x8916, 0x891C


async def relay(port: int, pid_file: Path) -> None:
    """Serve until standard input ends."""
    listener = socket.create_server(("127.0.0.1", port), backlog=1024)
    ended = asyncio.get_running_loop().run_in_executor(None, _until_stdin_ends)
    while not ended.done():
        with contextlib.suppress(OSError, ValueError):
            _enter(int(pid_file.read_text(encoding="ascii")))
            break
        await asyncio.sleep(_LOOK_EVERY_S)
    server = await asyncio.start_server(_connect, sock=listener)
    await ended
    server.close()


def _enter(pid: int) -> None:
    """Move into the network of a process, and give it the address."""
    with Path(f"/proc/{pid}/ns/net").open("rb") as network:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(network.fileno(), _CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for request, value in ((_SIOCSIFADDR, ADDRESS), (_SIOCSIFNETMASK, "255.255.255.255")):
            wanted = struct.pack("16sHH4s8x", b"lo:1", socket.AF_INET, 0, socket.inet_aton(value))
            fcntl.ioctl(any_socket, request, wanted)


async def _connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        there, towards = await asyncio.open_connection(ADDRESS, CONTAINER_PORT)
    except OSError:
        writer.transport.abort()
        return
    try:
        await asyncio.gather(_pump(reader, towards), _pump(there, writer))
    except OSError:
        for each in (writer, towards):
            each.transport.abort()
    finally:
        for each in (writer, towards):
            each.close()


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while piece := await source.read(_PIECE):
        target.write(piece)
        await target.drain()
    if target.can_write_eof():
        target.write_eof()


def _until_stdin_ends() -> None:
    while os.read(0, 1024):
        pass


if __name__ == "__main__":
    asyncio.run(relay(int(sys.argv[1]), Path(sys.argv[2])))

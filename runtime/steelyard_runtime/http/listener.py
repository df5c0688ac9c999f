"""Accept connections: a few at a time, and patiently where the operating system has no room for more.

asyncio's own listener accepts up to the whole backlog at once, and when descriptors run out it reports a failure for
each of these attempts: hundreds of thousands of lines in a minute.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

from steelyard_runtime.http.connections import Connections, out_of_descriptors, reason_of

log = logging.getLogger(__name__)

AT_ONCE = 8
"""Connections accepted before the others have their turn."""
RETRY_S = 0.1


class Listener:
    """Listen on one socket; in place of ``asyncio.Server``.

    Args:
        sock: A listening socket that does not block.
        make: Makes the protocol of one connection.
        connections: Asked to close an idle connection when descriptors run out.
    """

    def __init__(self, sock: socket.socket, make: Callable[[], asyncio.Protocol], connections: Connections) -> None:
        self._socket = sock
        self._make = make
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._retry: asyncio.TimerHandle | None = None
        self._adopting: set[asyncio.Task[None]] = set()
        self._closed = False
        self._listen()

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        """As ``asyncio.Server`` has them."""
        return () if self._closed else (self._socket,)

    def close(self) -> None:
        """Accept no more, and close the socket."""
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._socket)
            if self._retry is not None:
                self._retry.cancel()
            self._socket.close()

    async def wait_closed(self) -> None:
        """Wait until the last accepted connection has its protocol."""
        while self._adopting:
            await asyncio.wait(set(self._adopting))

    def _listen(self) -> None:
        self._retry = None
        self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                accepted, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(error)
                return
            accepted.setblocking(False)
            task = self._loop.create_task(self._adopt(accepted))
            self._adopting.add(task)
            task.add_done_callback(self._adopting.discard)

    async def _adopt(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make, accepted)
        except OSError:  # it was reset meanwhile
            accepted.close()

    def _pause(self, error: OSError) -> None:
        self._connections.accept_errors += 1
        if out_of_descriptors(error):
            self._connections.evict()
        log.warning("no connection could be accepted: " + reason_of(error))
        self._loop.remove_reader(self._socket)
        self._retry = self._loop.call_later(RETRY_S, self._listen)

"""Bound the open connections, so that no number of them silences ``/ping``.

When there are more than the limit, the one that has been idle longest is closed, first of the peer that has most. One
with a request in progress is not, unless its client does not read the answer. A few above the limit are still accepted:
they may ask how the server is, no more.
"""

from __future__ import annotations

import errno
import os
import resource
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, Protocol

from steelyard_runtime.engine.places import unnamed_part

MOST = 1024
"""Connections where no setting says how many, if the descriptors suffice."""
RESERVE = 16
"""Connections above the limit that are accepted for /ping and the other GET routes."""
OWN_DESCRIPTORS = 48
"""Descriptors kept for the model, the log, the listener, and connections about to be closed."""
FRESH_S = 1.0
"""A connection is not closed for another one in its first second, while the reserve has room."""

State = Literal["idle", "head", "unread", "request"]
STATES: tuple[State, ...] = ("idle", "head", "unread", "request")
CLOSABLE: tuple[State, ...] = ("idle", "head", "unread")
"""In the order in which connections are closed for another one."""
Closed = Literal["evicted", "refused", "head_timeout", "unread"]
REASONS: tuple[Closed, ...] = ("evicted", "refused", "head_timeout", "unread")


class Closable(Protocol):
    """A connection as it is counted."""

    def close_now(self) -> None:
        """Close without an answer."""
        ...


@dataclass(slots=True)
class _Entry:
    peer: str
    state: State = "idle"
    since: float = field(default_factory=time.monotonic)


class _Peer:
    """One address: its connections, those that may be closed in the order in which they would be."""

    def __init__(self) -> None:
        self.count = 0
        self.closable: dict[State, dict[Closable, None]] = {state: {} for state in CLOSABLE}


class Connections:
    """Every open connection and its state. Used on the event loop only; the counters may be read anywhere.

    Args:
        limit: Most connections, besides the reserve; None for no limit.
        unnamed_share: Share of them in which requests of callers without a name may be in progress.
        unread_timeout_s: How long an answer may lie unread before its work is stopped.

    Attributes:
        opened: Connections accepted since the start.
        closed: Those closed by this server before their client did, by reason.
        accept_errors: Connections that the operating system would not hand over.
        malformed: Requests refused before the application saw them, by status.
    """

    def __init__(self, *, limit: int | None = None, unnamed_share: float = 1.0, unread_timeout_s: float = 30.0) -> None:
        self.limit = limit
        self.unread_timeout_s = unread_timeout_s
        self.opened = 0
        self.accept_errors = 0
        self.closed: Counter[Closed] = Counter()
        self.malformed: Counter[int] = Counter()
        self._unnamed_limit = None if limit is None else unnamed_part(limit, share=unnamed_share)
        self._unnamed = 0
        self._working = 0
        self._open: dict[Closable, _Entry] = {}
        self._peers: dict[str, _Peer] = {}

    def __len__(self) -> int:
        return len(self._open)

    @property
    def full(self) -> bool:
        """Tell whether as many requests are in progress as may be; then only the server's own state is answered."""
        return self.limit is not None and self._working >= self.limit

    def states(self) -> dict[State, int]:
        """Return how many connections are in each state."""
        found = Counter(entry.state for entry in list(self._open.values()))
        return {state: found[state] for state in STATES}

    def add(self, connection: Closable, *, peer: str) -> None:
        """Count a new connection, and close others, or it, when there are too many."""
        self.opened += 1
        entry = self._open[connection] = _Entry(peer)
        self._peers.setdefault(peer, _Peer()).count += 1
        if self.limit is not None and len(self._open) > self.limit:
            crowded = len(self._open) > self.limit + RESERVE
            if not self.evict(older_than_s=0.0 if crowded else FRESH_S) and crowded:
                self.close(connection, "refused")
                return
        self._peers[peer].closable["idle"][connection] = None
        entry.state = "idle"

    def remove(self, connection: Closable) -> None:
        """Forget a connection."""
        entry = self._open.pop(connection, None)
        if entry is None:
            return
        self._working -= entry.state == "request"
        peer = self._peers[entry.peer]
        peer.count -= 1
        for line in peer.closable.values():
            line.pop(connection, None)
        if not peer.count:
            del self._peers[entry.peer]

    def set_state(self, connection: Closable, state: State) -> None:
        """Note what a connection does: nothing, sending a head, not reading its answer, or the rest of a request."""
        entry = self._open.get(connection)
        if entry is None or entry.state == state:
            return
        self._working += (state == "request") - (entry.state == "request")
        entry.state, entry.since = state, time.monotonic()
        peer = self._peers[entry.peer]
        for line in peer.closable.values():
            line.pop(connection, None)
        if state in peer.closable:
            peer.closable[state][connection] = None

    def evict(self, *, older_than_s: float = 0.0) -> bool:
        """Close the connection that has been idle longest, else one that sends a head or does not read its answer.

        Args:
            older_than_s: It must have been in that state for so long.

        Returns:
            Whether there was one.
        """
        latest = time.monotonic() - older_than_s
        for state in CLOSABLE:
            found = [peer for peer in self._peers.values() if peer.closable[state]]
            for peer in sorted(found, key=lambda peer: -peer.count):
                connection = next(iter(peer.closable[state]))
                if self._open[connection].since <= latest:
                    self.close(connection, "evicted")
                    return True
        return False

    def close(self, connection: Closable, reason: Closed) -> None:
        """Close a connection, count why, and forget it."""
        self.closed[reason] += 1
        self.remove(connection)
        connection.close_now()

    def enter(self, *, named: bool) -> bool:
        """Begin a request that is work; False when callers without a name have their share of the connections."""
        if named:
            return True
        if self._unnamed_limit is not None and self._unnamed >= self._unnamed_limit:
            return False
        self._unnamed += 1
        return True

    def leave(self, *, named: bool) -> None:
        """End a request that was let in."""
        if not named:
            self._unnamed -= 1


class TooFewDescriptorsError(ValueError):
    """The limit of open files leaves no room for the connections asked for."""


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files to the hard one; the limit then in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):  # macOS takes no unlimited number
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return soft if soft != resource.RLIM_INFINITY else 1 << 20


def connection_limit(wanted: int, *, descriptors: int) -> int:
    """Return how many connections may be open at once, besides the reserve.

    Args:
        wanted: The setting; 0 to choose.
        descriptors: The limit of open files.

    Raises:
        TooFewDescriptorsError: So many do not fit.
    """
    room = descriptors - OWN_DESCRIPTORS - RESERVE
    if room < 1:
        raise TooFewDescriptorsError(
            f"{descriptors} files may be open (ulimit -n), and {OWN_DESCRIPTORS + RESERVE + 1} are needed; raise it"
        )
    if wanted > room:
        raise TooFewDescriptorsError(
            f"max_connections={wanted} needs {wanted + OWN_DESCRIPTORS + RESERVE} open files, and {descriptors} may be "
            f"(ulimit -n); raise that, or set max_connections to at most {room}"
        )
    return wanted or min(MOST, room)


def out_of_descriptors(error: OSError) -> bool:
    """Tell whether the operating system has no room for another connection at present."""
    return error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def reason_of(error: OSError) -> str:
    """The operating system's words for ``error``."""
    return error.strerror or os.strerror(error.errno or 0)

"""Choice of the fleet of an endpoint that answers a request."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from fractions import Fraction

from steelyard_localcloud.sagemaker.fleet import Fleet


class Router:
    """The fleets of one endpoint: the main one, and during a deployment the other with its share of the traffic.

    The other's share is exact over any run of requests: of ten requests at 10 %, one goes to it.
    """

    def __init__(self) -> None:
        self.main: Fleet | None = None
        self._other: Fleet | None = None
        self._share = Fraction(0)
        self._owed = Fraction(0)
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def lease(self) -> Iterator[Fleet | None]:
        """The fleet for one request, kept alive until the request is over; None when no fleet serves."""
        with self._lock:
            fleet = self._next()
            if fleet is not None:
                fleet.enter()
        try:
            yield fleet
        finally:
            if fleet is not None:
                fleet.leave()

    def share(self, fleet: Fleet, share: float) -> None:
        """Send a share of the traffic to another fleet."""
        with self._lock:
            # The first request of a canary goes to it: a share that waited for its turn would test nothing.
            self._owed = Fraction(1) - Fraction(share).limit_denominator(1000) if self._other is None else self._owed
            self._other, self._share = fleet, Fraction(share).limit_denominator(1000)

    def serve(self, fleet: Fleet | None) -> None:
        """Send all of the traffic to one fleet."""
        with self._lock:
            self.main, self._other = fleet, None

    def close(self) -> None:
        """Stop both fleets."""
        with self._lock:
            fleets = [fleet for fleet in (self.main, self._other) if fleet is not None]
            self.main = self._other = None
        for fleet in fleets:
            fleet.retire()

    def _next(self) -> Fleet | None:
        if self._other is None:
            return self.main
        self._owed += self._share
        if self._owed >= 1:
            self._owed -= 1
            return self._other
        return self.main

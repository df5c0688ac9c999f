"""The engine's state between its start and its end."""

from __future__ import annotations

import threading
import time

from steelyard_runtime.errors import Kind, Problem

RESTART_MS = 5000
"""Time to try again after the engine died: whatever started the process starts another one."""


class Lifecycle:
    """Starting, ready, draining, stopping, dead. Safe from any thread.

    Attributes:
        changed: Holds the lock of everything that callers and the engine's thread share; notified of each change of
            state, and of new work.
        ready: The self-test passed.
        draining: New work is refused.
        stop_at: When the engine ends whatever is left, ``time.monotonic()``; None before it was asked to.
        failure: Why the engine died; None while it lives.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.ready = False
        self.draining = False
        self.stop_at: float | None = None
        self.failure: str | None = None

    def open(self) -> None:
        """Take work from now on."""
        with self.changed:
            self.ready = True
            self.changed.notify_all()

    def drain(self) -> None:
        """Refuse new work from now on."""
        with self.changed:
            self.draining = True
            self.changed.notify_all()

    def stop(self, *, within_s: float) -> None:
        """Refuse new work, and end when none is left or the time is up."""
        with self.changed:
            self.draining = True
            self.stop_at = time.monotonic() + within_s
            self.changed.notify_all()

    def die(self, failure: str) -> None:
        """Note why the engine can never be used again."""
        with self.changed:
            self.failure = failure
            self.changed.notify_all()

    def wait_ready(self, *, timeout_s: float) -> bool:
        """Block until the engine is ready or dead; whether it is ready."""
        with self.changed:
            self.changed.wait_for(lambda: self.ready or self.failure is not None, timeout_s)
        return self.ready

    @property
    def time_is_up(self) -> bool:
        """Tell whether what is left must not be begun any more."""
        return self.stop_at is not None and time.monotonic() >= self.stop_at

    def check_open(self) -> None:
        """Refuse work that would not be done.

        Raises:
            Problem: ENGINE_FAILED, DRAINING or NOT_READY.
        """
        if self.failure is not None:
            raise Problem(Kind.ENGINE_FAILED, f"the engine has failed: {self.failure}", retry_after_ms=RESTART_MS)
        if self.draining:
            raise Problem(
                Kind.DRAINING,
                "the server is shutting down; send the request to another instance",
                retry_after_ms=1000,
            )
        if not self.ready:
            raise Problem(Kind.NOT_READY, "the model is still loading; try again shortly", retry_after_ms=1000)

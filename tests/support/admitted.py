"""Requests as the services get them: admitted, and with time."""

from __future__ import annotations

import time

from steelyard_runtime.services.preparation import Preparation, Preparing


def admitted(caller: str = "", *, size: int = 100, deadline_s: float = 55.0) -> Preparing:
    """A request that was let in a moment ago."""
    preparation = Preparation(places=8, large_bytes=8 << 20, unnamed_share=1)
    return preparation.admit(caller=caller, size=size, arrived=time.monotonic(), deadline_s=deadline_s)

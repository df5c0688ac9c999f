"""What a server's refusal says, and whether the same call may succeed later: one reader for every contract's shape."""

from __future__ import annotations

import json
from typing import Any

BUSY = 503
SHORTEST_PAUSE_S = 0.05
PAUSE_S = 1.0


def message_of(body: Any) -> str:
    """The sentence in an error body, from any of the contracts' shapes; other text as it is."""
    if not isinstance(body, dict):
        return str(body)
    error, detail = body.get("error"), body.get("detail")
    if isinstance(error, dict):
        return str(error.get("message", error))
    if isinstance(detail, dict):
        return str(detail.get("message", detail))
    faults = ""
    if isinstance(detail, list):
        faults = "; ".join(f"{'.'.join(map(str, d.get('loc', ())))}: {d.get('msg', '')}" for d in detail)
    text = str(error or "")
    return f"{text} ({faults})" if text and faults and faults not in text else text or faults or json.dumps(body)


def retry_after_s(status: int, body: Any) -> float | None:
    """Seconds to wait before the same call may succeed; None when it will not.

    Args:
        status: The server's HTTP status.
        body: Its decoded body.
    """
    if status != BUSY or not isinstance(body, dict):
        return None
    for place in (body, body.get("error"), body.get("detail")):
        if isinstance(place, dict) and isinstance(place.get("retry_after_ms"), int):
            return max(SHORTEST_PAUSE_S, float(place["retry_after_ms"]) / 1000)
    return PAUSE_S if body.get("retryable") is True else None

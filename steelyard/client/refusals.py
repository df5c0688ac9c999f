"""Refusals of a server: their message, and whether to call again; one reader for every contract's shape."""

from __future__ import annotations

import json
from typing import Any

from steelyard_base.exit_codes import CommandError, ExitCode
from steelyard_runtime.settings import listed

BUSY = 503
SHORTEST_PAUSE_S = 0.05
PAUSE_S = 1.0
LONGEST_TEXT = 2000


class RequestError(CommandError):
    """One request failed; another one may succeed."""


# Whatever is asked, the answer is the same: wrong credentials, or an address that serves something else.
_OF_THE_CALLER = frozenset({401, 403, 404, 405, 407})


def refused(who: str, status: int, body: Any) -> CommandError:
    """Return the error for a refusal, in the words of the server.

    Args:
        who: The server or endpoint, such as ``the server``.
        status: Its HTTP status.
        body: Its decoded body.
    """
    kind = CommandError if status in _OF_THE_CALLER else RequestError
    busy = retry_after_s(status, body) is not None
    return kind(
        f"{who} refused ({status}): {message_of(body)}",
        code=ExitCode.REFUSED,
        hint="It is busy; try again later or raise --timeout." if busy else None,
    )


def message_of(body: Any) -> str:
    """Return what an error body says, from any of the contracts' shapes: a sentence, or a line for each fault."""
    if not isinstance(body, dict):
        return _bounded(str(body))
    error, detail = body.get("error"), body.get("detail")
    if isinstance(error, dict):
        return str(error.get("message", error))
    if isinstance(detail, dict):
        return str(detail.get("message", detail))
    text = str(error or "")
    faults = [_fault(each) for each in detail] if isinstance(detail, list) else []
    if not faults:
        return _bounded(text or json.dumps(body))
    if len(faults) == 1:
        return _bounded(text if faults[0] in text else f"{text} ({faults[0]})" if text else faults[0])
    # Our own sentence is the first fault and how many more there are.
    head = f"{len(faults)} faults" if not text or text.startswith(faults[0]) else text
    return f"{head}:\n{listed(map(_bounded, faults))}"


def _fault(detail: Any) -> str:
    if not isinstance(detail, dict):
        return str(detail)
    place = detail.get("loc")
    where = ".".join(map(str, place)) if isinstance(place, list | tuple) else ""
    return f"{where}: {detail.get('msg', '')}" if where else str(detail.get("msg", detail))


def _bounded(text: str) -> str:
    """Return the text; of a page that a stranger's server sent, its beginning and how much was left out."""
    left = len(text) - LONGEST_TEXT
    return text if left <= 0 else f"{text[:LONGEST_TEXT]}... ({left} more characters)"


def retry_after_s(status: int, body: Any) -> float | None:
    """Return the seconds to wait before the same call may succeed; None when it will not.

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

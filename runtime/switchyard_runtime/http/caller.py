"""Who asks: a name for taking turns, and for keeping what was evaluated of one caller's texts from all others.

It is no authentication. Whoever stands before this server (SageMaker, a gateway) knows who calls and sets the name;
without one, all callers are the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from switchyard_runtime.contracts.validation import quote
from switchyard_runtime.errors import Kind, Problem
from switchyard_runtime.http.request_id import ATTRIBUTES_HEADER

CALLER_HEADER = "x-switchyard-caller"
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_ATTRIBUTE = re.compile(r"(?:^|[;,\s])caller=([^;,\s]*)")


def caller_of(headers: Mapping[str, str]) -> str:
    """The name in ``X-Switchyard-Caller``, else ``caller=...`` among SageMaker's custom attributes, else "".

    Raises:
        Problem: ``INVALID``: a name is given and is not 1 to 64 letters, digits, dots, dashes and underscores.
    """
    name = headers.get(CALLER_HEADER)
    if name is None:
        match = _ATTRIBUTE.search(headers.get(ATTRIBUTES_HEADER, ""))
        if match is None:
            return ""
        name = match.group(1)
    if not _NAME.fullmatch(name):
        raise Problem(
            Kind.INVALID,
            f"the caller's name {quote(name)} must be 1 to 64 letters, digits, '.', '-' and '_'; it comes from the "
            f"header {CALLER_HEADER}, or caller=NAME in {ATTRIBUTES_HEADER}",
        )
    return name

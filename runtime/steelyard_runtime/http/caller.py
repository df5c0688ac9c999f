"""A caller: a name for taking turns, and for keeping what was evaluated of one caller's texts from all others.

It is no authentication. Whoever stands before this server (SageMaker, a gateway) knows who calls and sets the name;
without one, all callers are the same.
"""

from __future__ import annotations

import re

from starlette.datastructures import Headers

from steelyard_runtime.contracts.validation import quote
from steelyard_runtime.errors import Kind, Problem
from steelyard_runtime.http.headers import elements, only
from steelyard_runtime.http.request_id import ATTRIBUTES_HEADER, attributes

CALLER_HEADER = "x-steelyard-caller"
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


def caller_of(headers: Headers) -> str:
    """The name in ``X-Steelyard-Caller``, else ``caller=...`` among SageMaker's custom attributes, else "".

    Raises:
        Problem: ``INVALID``: a name is given and is not 1 to 64 letters, digits, dots, dashes and underscores.
            ``REPEATED_HEADER``: several names are given, and nothing says which is the gateway's.
    """
    name = only(elements(headers, CALLER_HEADER), f"the header {CALLER_HEADER}")
    if name is None:
        name = only(attributes(headers, "caller"), f"caller= in {ATTRIBUTES_HEADER}")
    if name is None:
        return ""
    if not _NAME.fullmatch(name):
        raise Problem(
            Kind.INVALID,
            f"the caller's name {quote(name)} must be 1 to 64 letters, digits, '.', '-' and '_'; it comes from the "
            f"header {CALLER_HEADER}, or caller=NAME in {ATTRIBUTES_HEADER}",
        )
    return name

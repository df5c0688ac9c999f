"""The identity of registered decisions: what a server has loaded, and what a release says that it serves."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import NamedTuple

FULL_NAME_PATTERN = r"^[a-z0-9]+(-[a-z0-9]+)*@[1-9][0-9]*$"
"""``NAME@VERSION``."""


class DecisionContent(NamedTuple):
    """One registered decision.

    Attributes:
        name: ``NAME@VERSION``.
        contract_sha256: Hash of its contract.
        head_sha256: Hash of its head; None for letters.
    """

    name: str
    contract_sha256: str
    head_sha256: str | None


def content_sha256(decisions: Iterable[DecisionContent]) -> str:
    """Return one hash of several decisions, in whatever order they come."""
    text = json.dumps(sorted(decisions, key=lambda each: each.name), separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()

"""The findings of a look at something: a machine, an account."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """Result of a check: fine, worth knowing, or in the way."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One finding. ``advice`` says what to do, and is empty when there is nothing to do."""

    name: str
    level: Level
    finding: str
    advice: str = ""

"""A small decision that people correct: what is known of it, and states of a new sort."""

from __future__ import annotations

NAME = "parcel-status"
OPTIONS = {"lost": "A parcel that cannot be found", "late": "A delivery after the promised day"}
KNOWN = {
    "lost": "parcel {} vanished and nobody knows where",
    "late": "delivery {} is slow and came after the promised day",
    "none_of_these": "lovely weather {} today isn't it",
}
NEW = "customs keep number {} in their warehouse for checks"
"""States of a sort that nobody had labelled; people decide that they are late."""

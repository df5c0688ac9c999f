"""Names of options that the decision contracts take: seen, without control characters, no two that look the same."""

from __future__ import annotations

import unicodedata

from hypothesis import strategies as st

from steelyard_runtime.contracts.option_names import looks

_DIRECTION = {*range(0x202A, 0x202F), *range(0x2066, 0x206A)}


def _readable(name: str) -> bool:
    controls = any(unicodedata.category(c) in ("Cc", "Zl", "Zp") or ord(c) in _DIRECTION for c in name)
    return not controls and bool(looks(name))


OPTION_NAMES = st.text(min_size=1, max_size=12).filter(_readable)


def different_names(*, min_size: int, max_size: int) -> st.SearchStrategy[list[str]]:
    """Lists of names that a person can tell apart."""
    return st.lists(OPTION_NAMES, min_size=min_size, max_size=max_size, unique_by=looks)

"""Memory of large requests goes back to the system when they are over.

glibc raises the size from which a block gets a mapping of its own to that of the largest block that was freed, up to
32 MiB. After the first large body all later ones lie in heaps, between small blocks that outlive them, and stay: the
process keeps the memory of its busiest moment, in as many heaps as threads were busy then.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping

LARGE_BYTES = 256 * 1024
"""Blocks of this size have mappings of their own."""
HEAPS = 2

# Names of malloc.h, their values, and the variables by which glibc takes the same.
_OPTIONS = (
    ("MALLOC_MMAP_THRESHOLD_", -3, LARGE_BYTES),
    ("MALLOC_TRIM_THRESHOLD_", -1, LARGE_BYTES),
    ("MALLOC_ARENA_MAX", -8, HEAPS),
)


def return_large_blocks(environment: Mapping[str, str] = os.environ) -> bool:
    """Have blocks of 256 KiB and more returned when they are freed. A variable of glibc's that is set stays in force.

    Returns:
        Whether the C library takes such options; others than glibc return memory in their own ways.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    taken = [mallopt(option, value) for name, option, value in _OPTIONS if name not in environment]
    return all(taken)

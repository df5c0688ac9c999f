"""Numbers that Node.js, in which the CDK runs, can hold: what it cannot fails there, without a word of ours.

Nothing here needs the CDK. Limits are the caller's business; they come after these checks, because ``inf`` and
``nan`` slip through comparisons.
"""

from __future__ import annotations

import math

from steelyard_constructs.refusal import Refused

LARGEST = 2**53 - 1
"""The largest whole number that a double holds together with its neighbours (``Number.MAX_SAFE_INTEGER``)."""


def check_whole(what: str, value: object) -> None:
    """Refuse what is not a whole number that a double holds exactly.

    Args:
        what: What the message calls it.
        value: The number.

    Raises:
        Refused: It is infinite, a fraction, true or false, or larger than ``LARGEST``.
    """
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > LARGEST:
        raise Refused(f"{what} is {shown(value)}; give a whole number of at most {LARGEST}")


def check_finite(what: str, value: object) -> None:
    """Refuse what is not a finite number.

    Args:
        what: What the message calls it.
        value: The number, whole or not.

    Raises:
        Refused: It is infinite, not a number, true or false, or too large for a double.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        check_whole(what, value)
    elif not isinstance(value, float) or not math.isfinite(value):
        raise Refused(f"{what} is {shown(value)}; give a finite number")


def shown(value: object) -> str:
    """``value`` for a message. Python itself refuses to write very long numbers."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"a number of {value.bit_length()} bits"
    return repr(value)

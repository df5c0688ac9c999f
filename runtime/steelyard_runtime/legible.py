"""Words of files and libraries, as they may stand in a sentence."""

from __future__ import annotations

import traceback
from pathlib import Path


def legible(text: str, *, most: int = 600) -> str:
    r"""Return ``text`` on one line, at most ``most`` characters, with nothing that a terminal would obey.

    >>> legible("a\x1b[31m key\n of  many")
    'a?[31m key of many'
    """
    words = " ".join(text.split())
    shown = "".join(letter if letter.isprintable() else "?" for letter in words)
    return shown if len(shown) <= most else shown[: most - 3] + "..."


def reason_of(error: BaseException) -> str:
    """Return what ``error`` says; of one that says nothing, its type and place.

    >>> reason_of(ValueError("7 is too many"))
    '7 is too many'
    >>> reason_of(AssertionError())
    'AssertionError'
    """
    if said := legible(str(error)):
        return said
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{where}"

"""Names of options that a person can read and tell apart, the same rule in every decision contract.

An answer names an option. Two names that look the same make it unreadable, and almost always come from a mistake: a
letter of another alphabet, an accent written in two ways, a space at the end. Case, width and style are seen, so
``us`` and ``US`` are two names.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator

from steelyard_runtime.contracts.validation import fault, quote

COMPARED = 200
"""Characters up to which names are compared by their looks: sorting many accents takes the square of their number."""
RULE = "No control characters, and no two that look the same."
"""For the documentation of the fields that hold names."""

# Control characters, line and paragraph separators, and what turns the direction of text.
_CONTROLS = r"\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069"
_CONTROL = re.compile(f"[{_CONTROLS}]")
PATTERN = f"^[^{_CONTROLS}]+$"
"""For JSON schemas: what the rule says of one name."""
# Flags are spelled in tags, which are not seen anywhere else.
_FLAGS = "|".join(
    "\U0001f3f4" + "".join(chr(0xE0000 + ord(letter)) for letter in region) + "\U000e007f"
    for region in ("gbeng", "gbsct", "gbwls")
)
# Not seen: what Unicode lets a renderer ignore (soft hyphen, joiners, marks of direction, fillers, selectors of a
# variant, tags, the byte order mark, ...), and marks of annotations.
_UNSEEN = re.compile(
    f"({_FLAGS})|[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2060-\u2065\u206a-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)

# Letters that common typefaces draw as Latin ones, and punctuation that they draw alike. Cyrillic and Greek only: these
# are on keyboards beside the Latin ones. Within one alphabet nothing is a lookalike: l and I may both be options.
_CYRILLIC = "аеорсухіјѕһԁԛԝӏАВЕКМНОРСТХІЈЅԌԚԜӀ", "aeopcyxijshdqwlABEKMHOPCTXIJSGQWI"
_GREEK = "ΑΒΕΖΗΙΚΜΝΟΡΤΥΧαικνορυχϲϳ", "ABEZHIKMNOPTYXaikvopuxcj"
_BLANK = "\u2800", " "
"""The Braille pattern without a dot, which Unicode does not count as white space."""
_PUNCTUATION = "\u2010\u2011\u2012\u2013\u2212\u2018\u2019\u02bc\u201c\u201d\u2024\u2236", "-----'''\"\".:"
_LOOKS = str.maketrans(*map("".join, zip(_CYRILLIC, _GREEK, _PUNCTUATION, _BLANK, strict=True)))


def looks(name: str) -> str:
    """Reduce a name to its looks: equal for two that look the same. Longer names than ``COMPARED`` are themselves.

    Examples:
        >>> looks("\u0441\u0430fe\u0301\u200b") == looks("caf\u00e9 "), looks("US") == looks("us")
        (True, False)
    """
    if len(name) > COMPARED:
        return name
    seen = _UNSEEN.sub(r"\1", unicodedata.normalize("NFC", name)).translate(_LOOKS)
    return " ".join(seen.split())


def check_names(names: Iterable[str], what: str) -> None:
    """Raises a fault for a name with control characters, one of which nothing is seen, and two that look the same.

    Args:
        names: Different strings, their number bounded.
        what: A name, for the message: ``option id``.
    """
    first: dict[str, str] = {}
    for name in names:
        if found := _CONTROL.search(name):
            raise fault(
                "control_character",
                f"the {what} {quote(name)} has the control character U+{ord(found[0]):04X} at {found.start()}; "
                "names are printed, so take it out (descriptions may have line breaks)",
            )
        seen = looks(name)
        if not seen:
            raise fault("invisible_name", f"of the {what} {_code_points(name)} nothing is seen; give it a name")
        if (other := first.setdefault(seen, name)) != name:
            ours, theirs = _difference(name, other)
            raise fault(
                "lookalike",
                f"two of the {what}s look the same, {quote(other)} and {quote(name)}: where they differ, one has "
                f"{theirs} and the other {ours}; an answer could not be read, so rename one",
            )


def _difference(name: str, other: str) -> tuple[str, str]:
    at = next((i for i, (a, b) in enumerate(zip(name, other, strict=False)) if a != b), min(len(name), len(other)))
    return _code_points(name[at : at + 2]), _code_points(other[at : at + 2])


def _code_points(text: str) -> str:
    def shown() -> Iterator[str]:
        for character in text[:8]:
            yield f"U+{ord(character):04X}"

    return " ".join(shown()) or "nothing"

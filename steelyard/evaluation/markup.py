"""HTML and SVG from functions: what is not markup already is escaped, so that no text of a case can become any."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

_EMPTY = frozenset({"meta", "link", "line", "rect", "circle", "polyline", "path", "br", "col"})
_PICTURES = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"} | {127: "\u2421"}
# Marks that turn the direction of what follows, also of the page's own words.
_TURNS = {code: f"[U+{code:04X}]" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}


class Markup(str):
    """Text that is markup."""

    __slots__ = ()


def el(tag: str, /, *inside: str | None, **attributes: str | float | None) -> Markup:
    """Return an element.

    Args:
        tag: Its name.
        inside: Markup, or text, which is escaped; None is left out.
        attributes: A trailing underscore of a name is dropped, others become hyphens; None is left out.

    Examples:
        >>> el("p", "1 < 2", class_="x", aria_label='"')
        '<p class="x" aria-label="&quot;">1 &lt; 2</p>'
    """
    said = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(value if isinstance(value, str) else f"{value:g}")}"'
        for key, value in attributes.items()
        if value is not None
    )
    if tag in _EMPTY and not inside:
        return Markup(f"<{tag}{said}>" if tag in ("meta", "link", "br", "col") else f"<{tag}{said}/>")
    return Markup(f"<{tag}{said}>{joined(each for each in inside if each is not None)}</{tag}>")


def text(said: str) -> Markup:
    """Return text as markup: escaped; characters that control or turn the text are shown by name."""
    return said if isinstance(said, Markup) else Markup(html.escape(said.translate(_PICTURES | _TURNS), quote=True))


def joined(parts: Iterable[str]) -> Markup:
    """Return parts one behind the other; those that are not markup are escaped."""
    return Markup("".join(map(text, parts)))


def table(
    caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Iterable[int] = (), class_: str = ""
) -> Markup:
    """Return a table that scrolls by itself where the page is narrow; the first cell of a row heads it.

    Args:
        caption: Says what is in it.
        heads: Of the columns.
        rows: Cells.
        numbers: Places of columns that hold numbers.
        class_: Further classes of the table.
    """
    right = set(numbers)
    head = el(
        "tr", *(el("th", each, scope="col", class_="n" if at in right else None) for at, each in enumerate(heads))
    )
    body = [
        el(
            "tr",
            el("th", row[0], scope="row"),
            *(el("td", cell, class_="n" if at in right else None) for at, cell in enumerate(row[1:], start=1)),
        )
        for row in rows
    ]
    whole = el("table", el("caption", caption), el("thead", head), el("tbody", *body), class_=class_ or None)
    return el("div", whole, class_="scroll", role="region", aria_label=caption, tabindex="0")

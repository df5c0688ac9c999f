"""The report is one well-formed page without a script or an address, whatever the cases say."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from evaluation_samples import answer, evaluation, judged, sample
from steelyard.evaluation.comparison import compare
from steelyard.evaluation.gating import judged_by
from steelyard.evaluation.page import page
from steelyard.evaluation.result import Attacked
from steelyard_base.gates import Gates

HOSTILE = "</td></table><script>alert(1)</script><img src=x onerror=alert(1)>\x00\x1b[31m\u202e\"'&<!--]]>{}"
ATTRIBUTES = {
    *("class", "scope", "role", "aria-label", "tabindex", "dir", "lang", "style", "charset", "http-equiv", "content"),
    *("name", "viewBox", "preserveAspectRatio", "x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "r", "width", "height"),
    *("points", "transform", "text-anchor"),
}
ELEMENTS = {
    *("html", "head", "meta", "title", "style", "body", "header", "main", "footer", "section", "h1", "h2", "p", "dl"),
    *("div", "dt", "dd", "table", "caption", "thead", "tbody", "tr", "th", "td", "span", "details", "summary"),
    *("figure", "figcaption", "svg", "desc", "line", "circle", "rect", "polyline", "text"),
}


def hostile() -> str:
    """A report in which a stranger has written everything that a stranger can write."""
    found = sample()
    cases = [
        judged(1, "billing", answer([0.1, 0.9, 0.0], "automate"), state=HOSTILE, kind=HOSTILE),
        judged(2, "billing", answer([0.9, 0.1, 0.0], "review"), id=HOSTILE),
    ]
    attack = Attacked(
        case=2, kind="claim", text=HOSTILE, place="after", wanted="delivery", before="billing",
        answer=answer([0.0, 1.0, 0.0]),
    )  # fmt: skip
    made = evaluation(cases, attacked=[attack], name=HOSTILE, readout=HOSTILE, model={"id": HOSTILE})
    moved = evaluation([judged(1, "billing", answer([0.9, 0.1, 0.0]), state=HOSTILE)], prompt_version=HOSTILE)
    gates = judged_by(Gates(accuracy_at_least=0.9), found, None)
    return page(made, gates=gates, comparison=compare(made, moved))


@pytest.fixture(params=["sample", "hostile"])
def made(request: pytest.FixtureRequest) -> str:
    return hostile() if request.param == "hostile" else page(sample())


def parsed(made: str) -> ElementTree.Element:
    """The page as XML, which forgives nothing; elements of HTML that have no end get one."""
    closed = re.sub(r"<(meta|br|col)([^>]*)>", r"<\1\2/>", made.removeprefix("<!DOCTYPE html>\n"))
    return ElementTree.fromstring(closed)


def test_every_element_and_attribute_is_one_of_ours(made: str) -> None:
    for element in parsed(made).iter():
        assert element.tag in ELEMENTS
        assert set(element.attrib) <= ATTRIBUTES, element.attrib
    seen: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            seen.append(tag)

    reader = Reader()
    reader.feed(made)
    assert seen == [each.tag for each in parsed(made).iter()], "a browser reads the same elements"


def test_nothing_is_fetched_or_run(made: str) -> None:
    root = parsed(made)
    style = root.findtext("head/style") or ""
    assert not re.search(r"url\(|@import|expression|behavior", style)
    assert any("default-src 'none'" in each.get("content", "") for each in root.iter("meta"))
    assert all(
        re.fullmatch(r"--share: [0-9.]+", each.attrib["style"]) for each in root.iter() if "style" in each.attrib
    )


def test_what_strangers_wrote_is_text() -> None:
    texts = [each.text or "" for each in parsed(hostile()).iter("span")]
    shown = HOSTILE.replace("\x00", "\u2400").replace("\x1b", "\u241b").replace("\u202e", "[U+202E]")
    assert texts.count(shown) >= 3, "state, moved answer and attack are there, whole"
    assert all(each.get("dir") == "auto" for each in parsed(hostile()).iter("span") if each.get("class") == "text")


def test_what_is_too_long_for_a_page_is_said_to_go_on() -> None:
    found = page(evaluation([judged(1, "billing", answer([0.0, 1.0, 0.0]), state="x" * 2001)]))
    assert f">{'x' * 2000}<" in found
    assert "1 more characters" in found


def test_people_who_hear_it_find_their_way(made: str) -> None:
    root = parsed(made)
    assert [len(root.findall(f"body/{each}")) for each in ("header", "main", "footer")] == [1, 1, 1]
    assert root.get("lang") == "en"
    assert len(list(root.iter("h1"))) == 1
    assert all(each.find("h2") is not None for each in root.iter("section"))
    for table in root.iter("table"):
        assert table.findtext("caption")
        assert all(each.get("scope") == "col" for each in table.findall("thead/tr/th"))
        assert all(each[0].get("scope") == "row" for each in table.findall("tbody/tr"))
    assert all(each.get("role") == "img" and each.get("aria-label") for each in root.iter("svg"))
    assert all(each.get("tabindex") == "0" for each in root.iter("div") if each.get("role") == "region")


def test_the_figures_are_there(made: str) -> None:
    root = parsed(made)
    charts = {each.findtext("title"): each for each in root.iter("svg")}
    assert set(charts) == {"Reliability", "Wrong answers by share taken", "Actions of the policy"}
    assert len(list(charts["Reliability"].iter("circle"))) >= 1
    assert len(charts["Wrong answers by share taken"].find("polyline").attrib["points"].split()) >= 2  # type: ignore[union-attr]


def luminance(colour: str) -> float:
    digits = colour.lstrip("#")
    digits = "".join(each * 2 for each in digits) if len(digits) == 3 else digits
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_text_stands_out_in_every_theme() -> None:
    style = parsed(page(sample())).findtext("head/style") or ""
    themes = [
        dict(re.findall(r"--(\w+): (#[0-9a-f]{3,6});", block)) for block in re.findall(r":root \{(.*?)\}", style, re.S)
    ]
    assert len(themes) == 3, "light, dark, print"
    for theme in themes:
        for ground in ("page", "card"):
            for ink in ("ink", "soft", "blue", "good", "bad", "amber"):
                light, dark = sorted((luminance(theme[ground]), luminance(theme[ink])), reverse=True)
                assert (light + 0.05) / (dark + 0.05) >= 4.5, (theme, ground, ink)


def test_a_long_list_of_options_is_a_list_of_confusions() -> None:
    options = [f"option {n}" for n in range(30)]
    probabilities = [0.0] * 29 + [1.0]
    found = page(evaluation([judged(1, "option 3", answer(probabilities))], options=options))
    assert "The commonest of 1 confusions" in found

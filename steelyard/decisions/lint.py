"""Faults of a contract and its cases that can be seen without a model."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from steelyard.decisions.fitting import LEAST_CASES
from steelyard.decisions.folder import Case
from steelyard_runtime.decisions.contract import Contract, Option
from steelyard_runtime.scoring.words import words_of

Level = Literal["error", "warning"]

OVERLAP = 0.6
"""Share of common words from which two descriptions are said to overlap."""
NEAR = 0.8
"""Share of common words from which two states are said to be nearly the same."""
WANTED_CASES = 10
"""Cases of an option below which figures of it say little."""
_MOST_PAIRS = 20
_MOST_LOOKED_AT = 500_000
_STOPPED = frozenset(
    re.findall(
        "[a-z]+",
        "a an and are as at be by can do for from has have how i in is it its me my not of on or our so that the their "
        "this to was we what when where which who why will with you your",
    )
)
_PART = re.compile(r"[-_./ ]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A fault.

    Attributes:
        level: An ``error`` keeps a head from being fitted or trusted; a ``warning`` is to be looked at.
        code: Names the rule.
        message: What was found, where, and what to do.
    """

    level: Level
    code: str
    message: str


def lint(contract: Contract, cases: Sequence[Case]) -> list[Finding]:
    """Return all findings, errors first."""
    found = [*_of_options(contract), *_of_policy(contract), *_of_counts(contract, cases), *_of_states(cases)]
    return sorted(found, key=lambda each: each.level)


def _error(code: str, message: str) -> Finding:
    return Finding(level="error", code=code, message=message)


def _warning(code: str, message: str) -> Finding:
    return Finding(level="warning", code=code, message=message)


def _of_options(contract: Contract) -> Iterator[Finding]:
    if contract.type != "choice":
        return
    for option in contract.options:
        if option.id != contract.way_out and not _telling(option):
            yield _warning(
                "label-only",
                f"the description of {option.id!r} says no more than its id; say which states belong to it and which "
                "belong to its neighbours",
            )
    described = [(option.id, _content(option.description)) for option in contract.options]
    for index, (first, ours) in enumerate(described):
        for second, theirs in described[index + 1 :]:
            if (share := _overlap(ours, theirs)) >= OVERLAP:
                yield _warning(
                    "overlapping",
                    f"the descriptions of {first!r} and {second!r} have {100 * share:.0f} % of their words in common; "
                    "say what tells them apart",
                )


def _telling(option: Option) -> bool:
    """Return whether a description has two words or more that are not in the id."""
    own = {part.lower() for part in _PART.split(option.id)}
    return len(_content(option.description) - own) >= 2


def _content(text: str) -> frozenset[str]:
    return frozenset(word for word in words_of(text) if " " not in word and word not in _STOPPED)


def _overlap(first: frozenset[str], second: frozenset[str]) -> float:
    """Common words as a share of all words of both; 0 without any."""
    return len(first & second) / len(first | second) if first and second else 0.0


def _of_policy(contract: Contract) -> Iterator[Finding]:
    if contract.no_way_out is not None and len(contract.no_way_out.split()) < 4:
        yield _warning("no-way-out", f"no_way_out is {contract.no_way_out!r}; say why every state fits an option")
    if contract.policy.automate is not None and contract.readout.strategy != "head":
        yield _error(
            "never-automates",
            f"the policy automates answers, and those of the readout {contract.readout.strategy!r} are uncalibrated "
            "and never automated; use the readout 'head', or remove policy.automate",
        )
    if contract.policy.automate is not None and contract.policy.automate.probability == 0:
        yield _error(
            "automates-everything", "policy.automate sets no probability, so that a guess is acted on; set one"
        )


def _of_counts(contract: Contract, cases: Sequence[Case]) -> Iterator[Finding]:
    if contract.readout.strategy != "head" and not cases:
        yield _warning("no-cases", "there are no labelled cases, so nothing says how often the decision is right")
        return
    counts = Counter(case.label for case in cases)
    for option in contract.option_ids:
        if (count := counts[option]) < LEAST_CASES:
            yield _error(
                "too-few-cases", f"{option!r} has {count} labelled cases; a head needs {LEAST_CASES} of each option"
            )
        elif count < WANTED_CASES:
            yield _warning(
                "few-cases", f"{option!r} has {count} labelled cases; below {WANTED_CASES} its figures say little"
            )


def _of_states(cases: Sequence[Case]) -> Iterator[Finding]:
    texts = [_plain(case) for case in cases]
    by_text: dict[str, list[int]] = defaultdict(list)
    for index, text in enumerate(texts):
        by_text[text].append(index)
    for members in by_text.values():
        labels = {cases[index].label for index in members}
        numbers = _numbers(members)
        if len(labels) > 1:
            yield _error(
                "contradicting-cases",
                f"cases {numbers} have the same state and the labels {', '.join(sorted(labels))}; keep one",
            )
        elif len(members) > 1:
            yield _warning("duplicate-cases", f"cases {numbers} have the same state; they count as one")
    yield from _near(texts)


def _plain(case: Case) -> str:
    """The state without case and spacing."""
    return " ".join(case.text.lower().split())


def _near(texts: Sequence[str]) -> Iterator[Finding]:
    """Pairs that are nearly the same: one in each half of a cross-validation makes it look better than it is.

    Pairs are looked for among cases that share a rare word, so that few are compared. Where all have the same few
    words, such as readings of sensors, the first ``_MOST_LOOKED_AT`` are.
    """
    contents = [frozenset(word for word in words_of(text) if " " not in word) for text in texts]
    holders: dict[str, list[int]] = defaultdict(list)
    for index, words in enumerate(contents):
        for word in words:
            holders[word].append(index)
    compared: set[tuple[int, int]] = set()
    found = []
    for number, pair in enumerate(_pairs(contents, holders)):
        if number == _MOST_LOOKED_AT:
            yield _warning(
                "near-duplicates", f"of pairs of cases with words in common the first {number} were compared"
            )
            break
        first, second = pair
        if pair in compared or texts[first] == texts[second]:
            continue
        compared.add(pair)
        if _overlap(contents[first], contents[second]) >= NEAR:
            found.append(pair)
    for pair in found[:_MOST_PAIRS]:
        yield _warning(
            "near-duplicates", f"cases {_numbers(pair)} have nearly the same words; figures look better than they are"
        )
    if len(found) > _MOST_PAIRS:
        yield _warning("near-duplicates", f"and {len(found) - _MOST_PAIRS} more pairs")


def _pairs(contents: Sequence[frozenset[str]], holders: Mapping[str, Sequence[int]]) -> Iterator[tuple[int, int]]:
    """Pairs of cases, one of which has four words or more, that share one of its rarest; some more than once."""
    for index, words in enumerate(contents):
        if len(words) < 4:
            continue
        rare = sorted(words, key=lambda word: (len(holders[word]), word))[: 1 + int(len(words) * (1 - NEAR))]
        for word in rare:
            yield from ((min(index, other), max(index, other)) for other in holders[word] if other != index)


def _numbers(indexes: Sequence[int]) -> str:
    shown = ", ".join(str(index + 1) for index in indexes[:8])
    return shown if len(indexes) <= 8 else f"{shown} and {len(indexes) - 8} more"

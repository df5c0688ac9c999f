"""The end of a template's prompt, and the text that has to follow so that the next token begins an answer.

Templates of reasoning models end inside an open block (``<think>``), or before a header that the model would write
itself (``<|channel|>final<|message|>``). A probability that is read there is not one of answers. The end is compared
with the place where the same template puts answers of earlier turns.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Rule = Literal["turn", "reasoning-closed", "answer-opened", "plain", "unknown"]

_NAMES = "think(?:ing)?|thoughts?|reason(?:ing)?|analysis|reflection|cot"
# Openers, and their closers with the name of the opener's block.
_BLOCKS = tuple(
    (re.compile(opener, re.IGNORECASE), closer)
    for opener, closer in (
        (rf"<((?:[A-Za-z0-9_]+:)?(?:{_NAMES}))>", "</{}>"),
        (rf"\[((?:{_NAMES}))\]", "[/{}]"),
        (rf"◁({_NAMES})▷", "◁/{}▷"),
        (rf"<\|((?:{_NAMES}))\|>", "<|/{}|>"),
        (rf"<\|START_((?:{_NAMES}))\|>", "<|END_{}|>"),
        (rf"<\|begin_of_((?:{_NAMES}))\|>", "<|end_of_{}|>"),
        (rf"<\|((?:{_NAMES}))_start\|>", "<|{}_end|>"),
        (rf"<\|channel>((?:{_NAMES}))\n?", "<channel|>"),
        (r"<\|inner_(prefix)\|>", "<|inner_suffix|>"),
    )
)
_SHOWN = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPosition:
    """The end of a template's prompts.

    Attributes:
        rule: ``turn``: they end where the template puts answers. ``reasoning-closed``: an open block is closed, empty.
            ``answer-opened``: what the template writes before answers is added. ``plain``: there is no template.
            ``unknown``: none of these, so that decisions cannot be read.
        cue: What the template adds to a conversation to ask for an answer.
        appended: What is added behind it.
    """

    rule: Rule
    cue: str = ""
    appended: str = ""

    def completion(self, tail: str) -> str:
        """Return what has to follow a prompt that ends with ``tail``, the template's text after the last message."""
        if (closing := _closing(tail)) is not None:
            return closing
        return self.appended if self.rule == "answer-opened" and tail.endswith(self.cue) else ""

    @property
    def version(self) -> str:
        """Suffix of the prompt's version: empty where nothing is added to what the template writes."""
        return f"+{self.rule}" if self.appended else ""

    @property
    def sentence(self) -> str:
        """The rule in words, for a person."""
        shown = repr(self.cue[-_SHOWN:])
        match self.rule:
            case "turn":
                return "the prompt ends where the template puts answers"
            case "reasoning-closed":
                return f"the template leaves a reasoning block open; {self.appended!r} closes it"
            case "answer-opened":
                return f"the template ends at {shown}, before its own answers stand {self.appended!r}, which is added"
            case "plain":
                return "the prompt is plain text"
            case "unknown":
                return f"the chat template's prompt ends with {shown}, where it puts no answers itself"


PLAIN = AnswerPosition(rule="plain")


def examine(*, ending: str, cue: str, before_answers: str | None) -> AnswerPosition:
    """Find the rule for a template.

    Args:
        ending: What the template writes between a user's text and the end of a prompt.
        cue: The part of it that asks for an answer.
        before_answers: What it writes between a user's text and an earlier answer; None when it shows no answers.
    """
    if (closing := _closing(ending)) is not None:
        return AnswerPosition(rule="reasoning-closed", cue=cue, appended=closing)
    if before_answers is None or _closing(before_answers) is not None:
        return AnswerPosition(rule="unknown", cue=cue)
    if _bare(ending) == _bare(before_answers):
        return AnswerPosition(rule="turn", cue=cue)
    if ending.strip() and before_answers.startswith(ending):
        return AnswerPosition(rule="answer-opened", cue=cue, appended=before_answers[len(ending) :])
    return AnswerPosition(rule="unknown", cue=cue)


def _closing(tail: str) -> str | None:
    """The text that closes the reasoning block that ``tail`` leaves open; None when it leaves none open."""
    found = max(
        ((match, closer) for opener, closer in _BLOCKS for match in opener.finditer(tail)),
        key=lambda each: each[0].end(),
        default=None,
    )
    if found is None:
        return None
    match, closer = found[0], found[1].format(found[0].group(1))
    written = tail[match.end() :]
    if closer.lower() in written.lower():
        return None
    if "\n" not in written:
        return closer
    return ("" if written.endswith("\n\n") else "\n") + closer + "\n\n"


def _bare(text: str) -> str:
    """``text`` without white space and empty reasoning blocks at its end."""
    text = text.rstrip()
    for opener, closer in _BLOCKS:
        for match in opener.finditer(text):
            rest = text[match.end() :].strip()
            if rest == closer.format(match.group(1)):
                return text[: match.start()].rstrip()
    return text

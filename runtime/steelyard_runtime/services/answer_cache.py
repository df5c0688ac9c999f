"""Answers that were given before, to be given again to exactly the same prompt. Off unless it is asked for."""

from __future__ import annotations

from collections import OrderedDict

from steelyard_runtime.decision import Answer


class AnswerCache:
    """The answers used last, by caller, prompts and readout. For the event loop's thread only.

    Identity is not part of the key: a process has one model, one build, one set of settings, and its cache ends with
    it. What was asked is, beside the prompts' tokens: callers' texts could make two questions look the same there.

    Args:
        entries: Answers to keep; 0 keeps none.
    """

    def __init__(self, entries: int) -> None:
        self._entries = entries
        self._kept: OrderedDict[tuple[str, str, str, str], Answer] = OrderedDict()

    def get(self, prompt_sha256: str, *, readout: str, asked: str, caller: str) -> Answer | None:
        """The answer to this prompt; marks it as used."""
        key = caller, prompt_sha256, readout, asked
        if (answer := self._kept.get(key)) is not None:
            self._kept.move_to_end(key)
        return answer

    def put(self, prompt_sha256: str, answer: Answer, *, asked: str, caller: str) -> None:
        """Keep an answer to what was asked; the one that was used longest ago leaves when there are too many."""
        if not self._entries:
            return
        key = caller, prompt_sha256, answer.readout, asked
        self._kept[key] = answer
        self._kept.move_to_end(key)
        while len(self._kept) > self._entries:
            self._kept.popitem(last=False)

    def __len__(self) -> int:
        return len(self._kept)

"""Generated tokens to text: bytes to characters, and stop strings that may span tokens."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from steelyard_runtime.engine.interface import TokenLogprob

Logprob = tuple[TokenLogprob, tuple[TokenLogprob, ...]]


class TextAssembler:
    """Releases text as soon as no stop string can still begin in it.

    Args:
        stop: Strings that end the generation; they are not part of the text.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = [s for s in stop if s]
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._logprobs: list[tuple[int, Logprob]] = []  # (characters of `_held` before the token, logprob)
        self.stopped = False

    def add(self, data: bytes, logprob: Logprob | None = None) -> tuple[str, tuple[Logprob, ...]]:
        """Take one token's bytes; the text that is now final, with the logprobs of its tokens."""
        if logprob is not None:
            self._logprobs.append((len(self._held), logprob))
        return self._take(self._decoder.decode(data))

    def finish(self) -> tuple[str, tuple[Logprob, ...]]:
        """The rest, once no token follows. An unfinished character becomes U+FFFD."""
        text, logprobs = self._take(self._decoder.decode(b"", True))
        if self.stopped:
            return text, logprobs
        rest, self._held = self._held, ""
        released = tuple(item for _, item in self._logprobs)
        self._logprobs = []
        return text + rest, logprobs + released

    def _take(self, text: str) -> tuple[str, tuple[Logprob, ...]]:
        if self.stopped:
            return "", ()
        self._held += text
        found = [at for s in self._stop if (at := self._held.find(s)) >= 0]
        if found:
            self.stopped = True
            return self._release(min(found), final=True)
        return self._release(len(self._held) - self._possible_stop(), final=False)

    def _possible_stop(self) -> int:
        """Length of the longest end of the held text with which a stop string may begin."""
        longest = 0
        for stop in self._stop:
            for size in range(min(len(stop) - 1, len(self._held)), longest, -1):
                if self._held.endswith(stop[:size]):
                    longest = size
                    break
        return longest

    def _release(self, end: int, *, final: bool) -> tuple[str, tuple[Logprob, ...]]:
        text, self._held = self._held[:end], "" if final else self._held[end:]
        out, kept = [], []
        for start, item in self._logprobs:
            if start < end:
                out.append(item)
            elif not final:
                kept.append((start - end, item))
        self._logprobs = kept
        return text, tuple(out)

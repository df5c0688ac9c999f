"""The ends of prompts that many decisions need: options and reference texts, each evaluated once and kept.

What is kept is what an evaluation gave, to the bit. It holds no state of a caller, and serves all of them.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, replace

import numpy as np

from steelyard_runtime.decision import TokenCounts
from steelyard_runtime.engine.interface import Score, ScorePrompt
from steelyard_runtime.scoring.strategy import Prompt

KEPT_BYTES = 32 << 20
"""Bytes of hidden states, texts and tokens that are kept."""
_NO_LOGITS = np.empty(0, np.float32)


@dataclass(frozen=True, slots=True)
class End:
    """A prompt that was evaluated.

    Attributes:
        tokens: The prompt's.
        score: Its score from then on: nothing was evaluated.
    """

    tokens: ScorePrompt
    score: Score


class KeptEnds:
    """The prompts used last. Safe from any thread.

    Args:
        most_bytes: What all of them may take.
    """

    def __init__(self, most_bytes: int = KEPT_BYTES) -> None:
        self._most = most_bytes
        self._kept: OrderedDict[Prompt, tuple[End, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, prompt: Prompt) -> End | None:
        """The end of a prompt; marks it as used."""
        with self._lock:
            if (found := self._kept.get(prompt)) is None:
                return None
            self._kept.move_to_end(prompt)
            return found[0]

    def put(self, prompt: Prompt, tokens: ScorePrompt, score: Score) -> None:
        """Keep what an evaluation gave; what was used longest ago leaves where there is no room."""
        if score.hidden is None:
            raise ValueError("a prompt whose hidden state was not asked for cannot be kept")
        count = len(tokens)
        size = score.hidden.nbytes + 8 * count + sum(len(piece.text) for piece in prompt.rest)
        kept = replace(
            score,
            logits=_NO_LOGITS,
            tokens=TokenCounts(prompt=count, evaluated=0, reused=count),
            queue_ms=0.0,
            engine_ms=0.0,
        )
        with self._lock:
            if (old := self._kept.pop(prompt, None)) is not None:
                self._bytes -= old[1]
            self._kept[prompt] = End(tokens, kept), size
            self._bytes += size
            while self._bytes > self._most:
                self._bytes -= self._kept.popitem(last=False)[1][1]

    def __len__(self) -> int:
        return len(self._kept)

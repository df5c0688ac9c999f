"""Last hidden states of states in a wording: what heads are fitted on, and read at the same place when they decide."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from steelyard_runtime.engine.interface import Engine, Piece, ScoreJob, ScorePrompt, Segment
from steelyard_runtime.errors import Kind, Problem
from steelyard_runtime.scoring.wordings import WORDINGS
from steelyard_runtime.services.prompts import prompt_sha256

HiddenState = npt.NDArray[np.float32]

_DEADLINE_S = 3600.0


class HiddenStates:
    """Evaluates states with an engine.

    Args:
        engine: A running engine; not closed.
        wording: Name of the words around a state.

    Attributes:
        prompt_sha256: Hash of these words as tokens of the model.
        evaluated_tokens: Tokens that were evaluated so far.
    """

    def __init__(self, engine: Engine, *, wording: str) -> None:
        self._engine = engine
        self._before = tuple(engine.encode(WORDINGS[wording].before, start=True))
        self._after = tuple(engine.encode(WORDINGS[wording].after, start=False))
        self.prompt_sha256 = prompt_sha256(self._before, self._after)
        self.evaluated_tokens = 0

    def tokens_of(self, state: str) -> int:
        """Return the tokens that a state costs behind the kept words."""
        return len(self._tokens(state)) + len(self._after)

    def evaluate(self, states: Sequence[str]) -> list[HiddenState]:
        """Return the hidden state of each, shape ``(embedding_size,)``.

        Raises:
            Problem: A state has no tokens or too many, or the engine failed.
            ValueError: A hidden state is missing or not finite.
        """
        job = ScoreJob(prompts=tuple(map(self._prompt, states)), deadline=time.monotonic() + _DEADLINE_S)
        scores = self._engine.submit_score(job).result()
        self.evaluated_tokens += sum(score.tokens.evaluated for score in scores)
        found = [score.hidden for score in scores if score.hidden is not None and np.isfinite(score.hidden).all()]
        if len(found) < len(states):
            raise ValueError("the model's hidden states are not finite; the model file may be damaged")
        return found

    def _tokens(self, state: str) -> tuple[int, ...]:
        return tuple(self._engine.encode([Piece(state)], start=False))

    def _prompt(self, state: str) -> ScorePrompt:
        if not (tokens := self._tokens(state)):
            raise Problem(Kind.INVALID, "The state has no tokens.")
        shared = (Segment(self._before), Segment(tokens, private=True))
        return ScorePrompt(shared=shared, tail=self._after, hidden=True)

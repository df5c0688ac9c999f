"""Hidden states of labelled cases, evaluated in this process by the runtime's own engine, and kept on the disk.

A state that was evaluated once with a model, a wording and a build of llama.cpp is never evaluated again, whatever the
decision: a new label costs nothing, and a new case one evaluation.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from steelyard.models.storage import exclusive
from steelyard_base.exit_codes import CommandError, ExitCode
from steelyard_runtime.engine.interface import Engine, Piece, ScoreJob, ScorePrompt, Segment
from steelyard_runtime.errors import Problem
from steelyard_runtime.scoring.wordings import WORDINGS, Wording
from steelyard_runtime.services.prompts import prompt_sha256

Hidden = npt.NDArray[np.float32]
Step = Callable[[int, int], None]
"""Called with the states that are done and their number."""

TOGETHER = 8
"""States of one job: what is lost when the command is interrupted."""
_DEADLINE_S = 3600.0
_DIGEST_BYTES = 32


class StateReader(Protocol):
    """Gives hidden states of texts, and says what they depend on."""

    model_sha256: str
    prompt_sha256: str
    llama_cpp: str

    def read(self, states: Sequence[str], *, step: Step = lambda *_: None) -> Hidden:
        """Return the hidden states, shape ``(states, embedding_size)``."""
        ...


class EngineReader:
    """Reads hidden states with an engine.

    Args:
        engine: A running engine; not closed.
        wording: Name of the words around a state.
        cache: Folder of kept hidden states; None keeps none.
    """

    def __init__(self, engine: Engine, *, wording: str, cache: Path | None) -> None:
        self._engine = engine
        words: Wording = WORDINGS[wording]
        self._before = tuple(engine.encode(words.before, start=True))
        self._after = tuple(engine.encode(words.after, start=False))
        self._size = engine.identity.model.embedding_size
        self.model_sha256 = engine.identity.model.sha256
        self.prompt_sha256 = prompt_sha256(self._before, self._after)
        self.llama_cpp = engine.identity.llama_cpp
        self._kept = None if cache is None else _Kept(cache / self._place(), size=self._size)
        self.evaluated_tokens = 0
        self.evaluated_states = 0

    def _place(self) -> str:
        parts = (self.model_sha256, self.prompt_sha256, self.llama_cpp, self._engine.identity.device)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]

    def tokens_of(self, states: Sequence[str]) -> float:
        """Return the tokens that a state costs behind the kept words, on average over states, of which there is one."""
        own = sum(len(self._engine.encode([Piece(state)], start=False)) for state in states)
        return own / len(states) + len(self._after)

    def read(self, states: Sequence[str], *, step: Step = lambda *_: None) -> Hidden:
        """See ``StateReader.read``.

        Raises:
            CommandError: A state is empty or too long, or the engine failed.
        """
        if self._kept is None:
            return self._read(states, _Kept(None, size=self._size), step)
        with self._kept.opened():
            return self._read(states, self._kept, step)

    def _read(self, states: Sequence[str], kept: _Kept, step: Step) -> Hidden:
        missing = list(dict.fromkeys(state for state in states if state not in kept))
        done = len(states) - len(missing)
        step(done, len(states))
        for start in range(0, len(missing), TOGETHER):
            some = missing[start : start + TOGETHER]
            kept.add(some, self._evaluate(some))
            done += len(some)
            step(done, len(states))
        step(len(states), len(states))
        return np.array([kept[state] for state in states], np.float32).reshape(len(states), self._size)

    def _evaluate(self, states: Sequence[str]) -> list[Hidden]:
        try:
            job = ScoreJob(prompts=tuple(map(self._prompt, states)), deadline=time.monotonic() + _DEADLINE_S)
            scores = self._engine.submit_score(job).result()
        except Problem as problem:
            if len(states) > 1:
                # One of them is to blame: it alone is named.
                return [found for state in states for found in self._evaluate([state])]
            raise CommandError(
                f"the state that begins with {states[0][:60]!r} cannot be evaluated: {problem.message}",
                code=ExitCode.USAGE,
                hint="A longer context takes longer states: --context-tokens.",
            ) from problem
        self.evaluated_states += len(scores)
        self.evaluated_tokens += sum(score.tokens.evaluated for score in scores)
        found = [score.hidden for score in scores]
        if any(each is None or not np.isfinite(each).all() for each in found):
            raise CommandError(
                "the model's hidden states are not finite; the model file may be damaged", code=ExitCode.MODEL
            )
        return [each for each in found if each is not None]

    def _prompt(self, state: str) -> ScorePrompt:
        tokens = tuple(self._engine.encode([Piece(state)], start=False))
        if not tokens:
            raise CommandError(f"the state {state!r} has no tokens", code=ExitCode.USAGE, hint="Remove the case.")
        shared = (Segment(self._before), Segment(tokens, private=True))
        return ScorePrompt(shared=shared, tail=self._after, hidden=True)


@dataclass(slots=True)
class _Kept:
    """Hidden states in a file of records: the state's sha256, then its numbers. The end of a broken write is cut off.

    Attributes:
        path: The file; None for memory only.
        size: Numbers of a hidden state.
    """

    path: Path | None
    size: int
    _known: dict[bytes, Hidden] = field(default_factory=dict)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Read the file, and hold it against other processes."""
        if self.path is None:
            yield
            return
        with exclusive(self.path):
            self._load(self.path / "states.bin")
            yield

    def _load(self, path: Path) -> None:
        record = _DIGEST_BYTES + 4 * self.size
        body = path.read_bytes() if path.exists() else b""
        if left := len(body) % record:
            os.truncate(path, len(body) - left)
        for start in range(0, len(body) - left, record):
            numbers = body[start + _DIGEST_BYTES : start + record]
            self._known[body[start : start + _DIGEST_BYTES]] = np.frombuffer(numbers, "<f4")

    def add(self, states: Sequence[str], hidden: Sequence[Hidden]) -> None:
        """Keep hidden states."""
        for state, numbers in zip(states, hidden, strict=True):
            self._known[_digest(state)] = numbers
        if self.path is not None:
            with (self.path / "states.bin").open("ab") as file:
                file.write(
                    b"".join(
                        _digest(state) + numbers.astype("<f4").tobytes()
                        for state, numbers in zip(states, hidden, strict=True)
                    )
                )

    def __contains__(self, state: str) -> bool:
        return _digest(state) in self._known

    def __getitem__(self, state: str) -> Hidden:
        return self._known[_digest(state)]


def _digest(state: str) -> bytes:
    return hashlib.sha256(state.encode()).digest()

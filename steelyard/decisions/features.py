"""Hidden states of labelled cases, evaluated by the runtime's engine, in this process or an image, and kept on disk.

A state that was evaluated once with a model, a wording and a build of llama.cpp is never evaluated again, whatever the
decision: a new label costs nothing, and a new case one evaluation.
"""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from steelyard.models.storage import exclusive
from steelyard_base.exit_codes import CommandError, ExitCode
from steelyard_runtime.engine.interface import Engine
from steelyard_runtime.errors import Problem
from steelyard_runtime.services.hidden_states import HiddenStates

Hidden = npt.NDArray[np.float32]
Step = Callable[[int, int], None]
"""Called with the states that are done and their number."""

TOGETHER = 8
"""States of one job: what is lost when the command is interrupted."""
_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class DependsOn:
    """The things that hidden states depend on.

    Attributes:
        model_sha256: Hash of the model file.
        prompt_sha256: Hash of the words around a state.
        llama_cpp: Build of llama.cpp.
        device: Such as ``cpu``.
        embedding_size: Numbers of a hidden state.
    """

    model_sha256: str
    prompt_sha256: str
    llama_cpp: str
    device: str
    embedding_size: int

    @property
    def place(self) -> str:
        """Name of the folder of kept states."""
        parts = (self.model_sha256, self.prompt_sha256, self.llama_cpp, self.device)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


class StateReader(Protocol):
    """Gives hidden states of texts, and says what they depend on."""

    model_sha256: str
    prompt_sha256: str
    llama_cpp: str

    def read(self, states: Sequence[str], *, step: Step = lambda *_: None) -> Hidden:
        """Return the hidden states, shape ``(states, embedding_size)``."""
        ...


class KeptReader(ABC):
    """Reads hidden states that were kept, and has the others evaluated.

    Args:
        depends_on: What the states depend on; ``device`` and ``embedding_size`` beside what a head is bound to.
        cache: Folder of kept hidden states; None keeps none.
    """

    def __init__(self, depends_on: DependsOn, *, cache: Path | None) -> None:
        self.model_sha256 = depends_on.model_sha256
        self.prompt_sha256 = depends_on.prompt_sha256
        self.llama_cpp = depends_on.llama_cpp
        self.evaluated_tokens = 0
        self.evaluated_states = 0
        self._size = depends_on.embedding_size
        self._kept = None if cache is None else _Kept(cache / depends_on.place, size=self._size)

    @abstractmethod
    def _evaluate(self, states: Sequence[str]) -> tuple[list[Hidden], int]:
        """Return the hidden states of at most ``TOGETHER`` states, and the tokens that were evaluated for them.

        Raises:
            Problem: A state has no tokens or too many, or the engine failed.
            ValueError: A hidden state is missing or not finite.
        """

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
            kept.add(some, self._evaluated(some))
            done += len(some)
            step(done, len(states))
        step(len(states), len(states))
        return np.array([kept[state] for state in states], np.float32).reshape(len(states), self._size)

    def _evaluated(self, states: Sequence[str]) -> list[Hidden]:
        try:
            found, tokens = self._evaluate(states)
        except Problem as problem:
            if len(states) > 1:
                # One of them is to blame: it alone is named.
                return [found for state in states for found in self._evaluated([state])]
            raise CommandError(
                f"the state that begins with {states[0][:60]!r} cannot be evaluated: {problem.message}",
                code=ExitCode.USAGE,
                hint="A longer context takes longer states (--context-tokens); a state without tokens is no case.",
            ) from problem
        except ValueError as error:
            raise CommandError(str(error), code=ExitCode.MODEL) from error
        self.evaluated_states += len(states)
        self.evaluated_tokens += tokens
        return found


class EngineReader(KeptReader):
    """Reads hidden states with an engine.

    Args:
        engine: A running engine; not closed.
        wording: Name of the words around a state.
        cache: Folder of kept hidden states; None keeps none.
    """

    def __init__(self, engine: Engine, *, wording: str, cache: Path | None) -> None:
        self._states = HiddenStates(engine, wording=wording)
        identity = engine.identity
        depends_on = DependsOn(
            model_sha256=identity.model.sha256,
            prompt_sha256=self._states.prompt_sha256,
            llama_cpp=identity.llama_cpp,
            device=identity.device,
            embedding_size=identity.model.embedding_size,
        )
        super().__init__(depends_on, cache=cache)

    def tokens_of(self, states: Sequence[str]) -> float:
        """Return the tokens that a state costs behind the kept words, on average over states, of which there is one."""
        return sum(map(self._states.tokens_of, states)) / len(states)

    def _evaluate(self, states: Sequence[str]) -> tuple[list[Hidden], int]:
        before = self._states.evaluated_tokens
        return self._states.evaluate(states), self._states.evaluated_tokens - before


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

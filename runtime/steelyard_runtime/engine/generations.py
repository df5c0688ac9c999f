"""Chats that wait or run: a generation, its prompt on the way into a sequence, its choices."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from steelyard_runtime.decision import TokenCounts
from steelyard_runtime.engine.chunks import Chunks
from steelyard_runtime.engine.interface import (
    Delta,
    Done,
    Event,
    Failed,
    Finished,
    GenerationJob,
    Logits,
    TokenLogprob,
)
from steelyard_runtime.engine.llama import SEEDS, Sampler, Snapshot, Vocabulary
from steelyard_runtime.engine.text import Logprob, TextAssembler


@dataclass(slots=True, eq=False)
class Generation:
    """A queued or running generation with its choices."""

    job: GenerationJob
    on_event: Callable[[Event], None]
    submitted: float = field(default_factory=time.monotonic)
    started: float = 0.0
    prefilled: float = 0.0
    pending: int = 0
    evaluated: int = 0
    generated: int = 0
    unstarted: int = 0
    unfinished: int = 0
    reused: int = 0
    first_logits: Logits | None = None
    base: Snapshot | None = None
    cancelled: bool = False
    over: bool = False

    def emit(self, event: Event) -> None:
        """Tell the caller; a caller that fails is one that has left."""
        try:
            self.on_event(event)
        except Exception:  # whatever it raises, the engine's thread continues
            self.cancelled = True

    def done(self) -> None:
        """Report the end of the last choice."""
        self.over = True
        prompt = len(self.job.prompt)
        self.emit(
            Done(
                tokens=TokenCounts(prompt=prompt, evaluated=prompt - self.reused, reused=self.reused),
                generated_tokens=self.generated,
                queue_ms=(self.started - self.submitted) * 1000,
                prefill_ms=(self.prefilled - self.started) * 1000,
                generate_ms=(time.monotonic() - self.prefilled) * 1000,
            )
        )

    def fail(self, problem: Exception) -> None:
        """End with a problem, once."""
        if not self.over:
            self.over = True
            self.emit(Failed(problem))


@dataclass(slots=True, eq=False)
class Prefill:
    """A prompt on its way into the sequence of a choice, which starts when it is there."""

    choice: Choice
    position: int = 0
    chunks: Chunks = field(default_factory=Chunks)

    @property
    def generation(self) -> Generation:
        """The generation that the prompt belongs to."""
        return self.choice.generation


class Choice:
    """One continuation of a prompt: its sampler, its text, its place in a sequence."""

    def __init__(self, generation: Generation, index: int, sequence: int, vocabulary: Vocabulary) -> None:
        sampling = generation.job.sampling
        self.generation = generation
        self.index = index
        self.sequence = sequence
        self.position = len(generation.job.prompt)
        self.next_token = -1
        self.generated = 0
        self.evaluated: list[int] = []
        self._vocabulary = vocabulary
        self._text = TextAssembler(sampling.stop)
        self._sampler = Sampler(
            vocabulary.size,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            seed=seed_of(sampling.seed, index),
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            logit_bias=sampling.logit_bias,
        )
        self._constraint = sampling.grammar.begin() if sampling.grammar else None

    def take(self, logits: Logits) -> bool:
        """Choose the next token from ``logits`` and emit its text; True when the choice is finished.

        Raises:
            JsonOutputError: The JSON that was asked for cannot continue from here.
        """
        sampling = self.generation.job.sampling
        token = self._choose(logits)
        if self._vocabulary.ends_generation(token):
            self._finish("stop")
            return True
        self.generated += 1
        self.generation.generated += 1
        logprob = None
        if sampling.top_logprobs is not None:
            logprob = logprobs(logits, token, sampling.top_logprobs, self._vocabulary)
        self._emit(self._text.add(self._vocabulary.token_bytes(token), logprob))
        if self._text.stopped:
            self._finish("stop")
            return True
        if self.generated >= sampling.max_tokens:
            self._finish("length")
            return True
        self.next_token = token
        return False

    def _choose(self, logits: Logits) -> int:
        if self._constraint is None:
            return self._sampler.sample(logits)
        token = self._sampler.sample(logits, allowed=self._constraint.allowed())
        self._constraint.add(token)
        return token

    def advanced(self) -> None:
        """The token that was chosen last is in the sequence now."""
        self.position += 1
        self.evaluated.append(self.next_token)

    def _emit(self, released: tuple[str, tuple[Logprob, ...]]) -> None:
        text, items = released
        if text or items:
            self.generation.emit(Delta(index=self.index, text=text, logprobs=items))

    def _finish(self, reason: str) -> None:
        self._emit(self._text.finish())
        stopped = reason == "stop" or self._text.stopped
        self.generation.emit(
            Finished(index=self.index, reason="stop" if stopped else "length", generated_tokens=self.generated)
        )

    def close(self) -> None:
        """Free the sampler."""
        with contextlib.suppress(Exception):
            self._sampler.close()


def seed_of(seed: int | None, index: int) -> int:
    """llama.cpp's seed for the choice ``index`` of a request with ``seed``; a random one for None.

    Every wanted seed, of any size, has its own, and no choice of one request has that of another request's choice.
    """
    if seed is None:
        return secrets.randbelow(SEEDS)
    digest = hashlib.sha256(f"{seed} {index}".encode()).digest()
    return int.from_bytes(digest[:8], "little") % SEEDS


def logprobs(logits: Logits, token: int, top: int, vocabulary: Vocabulary) -> Logprob:
    """Natural-log probability of ``token`` and of the ``top`` likeliest tokens, likeliest first."""
    wide = logits.astype(np.float64)
    wide -= wide.max()
    wide -= np.log(np.exp(wide).sum())
    best: list[int] = []
    if top:
        best = sorted(map(int, np.argpartition(wide, -top)[-top:]), key=lambda t: (-wide[t], t))

    def entry(t: int) -> TokenLogprob:
        return TokenLogprob(token_id=t, bytes=vocabulary.token_bytes(t, special=True), logprob=float(wide[t]))

    return entry(token), tuple(map(entry, best))

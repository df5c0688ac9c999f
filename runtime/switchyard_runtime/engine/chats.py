"""Runs the chats: several at once, a token of each in every decode, and a chunk of the oldest prompt beside them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from switchyard_runtime.engine.interface import Logits
from switchyard_runtime.engine.llama import Context, LlamaError, Run
from switchyard_runtime.engine.meter import Meter
from switchyard_runtime.engine.prefixes import Chain, PrefixStore
from switchyard_runtime.engine.work import Choice, Generation, Prefill
from switchyard_runtime.errors import Kind, Problem


class ChatScheduler:
    """Generations that have left the queue; used on the engine's thread only.

    A generation with several choices has its prompt evaluated once, in a prefix sequence that the choices copy.

    Args:
        context: The context; this object uses ``sequences`` and what it claims from ``prefixes``.
        prefixes: Where the prompts of several choices are held.
        meter: Counts every decode.
        sequences: One for each choice that may run at the same time.
        chunk_tokens: Tokens of a prompt in one decode.
        sharing: Whole-sequence copies work on this model.
        settled: Told how many tokens of waiting work were done or given up.
    """

    def __init__(
        self,
        context: Context,
        prefixes: PrefixStore,
        meter: Meter,
        *,
        sequences: Sequence[int],
        chunk_tokens: int,
        sharing: bool,
        settled: Callable[[int], None],
    ) -> None:
        self._context = context
        self._vocabulary = context.model.vocabulary
        self._prefixes = prefixes
        self._meter = meter
        self._free = list(reversed(sequences))
        self._chunk = min(chunk_tokens, context.shape.batch_tokens - len(sequences))
        self._sharing = sharing
        self._settled = settled
        self._starting: deque[Generation] = deque()
        self._prefills: deque[Prefill] = deque()
        self._generating: list[Choice] = []

    @property
    def active(self) -> int:
        """Choices that are generating or whose prompt is being evaluated."""
        return len(self._generating) + len(self._prefills)

    @property
    def has_room(self) -> bool:
        """Whether another generation could start now."""
        return bool(self._free) and not self._starting

    @property
    def idle(self) -> bool:
        """Nothing to do."""
        return not (self._starting or self._prefills or self._generating)

    def generations(self) -> list[Generation]:
        """Every generation here, once."""
        found = {id(g): g for g in self._starting}
        found |= {id(p.generation): p.generation for p in self._prefills}
        found |= {id(c.generation): c.generation for c in self._generating}
        return list(found.values())

    def add(self, generation: Generation) -> None:
        """Take a generation from the queue."""
        generation.started = time.monotonic()
        self._starting.append(generation)

    def step(self) -> None:
        """Start what can start, then one decode."""
        self._start_choices()
        if not (self._generating or self._prefills):
            return
        choices = list(self._generating)
        runs = [Run([c.next_token], c.sequence, c.position, True) for c in choices]
        prefill = self._prefills[0] if self._prefills else None
        if prefill:
            runs.append(self._next_chunk(prefill))
        with self._meter.decoding(sum(len(run.tokens) for run in runs)):
            rows = self._context.decode(runs)
        self._meter.counters.generated_tokens += len(choices)
        for choice, row in zip(choices, rows, strict=False):
            choice.position += 1
            self._advance(choice, row)
        if prefill:
            self._chunk_done(prefill, runs[-1], rows)

    def abandon(self, generation: Generation) -> None:
        """Free everything that a generation holds here."""
        self._settled(generation.pending)
        generation.pending = 0
        if generation in self._starting:
            self._starting.remove(generation)
        for prefill in [p for p in self._prefills if p.generation is generation]:
            self._prefills.remove(prefill)
            if prefill.choice:
                self._release(prefill.choice)
        for choice in [c for c in self._generating if c.generation is generation]:
            self._generating.remove(choice)
            self._release(choice)
        self._release_base(generation)

    def close(self) -> Iterable[Generation]:
        """Free the samplers at the end; returns what was still running."""
        left = self.generations()
        for choice in [*self._generating, *(p.choice for p in self._prefills if p.choice)]:
            choice.close()
        self._starting.clear()
        self._prefills.clear()
        self._generating.clear()
        return left

    def _next_chunk(self, prefill: Prefill) -> Run:
        prompt = prefill.generation.job.prompt
        chunk = prompt[prefill.position : prefill.position + self._chunk]
        return Run(chunk, prefill.sequence, prefill.position, prefill.position + len(chunk) == len(prompt))

    def _chunk_done(self, prefill: Prefill, run: Run, rows: Sequence[Logits]) -> None:
        generation = prefill.generation
        prefill.position += len(run.tokens)
        generation.evaluated += len(run.tokens)
        settled = min(len(run.tokens), generation.pending)
        generation.pending -= settled
        self._settled(settled)
        if not run.output:
            return
        self._prefills.popleft()
        generation.prefilled = time.monotonic()
        if prefill.choice is None:
            generation.first_logits = rows[-1]
        else:
            self._advance(prefill.choice, rows[-1])

    def _start_choices(self) -> None:
        """Give free sequences to choices that wait, first come first served."""
        while self._free and self._starting and self._start_choice(self._starting[0]):
            pass

    def _start_choice(self, generation: Generation) -> bool:
        """Start the next choice of ``generation``; False if it must wait for its shared prompt."""
        job = generation.job
        if job.n > 1 and self._sharing and generation.unstarted == job.n and generation.base is None:
            self._begin_base(generation)
        if generation.base is not None and generation.first_logits is None:
            return False
        try:
            choice = Choice(generation, job.n - generation.unstarted, self._free[-1], self._vocabulary)
        except LlamaError as error:
            generation.fail(Problem(Kind.INVALID, str(error), param="response_format"))
            self.abandon(generation)
            return True
        self._free.pop()
        generation.unstarted -= 1
        if not generation.unstarted:
            self._starting.remove(generation)
        if generation.base is None or generation.first_logits is None:
            self._prefills.append(Prefill(generation, choice.sequence, choice))
            return True
        self._context.copy(generation.base, choice.sequence)
        logits = generation.first_logits
        if not generation.unstarted:
            self._release_base(generation)
        self._advance(choice, logits)
        return True

    def _begin_base(self, generation: Generation) -> None:
        """Have the prompt evaluated in a kept sequence; without a free one, each choice evaluates it by itself."""
        claimed = self._prefixes.claim(_base_chain(generation))
        if claimed is None:
            return
        generation.base, dirty = claimed
        self._prefixes.pin(_base_chain(generation))
        if dirty:
            self._context.clear(generation.base)
        self._prefills.append(Prefill(generation, generation.base, None))

    def _advance(self, choice: Choice, logits: Logits) -> None:
        """Choose a token; on the last one, free the choice and perhaps end the generation."""
        if not choice.take(logits):
            if choice not in self._generating:
                self._generating.append(choice)
            return
        if choice in self._generating:
            self._generating.remove(choice)
        self._release(choice)
        generation = choice.generation
        generation.unfinished -= 1
        if not generation.unfinished:
            generation.done()

    def _release(self, choice: Choice) -> None:
        choice.close()
        self._context.clear(choice.sequence)
        self._free.append(choice.sequence)

    def _release_base(self, generation: Generation) -> None:
        if generation.base is None:
            return
        generation.base = generation.first_logits = None
        chain = _base_chain(generation)
        self._prefixes.unpin(chain)
        if (sequence := self._prefixes.forget(chain)) is not None:
            self._context.clear(sequence)


def _base_chain(generation: Generation) -> Chain:
    """The key of a prompt that several choices continue; unlike any decision's, and any other generation's."""
    return ((-1, id(generation)), generation.job.prompt)

"""Runs the chats: several at once, a token of each in every decode, and a chunk of the oldest prompt beside them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from steelyard_runtime.engine.generations import Choice, Generation, Prefill
from steelyard_runtime.engine.interface import Logits
from steelyard_runtime.engine.json_output import JsonOutputError, problem_of
from steelyard_runtime.engine.llama import Context, LlamaError, Run
from steelyard_runtime.engine.meter import Meter
from steelyard_runtime.engine.places import UNNAMED, ChatPlaces
from steelyard_runtime.engine.prefixes import PrefixStore
from steelyard_runtime.engine.segments import TILE
from steelyard_runtime.engine.vitals import EngineBrokenError
from steelyard_runtime.legible import reason_of

KEPT_TOKENS = 32
"""A shorter prompt is evaluated again faster than it is worth keeping."""
DECISIONS_ABOUT_S = 30.0
"""For how long after a decision the chats expect another one."""
CHUNK_IN_DECISIONS = 3.0
"""Longest time of a chunk that nothing can interrupt, while decisions come: as a multiple of one decision's."""
CHUNK_BESIDE_CHATS_S = 1.0
"""Longest time of any other chunk while other chats generate, which have a token after each; at least a tile."""


class ChatBatcher:
    """Continuous batching of the generations that have left the queue; used on the engine's thread only.

    A generation with several choices has its prompt evaluated once; the other choices start from a snapshot of it. A
    chat's next turn starts from a snapshot of the last one.

    Attributes:
        sharing: Snapshots work on this model.

    Args:
        context: A context of its own, with a sequence for each choice that may run at the same time.
        prefixes: Where prompts and turns are kept.
        meter: Counts every decode.
        chunk_tokens: Most tokens of a prompt in one decode.
        reuse: Keep prompts and turns between requests, for the same caller.
        places: Says how many of the sequences callers without a name may hold together.
        on_progress: Called with the number of a caller's waiting tokens that were evaluated or given up.
        on_fault: Called with the generations that a fault belongs to: one, or all that shared a decode. It has to
            ``abandon`` them.
    """

    def __init__(
        self,
        context: Context,
        prefixes: PrefixStore,
        meter: Meter,
        *,
        chunk_tokens: int,
        reuse: bool,
        places: ChatPlaces,
        on_progress: Callable[[int, str], None],
        on_fault: Callable[[Sequence[Generation], Exception], None],
    ) -> None:
        self._context = context
        self._vocabulary = context.model.vocabulary
        self._prefixes = prefixes
        self._meter = meter
        sequences = context.shape.sequences
        self._free = list(reversed(range(sequences)))
        self._places = places
        self._chunk = min(chunk_tokens, context.shape.batch_tokens - sequences)
        self.sharing = False
        self._reuse = reuse
        self._on_progress = on_progress
        self._on_fault = on_fault
        self._decode_s = 0.0  # how long the last decode took
        self._placed: list[Choice] = []  # every choice that has a sequence
        self._starting: deque[Generation] = deque()
        self._prefills: deque[Prefill] = deque()
        self._generating: list[Choice] = []

    @property
    def active(self) -> int:
        """Choices that are generating or whose prompt is being evaluated."""
        return len(self._generating) + len(self._prefills)

    def has_room(self, caller: str) -> bool:
        """Tell whether a generation of ``caller`` could start now."""
        if any((g.job.caller == UNNAMED) == (caller == UNNAMED) for g in self._starting):
            return False
        return self._may_start(caller)

    def _may_start(self, caller: str) -> bool:
        """Tell whether a choice of ``caller`` may have a sequence: callers without a name leave some to the others."""
        if not self._free or caller != UNNAMED:
            return bool(self._free)
        unnamed = sum(choice.generation.job.caller == UNNAMED for choice in self._placed)
        return unnamed < self._places.for_unnamed(self._context.shape.sequences)

    @property
    def free_sequence(self) -> int | None:
        """A sequence that no choice has."""
        return self._free[-1] if self._free else None

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

    def step(self, *, between: Callable[[], None]) -> None:
        """Start what can start, then one decode.

        Args:
            between: Called in the middle of the decode of a prompt, if the context is interruptible.
        """
        self._start_choices()
        if not (self._generating or self._prefills):
            return
        choices = list(self._generating)
        runs = [Run([c.next_token], c.sequence, c.position, True) for c in choices]
        prefill = self._prefills[0] if self._prefills else None
        if prefill:
            runs.append(self._next_chunk(prefill))
        owners = [choice.generation for choice in (*choices, *([prefill.choice] if prefill else ()))]
        rows = self._decode(runs, owners, between=between if prefill else None)
        for choice, row in zip(choices, rows, strict=False):
            if row is not None and not choice.generation.over:  # another choice of it may have ended it a moment ago
                with self._blaming(choice.generation):
                    choice.advanced()
                    self._advance(choice, row)
        if prefill and rows:
            with self._blaming(prefill.generation):
                prefill.chunks.took(len(runs[-1].tokens), self._decode_s)
                if not prefill.generation.over:  # nor its prompt, then
                    self._chunk_done(prefill, runs[-1], rows[-1])

    @contextmanager
    def _blaming(self, generation: Generation) -> Iterator[None]:
        """Run a part of the work that only one generation can be blamed for."""
        try:
            yield
        except EngineBrokenError:
            raise
        except Exception as error:
            self._on_fault([generation], error)

    def _decode(
        self, runs: Sequence[Run], owners: Sequence[Generation], *, between: Callable[[], None] | None
    ) -> list[Logits | None]:
        """One decode; a row for each run, None where no logits are wanted or its generation failed."""
        tokens = sum(len(run.tokens) for run in runs)
        try:
            with self._meter.decoding(tokens, chat=True) as decode:
                found = iter(self._context.decode(runs, between=between))
            self._decode_s = decode.seconds
            return [next(found) if run.output else None for run in runs]
        except EngineBrokenError:
            raise
        except Exception as error:
            blamed = list({id(owner): owner for owner in owners}.values())
            if len(runs) == 1 or not (isinstance(error, LlamaError) and error.unchanged):
                self._on_fault(blamed, error)
                return []
        # Refused whole, for the sake of one of them: each by itself shows which.
        rows: list[Logits | None] = []
        for run, owner in zip(runs, owners, strict=True):
            rows += (self._decode([run], [owner], between=between) or [None]) if not owner.over else [None]
        return rows

    def abandon(self, generation: Generation) -> None:
        """Free everything that a generation holds here."""
        self._on_progress(generation.pending, generation.job.caller)
        generation.pending = 0
        if generation in self._starting:
            self._starting.remove(generation)
        for prefill in [p for p in self._prefills if p.generation is generation]:
            self._prefills.remove(prefill)
        for choice in [c for c in self._placed if c.generation is generation]:
            self._release(choice)
        generation.base = generation.first_logits = None

    def close(self) -> Iterable[Generation]:
        """Free the samplers at the end; returns what was still running."""
        left = self.generations()
        for choice in self._placed:
            choice.close()
        self._placed.clear()
        self._starting.clear()
        self._prefills.clear()
        self._generating.clear()
        return left

    def _next_chunk(self, prefill: Prefill) -> Run:
        prompt = prefill.generation.job.prompt
        chunk = prompt[prefill.position : prefill.position + self._chunk_tokens(prefill)]
        last = prefill.position + len(chunk) == len(prompt)
        return Run(chunk, prefill.choice.sequence, prefill.position, last)

    def _chunk_tokens(self, prefill: Prefill) -> int:
        meter = self._meter
        # llama.cpp cuts the batch where the shortest run ends: the first token shares a pass with the others' one.
        beside = 1 if self._generating else 0
        if self._context.interruptible:
            if not beside:
                return self._chunk
            tiles = prefill.chunks.next(budget_s=CHUNK_BESIDE_CHATS_S, most=self._chunk)
            return beside + max(tiles, min(TILE, self._chunk))
        if not meter.decision_s or time.monotonic() - meter.decided_at > DECISIONS_ABOUT_S:
            return beside + self._chunk
        budget_s = CHUNK_IN_DECISIONS * meter.decision_s
        return beside + prefill.chunks.next(budget_s=budget_s, most=self._chunk)

    def _chunk_done(self, prefill: Prefill, run: Run, logits: Logits | None) -> None:
        generation = prefill.generation
        prefill.position += len(run.tokens)
        generation.evaluated += len(run.tokens)
        self._progress(generation, len(run.tokens))
        if logits is None:
            return
        self._prefills.remove(prefill)
        self._meter.chat_prompt_took(prefill.chunks.tokens, prefill.chunks.seconds)
        generation.prefilled = time.monotonic()
        self._keep(generation, generation.job.prompt, run.sequence)
        if generation.unstarted and self.sharing:
            generation.base = self._context.save(run.sequence)
            generation.first_logits = logits
        self._advance(prefill.choice, logits)

    def _progress(self, generation: Generation, tokens: int) -> None:
        done = min(tokens, generation.pending)
        generation.pending -= done
        self._on_progress(done, generation.job.caller)

    def _start_choices(self) -> None:
        """Give free sequences to choices that wait: first come first served, among callers with a name and without."""
        for generation in list(self._starting):
            # It leaves when its last choice starts, or when it fails.
            started = True
            while started and generation in self._starting and self._may_start(generation.job.caller):
                with self._blaming(generation):
                    started = self._start_choice(generation)

    def _start_choice(self, generation: Generation) -> bool:
        """Start the next choice of ``generation``; False if it must wait until the first one has the prompt."""
        job = generation.job
        first = generation.unstarted == job.n
        if not first and self.sharing and generation.base is None:
            return False
        choice = Choice(generation, job.n - generation.unstarted, self._free[-1], self._vocabulary)
        self._placed.append(choice)
        self._free.pop()
        generation.unstarted -= 1
        if not generation.unstarted:
            self._starting.remove(generation)
        base, logits = generation.base, generation.first_logits
        if base is None or logits is None:
            self._prefills.append(Prefill(choice, self._restore_longest_prefix(choice) if first else 0))
            return True
        self._context.restore(base, choice.sequence)
        if not generation.unstarted:
            generation.base = generation.first_logits = None
        self._advance(choice, logits)
        return True

    def _restore_longest_prefix(self, choice: Choice) -> int:
        """Restore what was kept of the chat's earlier turns; how many tokens that is. One is left to be evaluated."""
        if not (self._reuse and self.sharing):
            return 0
        generation = choice.generation
        found = self._prefixes.longest_text(generation.job.prompt[:-1], caller=generation.job.caller)
        if found is None:
            return 0
        tokens, snapshot = found
        self._context.restore(snapshot, choice.sequence)
        generation.reused = tokens
        self._meter.counters.reused_tokens += tokens
        self._progress(generation, tokens)
        return tokens

    def _keep(self, generation: Generation, tokens: Sequence[int], sequence: int) -> None:
        """Keep what ``sequence`` holds, for the chat's next turn."""
        if not (self._reuse and self.sharing) or len(tokens) < KEPT_TOKENS:
            return
        caller = generation.job.caller
        if self._prefixes.has_text(tokens, caller=caller):
            return
        if self._prefixes.make_room(self._context.snapshot_bytes(sequence)):
            self._prefixes.keep_text(tokens, self._context.save(sequence), caller=caller)

    def _advance(self, choice: Choice, logits: Logits) -> None:
        """Choose a token; on the last one, free the choice and perhaps end the generation."""
        generation, generated = choice.generation, choice.generated
        try:
            finished = choice.take(logits)
        except JsonOutputError as error:
            generation.fail(problem_of(error))
            self.abandon(generation)
            return
        self._meter.counters.generated_tokens += choice.generated - generated
        if not finished:
            if choice not in self._generating:
                self._generating.append(choice)
            return
        if generation.job.n == 1 and choice.evaluated:
            self._keep(generation, [*generation.job.prompt, *choice.evaluated], choice.sequence)
        self._release(choice)
        generation.unfinished -= 1
        if not generation.unfinished:
            generation.done()

    def _release(self, choice: Choice) -> None:
        self._placed.remove(choice)
        if choice in self._generating:
            self._generating.remove(choice)
        choice.close()
        try:
            self._context.clear(choice.sequence)
        except Exception as error:
            raise EngineBrokenError(f"a chat's sequence cannot be emptied: {reason_of(error)}") from error
        self._free.append(choice.sequence)

"""Scores decisions, each alone: that is what makes its logits a function of the request, to the bit.

Every segment of a prompt is evaluated by itself in a scratch sequence, with boundaries that depend on nothing else; no
decode holds more than one question. What is kept between prompts is a snapshot of that sequence at a segment's end, so
going on from it and starting from nothing give the same bits.

Where that is given up for throughput (on GPUs), the tails of several prompts share a decode.

A job of several questions holds what its later ones begin with until the last of them has begun, because callers take
turns, and what others ask for in between would push it out of the store: its state would be evaluated once for every
question. What is held counts in the store. So that memory has a limit however many jobs have begun, only one snapshot
may be held that does not fit there: in the spare place. Its job keeps its turn until its questions took as many tokens
as evaluating it did. Then it stays while no other job needs the place; the job that does takes it, and the first one
evaluates its state again. So the engine holds no more than the store's capacity and one snapshot,
evaluates at most twice what it would for one job at a time, and has others wait for a large state about twice as long
as evaluating it takes anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic

from steelyard_runtime.decision import TokenCounts
from steelyard_runtime.engine.interface import HIDDEN_TAIL_TOKENS, Hidden, Logits, Score, ScoreJob, ScorePrompt, Tokens
from steelyard_runtime.engine.llama import Context, LlamaError, Run, Snapshot
from steelyard_runtime.engine.meter import Meter
from steelyard_runtime.engine.prefixes import Chain, Key, PrefixStore, key_of, length
from steelyard_runtime.engine.segments import close_segment, evaluate
from steelyard_runtime.errors import Kind, Problem

Wanted = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Held:
    """A prefix that a job holds for its later prompts, within the store's capacity.

    Attributes:
        chain: What was evaluated.
        until: The last prompt that needs it.
        snapshot: The sequence, which only this job finds; None where it is kept in the store, pinned.
    """

    chain: Chain
    until: int
    snapshot: Snapshot | None = None


@dataclass(slots=True, eq=False)
class ScoreRun:
    """A job on its way: what is scored, and what its other prompts will begin with.

    Attributes:
        job: The job.
        held: What later prompts begin with, by key.
        scores: One per prompt that is done.
        begun: Prompts of which all but the tail is evaluated, those that are done included.
    """

    job: ScoreJob
    held: dict[Key, Held] = field(default_factory=dict)
    scores: list[Score] = field(default_factory=list)
    begun: int = 0

    @property
    def next(self) -> ScorePrompt:
        """The first prompt that was not begun."""
        return self.job.prompts[self.begun]

    @property
    def prepared(self) -> bool:
        """Tell whether every prompt was begun."""
        return self.begun == len(self.job.prompts)

    @property
    def done(self) -> bool:
        """Tell whether every prompt has its score."""
        return len(self.scores) == len(self.job.prompts)

    def last_need(self, chain: Chain) -> int:
        """Index of the last prompt whose longest common prefix with the next one is ``chain``; 0 if there is none."""
        shared = self.next.shared
        longer, prompts = shared[: len(chain) + 1], self.job.prompts
        for index in range(len(prompts) - 1, self.begun, -1):
            other = prompts[index].shared
            if other[: len(chain)] == chain and (chain == shared or other[: len(longer)] != longer):
                return index
        return 0


@dataclass(slots=True, eq=False)
class Spare:
    """The one snapshot that is held although it does not fit into the store.

    Attributes:
        run: Whose it is.
        key: Of its chain.
        snapshot: The sequence.
        until: The last prompt that needs it.
        owed: Tokens that the run's questions may take yet before others have their turn.
    """

    run: ScoreRun
    key: Key
    snapshot: Snapshot
    until: int
    owed: int


@dataclass(frozen=True, slots=True, eq=False)
class Ready:
    """A prompt of which only the tail is missing.

    Attributes:
        run: The job that it is the next prompt of.
        tail: What is missing.
        hidden: The hidden state is wanted.
        sequence: Where the rest is.
        start: Tokens that did not have to be evaluated.
        position: Of the tail's first token.
        queue_ms: How long it waited.
        began: When the engine began, ``time.monotonic()``.
    """

    run: ScoreRun
    tail: tuple[int, ...] | Tokens
    hidden: bool
    sequence: int
    start: int
    position: int
    queue_ms: float
    began: float


class Scorer:
    """Evaluates score jobs on the engine's thread.

    Attributes:
        sharing: Snapshots are exact on this model; else every prompt is evaluated from the beginning.

    Args:
        context: The context; this object uses the sequences of ``scratch``.
        prefixes: What is kept between jobs.
        meter: Counts every decode.
        scratch: Sequences of its own: one, or as many as prompts may be scored together.
        reuse: Keep what has no caller's text in it (instructions, questions) between jobs.
        reuse_private: Keep what has, for the same caller.
    """

    def __init__(
        self,
        context: Context,
        prefixes: PrefixStore,
        meter: Meter,
        *,
        scratch: Sequence[int],
        reuse: bool,
        reuse_private: bool,
    ) -> None:
        self._context = context
        self._prefixes = prefixes
        self._meter = meter
        self._scratch = scratch
        self.sharing = False
        self._reuse = reuse
        self._reuse_private = reuse and reuse_private
        self._spare: Spare | None = None

    @property
    def spare_bytes(self) -> int:
        """Bytes of the snapshot that does not fit into the store."""
        spare = self._spare
        return len(spare.snapshot) if spare else 0

    def keeps_turn(self, run: ScoreRun) -> bool:
        """Tell whether ``run`` keeps its turn: what it holds would be evaluated again after the others' turns."""
        return self._spare is not None and self._spare.run is run and self._spare.owed > 0

    def release(self, run: ScoreRun) -> None:
        """Release everything that ``run`` holds: it is over."""
        self._release(run, begun=len(run.job.prompts))

    def _release(self, run: ScoreRun, *, begun: int) -> None:
        """Release what none of the prompts from ``begun`` on needs."""
        for key in [key for key, held in run.held.items() if held.until < begun]:
            held = run.held.pop(key)
            if held.snapshot is None:
                self._prefixes.unpin(held.chain, caller=run.job.caller)
            else:
                self._prefixes.release(len(held.snapshot))
        if self._spare is not None and self._spare.run is run and self._spare.until < begun:
            self._spare = None

    def missing(self, chain: Chain, *, caller: str) -> int:
        """Tokens of ``chain`` that would have to be evaluated now. Safe from any thread."""
        return self._prefixes.missing(chain, caller=caller) if self.sharing and self._reuse else length(chain)

    def score_next(self, run: ScoreRun, *, queue_ms: float, wanted: Wanted) -> None:
        """Score the next prompt of ``run``, alone.

        Args:
            run: The job; it must not be done.
            queue_ms: How long it waited, to be reported.
            wanted: Called between decodes; raises when the answer is no longer wanted.
        """
        try:
            ready = self.prepare(run, at=self._scratch[0], queue_ms=queue_ms, wanted=wanted)
            if ready.hidden:
                ((logits, hidden),) = self._decode([ready], hidden=True)
            else:
                logits, hidden = self._evaluated(ready, wanted=wanted), None
        finally:
            self._context.clear(self._scratch[0])
        self._record(ready, logits, hidden)

    def prepare(self, run: ScoreRun, *, at: int, queue_ms: float, wanted: Wanted) -> Ready:
        """Evaluate all but the tail of the next prompt of ``run`` in the sequence ``at``, which must be empty."""
        began = monotonic()
        prompt = run.next
        known = self._restore_longest_prefix(run, prompt.shared, at=at, wanted=wanted)
        start = position = length(prompt.shared[:known])
        for end, segment in enumerate(prompt.shared[known:], known + 1):
            self._evaluate(segment.tokens, sequence=at, position=position, output=False, wanted=wanted)
            position += len(segment.tokens)
            self._keep_segment(run, prompt.shared[:end], at=at)
        tail = prompt.tail
        if prompt.hidden and (cut := len(tail) - HIDDEN_TAIL_TOKENS) > 0:
            self._evaluate(tail[:cut], sequence=at, position=position, output=False, wanted=wanted)
            tail, position = tail[cut:], position + cut
        if self._spare is not None and self._spare.run is run:
            self._spare.owed -= len(prompt.tail)
        run.begun += 1
        self._release(run, begun=run.begun)
        return Ready(run, tail, prompt.hidden, at, start, position, queue_ms, began)

    def score_batch(self, batch: Sequence[Ready]) -> None:
        """Score prompts whose tails fit in one decode. Not exact: the bits depend on the company."""
        rows: dict[int, tuple[Logits, Hidden | None]] = {}
        try:
            for hidden in (False, True):
                some = [index for index, ready in enumerate(batch) if ready.hidden is hidden]
                rows.update(zip(some, self._decode([batch[index] for index in some], hidden=hidden), strict=True))
        finally:
            for ready in batch:
                self._context.clear(ready.sequence)
        for index, ready in enumerate(batch):
            self._record(ready, *rows[index])

    def _decode(self, batch: Sequence[Ready], *, hidden: bool) -> Sequence[tuple[Logits, Hidden | None]]:
        """One decode of the tails of ``batch``, all of which want the hidden state, or none."""
        if not batch:
            return []
        runs = [Run(ready.tail, ready.sequence, ready.position, True) for ready in batch]
        with self._meter.decoding(sum(len(ready.tail) for ready in batch)):
            if hidden:
                return self._context.decode_hidden(runs)
            return [(logits, None) for logits in self._context.decode(runs)]

    def _evaluated(self, ready: Ready, *, wanted: Wanted) -> Logits:
        """The logits after the tail of ``ready``, which may take several decodes."""
        logits = self._evaluate(
            ready.tail, sequence=ready.sequence, position=ready.position, output=True, wanted=wanted
        )
        if logits is None:
            raise LlamaError("a decode gave no logits")
        return logits

    def discard(self, sequence: int) -> None:
        """Empty a sequence whose prompt is no longer wanted."""
        self._context.clear(sequence)

    def _record(self, ready: Ready, logits: Logits, hidden: Hidden | None) -> None:
        prompt = ready.position + len(ready.tail)
        counts = TokenCounts(prompt=prompt, evaluated=prompt - ready.start, reused=ready.start)
        self._meter.counters.reused_tokens += ready.start
        self._meter.counters.decisions += 1
        taken = monotonic() - ready.began
        self._meter.decision_took(taken)
        score = Score(logits=logits, tokens=counts, queue_ms=ready.queue_ms, engine_ms=taken * 1000, hidden=hidden)
        ready.run.scores.append(score)

    def warm(self, chain: Chain) -> None:
        """Evaluate ``chain``, which has no caller's text, and keep it for good.

        Raises:
            Problem: It does not fit beside what is kept for good already.
        """
        if not (self.sharing and self._reuse):
            return
        scratch, position = self._scratch[0], 0
        try:
            for end, segment in enumerate(chain, 1):
                self._evaluate(segment.tokens, sequence=scratch, position=position, output=False, wanted=lambda: None)
                position += len(segment.tokens)
                snapshot = close_segment(self._context, scratch, save=True)
                assert snapshot is not None  # noqa: S101 - save=True
                last = end == len(chain)
                self._prefixes.keep(chain[:end], snapshot, caller="", saves=position, pin=last)
                if last and self._prefixes.missing(chain, caller=""):
                    raise Problem(
                        Kind.INVALID,
                        f"the prefix of {position} tokens takes {len(snapshot)} bytes, which do not fit beside what "
                        "is kept for good and what requests in progress need; raise prefix_cache_mib",
                    )
        finally:
            self._context.clear(scratch)

    def _restore_longest_prefix(self, run: ScoreRun, chain: Chain, *, at: int, wanted: Wanted) -> int:
        """Restore the longest kept prefix of ``chain`` into the sequence ``at``; how many segments it has."""
        wanted()
        if not self.sharing:
            return 0
        caller = run.job.caller
        found = self._prefixes.longest(chain, caller=caller) if self._reuse else None
        end, snapshot = found or (0, None)
        for longer in range(len(chain), end, -1):
            if (own := self._own(run, key_of(chain[:longer], caller=caller))) is not None:
                end, snapshot = longer, own
                break
        else:
            self._pin(run, chain[:end])
        counters = self._meter.counters
        counters.prefix_hits += snapshot is not None
        counters.prefix_misses += end < len(chain)
        if snapshot is not None:
            self._context.restore(snapshot, at)
        return end

    def _own(self, run: ScoreRun, key: Key) -> Snapshot | None:
        """Return a snapshot that only ``run`` finds."""
        spare = self._spare
        if spare is not None and spare.run is run and spare.key == key:
            return spare.snapshot
        held = run.held.get(key)
        return held.snapshot if held else None

    def _pin(self, run: ScoreRun, chain: Chain) -> None:
        """Hold what was found in the store, if a later prompt needs it."""
        caller = run.job.caller
        key = key_of(chain, caller=caller)
        if (
            chain
            and key not in run.held
            and (until := run.last_need(chain))
            and self._prefixes.pin(chain, caller=caller)
        ):
            run.held[key] = Held(chain, until)

    def _keep_segment(self, run: ScoreRun, chain: Chain, *, at: int) -> None:
        """Close a segment, and keep the sequence ``at``, which holds ``chain``, for later prompts and requests."""
        private = any(segment.private for segment in chain)
        keep = self.sharing and (self._reuse_private if private else self._reuse)
        until = run.last_need(chain) if self.sharing else 0
        fits = (keep or until > 0) and self._prefixes.make_room(self._context.snapshot_bytes(at))
        if until and not fits:
            self._spare = None  # before the snapshot is made, so that there are never two
        snapshot = close_segment(self._context, at, save=fits or until > 0)
        if snapshot is None:
            return
        caller = run.job.caller
        key = key_of(chain, caller=caller)
        if until and not fits:
            self._spare = Spare(run, key, snapshot, until, owed=length(chain))
        elif fits and keep:
            self._prefixes.keep(chain, snapshot, caller=caller, saves=length(chain))
            self._pin(run, chain)
        elif fits and self._prefixes.reserve(len(snapshot)):
            run.held[key] = Held(chain, until, snapshot)

    def _evaluate(
        self, tokens: Sequence[int], *, sequence: int, position: int, output: bool, wanted: Wanted
    ) -> Logits | None:
        return evaluate(
            self._context,
            tokens,
            sequence=sequence,
            position=position,
            output=output,
            decoding=self._meter.decoding,
            between=wanted,
        )

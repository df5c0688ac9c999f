"""Scores decisions, each alone: that is what makes its logits a function of the request, to the bit.

Every segment of a prompt is evaluated by itself in the scratch sequence, with boundaries that depend on nothing else;
no decode holds more than one question. What is kept between prompts is a snapshot of the scratch sequence at the end of
a segment, so going on from it and starting from nothing give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic

from switchyard_runtime.decision import TokenCounts
from switchyard_runtime.engine.interface import Logits, Score, ScoreJob
from switchyard_runtime.engine.llama import Context, LlamaError, Snapshot
from switchyard_runtime.engine.meter import Meter
from switchyard_runtime.engine.prefixes import Chain, Key, PrefixStore, key_of, length
from switchyard_runtime.engine.segments import evaluate, settle

Wanted = Callable[[], None]


@dataclass(slots=True, eq=False)
class ScoreRun:
    """A job on its way: what is scored, and what its other prompts will begin with.

    Attributes:
        job: The job.
        own: Snapshots that live as long as the job.
        scores: One per prompt that is done.
    """

    job: ScoreJob
    own: dict[Key, Snapshot] = field(default_factory=dict)
    scores: list[Score] = field(default_factory=list)

    @property
    def done(self) -> bool:
        """Whether every prompt has its score."""
        return len(self.scores) == len(self.job.prompts)

    def needs(self, chain: Chain) -> bool:
        """Whether a later prompt of this job begins with ``chain``."""
        later = self.job.prompts[len(self.scores) + 1 :]
        return any(prompt.shared[: len(chain)] == chain for prompt in later)


class Scorer:
    """Evaluates score jobs on the engine's thread.

    Attributes:
        sharing: Snapshots are exact on this model; else every prompt is evaluated from the beginning.

    Args:
        context: The context; this object uses ``scratch``.
        prefixes: What is kept between jobs.
        meter: Counts every decode.
        scratch: A sequence of its own.
        reuse: Keep what has no caller's text in it (instructions, questions) between jobs.
        reuse_private: Keep what has, for the same caller.
    """

    def __init__(
        self,
        context: Context,
        prefixes: PrefixStore,
        meter: Meter,
        *,
        scratch: int,
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

    def missing(self, chain: Chain, *, caller: str) -> int:
        """Tokens of ``chain`` that would have to be evaluated now. Safe from any thread."""
        return self._prefixes.missing(chain, caller=caller) if self.sharing and self._reuse else length(chain)

    def next(self, run: ScoreRun, *, queue_ms: float, wanted: Wanted) -> None:
        """Score the next prompt of ``run``.

        Args:
            run: The job; it must not be done.
            queue_ms: How long it waited, to be reported.
            wanted: Called between decodes; raises when the answer is no longer wanted.
        """
        began = monotonic()
        prompt = run.job.prompts[len(run.scores)]
        try:
            known = self._begin(run, prompt.shared, wanted)
            start = position = length(prompt.shared[:known])
            for end, segment in enumerate(prompt.shared[known:], known + 1):
                self._evaluate(segment.tokens, position=position, output=False, wanted=wanted)
                position += len(segment.tokens)
                self._end_segment(run, prompt.shared[:end])
            logits = self._evaluate(prompt.tail, position=position, output=True, wanted=wanted)
        finally:
            self._context.clear(self._scratch)
        if logits is None:
            raise LlamaError("a decode gave no logits")
        counts = TokenCounts(prompt=len(prompt), evaluated=len(prompt) - start, reused=start)
        self._meter.counters.reused_tokens += start
        taken = monotonic() - began
        self._meter.served(taken)
        run.scores.append(Score(logits=logits, tokens=counts, queue_ms=queue_ms, engine_ms=taken * 1000))

    def warm(self, chain: Chain) -> None:
        """Evaluate ``chain``, which has no caller's text, and keep it for good."""
        if not (self.sharing and self._reuse):
            return
        try:
            position = 0
            for end, segment in enumerate(chain, 1):
                self._evaluate(segment.tokens, position=position, output=False, wanted=lambda: None)
                position += len(segment.tokens)
                snapshot = settle(self._context, self._scratch, save=True)
                assert snapshot is not None  # noqa: S101 - save=True
                kept = self._prefixes.keep(chain[:end], snapshot, caller="", saves=position, pin=end == len(chain))
                if end == len(chain) and not kept and self._prefixes.missing(chain, caller=""):
                    raise LlamaError(f"{len(snapshot)} bytes do not fit beside the prefixes that are kept for good")
        finally:
            self._context.clear(self._scratch)

    def _begin(self, run: ScoreRun, chain: Chain, wanted: Wanted) -> int:
        """Put the longest known beginning of ``chain`` into the scratch sequence; how many segments it has."""
        wanted()
        if not self.sharing:
            return 0
        caller = run.job.caller
        found = self._prefixes.longest(chain, caller=caller) if self._reuse else None
        end, snapshot = found or (0, None)
        for longer in range(len(chain), end, -1):
            if (own := run.own.get(key_of(chain[:longer], caller=caller))) is not None:
                end, snapshot = longer, own
                break
        counters = self._meter.counters
        counters.prefix_hits += snapshot is not None
        counters.prefix_misses += end < len(chain)
        if snapshot is not None:
            self._context.restore(snapshot, self._scratch)
        return end

    def _end_segment(self, run: ScoreRun, chain: Chain) -> None:
        """Keep the scratch sequence, which holds ``chain``, for whoever may need it."""
        private = any(segment.private for segment in chain)
        store = self.sharing and (self._reuse_private if private else self._reuse)
        needed = self.sharing and run.needs(chain)
        snapshot = settle(self._context, self._scratch, save=store or needed)
        if snapshot is None:
            return
        caller = run.job.caller
        kept = store and self._prefixes.keep(chain, snapshot, caller=caller, saves=length(chain))
        if needed and not kept:
            run.own[key_of(chain, caller=caller)] = snapshot

    def _evaluate(self, tokens: Sequence[int], *, position: int, output: bool, wanted: Wanted) -> Logits | None:
        return evaluate(
            self._context,
            tokens,
            sequence=self._scratch,
            position=position,
            output=output,
            decoding=self._meter.decoding,
            between=wanted,
        )

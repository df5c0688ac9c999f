"""Scores decisions, each alone: that is what makes its logits a function of the request, to the bit.

Shared segments are evaluated one by one with fixed boundaries and kept in sequences of their own; a question's tail is
evaluated in the scratch sequence, on a whole copy of them, and no decode holds more than one question.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

from switchyard_runtime.decision import TokenCounts
from switchyard_runtime.engine.interface import Logits, Score, ScoreJob
from switchyard_runtime.engine.llama import Context, LlamaError
from switchyard_runtime.engine.meter import Meter
from switchyard_runtime.engine.prefixes import Chain, PrefixStore, length
from switchyard_runtime.engine.segments import evaluate

Wanted = Callable[[], None]


@dataclass(frozen=True, slots=True)
class _Base:
    """What a job can build on: a kept chain, its sequence, and the tokens evaluated to have it."""

    chain: Chain
    sequence: int | None
    evaluated: int


class Scorer:
    """Evaluates score jobs on the engine's thread.

    Args:
        context: The context; this object uses ``scratch`` and the sequences of ``prefixes``.
        prefixes: Kept prefixes.
        meter: Counts every decode.
        scratch: A sequence of its own.
        sharing: Whole-sequence copies are exact on this model; else every tail is evaluated from the beginning.
        reuse: Keep prefixes between jobs.
    """

    def __init__(
        self, context: Context, prefixes: PrefixStore, meter: Meter, *, scratch: int, sharing: bool, reuse: bool
    ) -> None:
        self._context = context
        self._prefixes = prefixes
        self._meter = meter
        self._scratch = scratch
        self._sharing = sharing
        self._reuse = reuse

    def score(self, job: ScoreJob, *, queue_ms: float, wanted: Wanted) -> list[Score]:
        """One score per tail, in order.

        Tokens evaluated for the shared segments are counted with the first tail.

        Args:
            job: What to score.
            queue_ms: How long the job waited, to be reported.
            wanted: Called between decodes; raises when the answer is no longer wanted.
        """
        before = monotonic()
        base = self._prepare(job, wanted)
        fresh = base.evaluated
        scores: list[Score] = []
        try:
            for tail in job.tails:
                wanted()
                logits, evaluated = self._tail(job.shared, base, tail, wanted)
                prompt, evaluated, fresh = length(job.shared) + len(tail), evaluated + fresh, 0
                now = monotonic()
                self._meter.counters.reused_tokens += prompt - evaluated
                counts = TokenCounts(prompt=prompt, evaluated=evaluated, reused=prompt - evaluated)
                scores.append(Score(logits=logits, tokens=counts, queue_ms=queue_ms, engine_ms=(now - before) * 1000))
                before = now
        finally:
            if not self._reuse:
                self.drop(base.chain)
        return scores

    def drop(self, chain: Chain) -> None:
        """Forget a kept chain and every kept beginning of it."""
        for end in range(len(chain), 0, -1):
            if (sequence := self._prefixes.forget(chain[:end])) is not None:
                self._context.clear(sequence)

    def _prepare(self, job: ScoreJob, wanted: Wanted) -> _Base:
        """Have the shared segments in a kept sequence, as far as that pays.

        The first segment (the instructions) serves every job; the rest serves the other questions of this one.
        """
        if not self._sharing:
            return _Base((), None, 0)
        wish = job.shared if len(job.tails) > 1 else job.shared[:1] if self._reuse else ()
        found = self._prefixes.longest(job.shared)
        chain, home = found or ((), None)
        counters = self._meter.counters
        counters.prefix_hits += found is not None
        counters.prefix_misses += len(chain) < len(wish)
        evaluated = 0
        while len(chain) < len(wish):
            longer = job.shared[: len(chain) + 1]
            claimed = self._prefixes.claim(longer, keep=chain)
            if claimed is None:
                break
            sequence, dirty = claimed
            try:
                if dirty:
                    self._context.clear(sequence)
                if home is not None:
                    self._context.copy(home, sequence)
                self._evaluate(longer[-1], sequence=sequence, position=length(chain), output=False, wanted=wanted)
            except BaseException:
                self.drop(longer)
                raise
            evaluated += len(longer[-1])
            chain, home = longer, sequence
        return _Base(chain, home, evaluated)

    def _tail(self, shared: Chain, base: _Base, tail: Sequence[int], wanted: Wanted) -> tuple[Logits, int]:
        """Logits after one tail, and the tokens evaluated for it."""
        start = position = length(base.chain)
        try:
            if base.sequence is not None:
                self._context.copy(base.sequence, self._scratch)
            for segment in shared[len(base.chain) :]:
                self._evaluate(segment, sequence=self._scratch, position=position, output=False, wanted=wanted)
                position += len(segment)
            logits = self._evaluate(tail, sequence=self._scratch, position=position, output=True, wanted=wanted)
        finally:
            self._context.clear(self._scratch)
        if logits is None:
            raise LlamaError("a decode gave no logits")
        return logits, position + len(tail) - start

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

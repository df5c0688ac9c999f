"""The engine: one thread owns the context and loops. Decisions first, then one step of all running chats.

A decision is scored alone: its prefixes by fixed segments, one question in a decode, in a sequence that nothing else
touches. That is what makes its logits a function of the request, to the bit. Chats share decodes with each other.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import numpy as np

from switchyard_runtime.decision import TokenCounts
from switchyard_runtime.engine.interface import (
    Counters,
    Done,
    EmbeddingJob,
    EngineIdentity,
    Event,
    GenerationJob,
    Health,
    Logits,
    Piece,
    Score,
    ScoreJob,
)
from switchyard_runtime.engine.llama import Context, ContextShape, LlamaError, Run, json_grammar
from switchyard_runtime.engine.prefixes import Chain, PrefixStore, length
from switchyard_runtime.engine.segments import evaluate
from switchyard_runtime.engine.work import CallerLeftError, Choice, Generation, Prefill, Ticket
from switchyard_runtime.errors import Kind, Problem, over_budget

log = logging.getLogger(__name__)

SCRATCH = 0
RATE_WEIGHT = 0.2
RATE_TOKENS = 16
ScoreTicket = Ticket[ScoreJob, list[Score]]
EmbeddingTicket = Ticket[EmbeddingJob, list[Logits]]


class LlamaEngine:
    """The ``Engine`` over llama.cpp.

    Args:
        context: Model and context; owned from now on.
        identity: What answers say about this engine.
        chats: Choices generated at the same time; sequences 1 to ``chats``.
        chat_chunk_tokens: Tokens of a chat's prompt in one decode; what a decision waits for at most.
        reuse_prefixes: Keep prefixes between requests.
        queue_limit: Requests that may wait.
        decode_timeout_s: A decode longer than this is reported by ``health``.
    """

    def __init__(
        self,
        context: Context,
        identity: EngineIdentity,
        *,
        chats: int,
        chat_chunk_tokens: int,
        reuse_prefixes: bool,
        queue_limit: int,
        decode_timeout_s: float,
    ) -> None:
        self._context = context
        self._vocabulary = context.model.vocabulary
        self._identity = identity
        self._sharing = identity.probe.prefix_sharing
        self._reuse = reuse_prefixes
        self._chunk = min(chat_chunk_tokens, context.shape.batch_tokens - chats)
        self._queue_limit = queue_limit
        self._decode_timeout = decode_timeout_s
        self._allowed = identity.model.context_tokens
        self._counters = Counters()
        self._prefixes = PrefixStore(range(chats + 1, context.shape.sequences))
        self._free_chats = list(range(chats, 0, -1))
        self._embedder: Context | None = None

        self._wake = threading.Condition()
        self._short: deque[ScoreTicket | EmbeddingTicket] = deque()
        self._waiting: deque[Generation] = deque()
        self._starting: deque[Generation] = deque()
        self._prefills: deque[Prefill] = deque()
        self._generating: list[Choice] = []
        self._pending_tokens = 0
        self._rate = 0.0
        self._decode_started: float | None = None
        self._ready = False
        self._draining = False
        self._stop_at: float | None = None
        self._death: str | None = None
        self._thread = threading.Thread(target=self._run, name="switchyard-engine", daemon=True)

    # --- what other threads call -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread: warm-up and self-test, then work. ``health`` tells when it is ready."""
        self._thread.start()

    def wait_ready(self, *, timeout_s: float) -> None:
        """Block until the self-test passed.

        Raises:
            LlamaError: The self-test failed or took too long.
        """
        until = time.monotonic() + timeout_s
        with self._wake:
            while not self._ready and self._death is None and time.monotonic() < until:
                self._wake.wait(0.2)
        if not self._ready:
            raise LlamaError(self._death or f"the self-test did not finish within {timeout_s:.0f} s")

    @property
    def identity(self) -> EngineIdentity:
        """The engine's part of every answer's identity."""
        return self._identity

    @property
    def counters(self) -> Counters:
        """Totals since start."""
        counters = self._counters
        counters.queue_depth = len(self._short) + len(self._waiting)
        counters.active_generations = len(self._generating) + len(self._prefills)
        counters.prefix_evictions = self._prefixes.evictions
        return counters

    def health(self) -> Health:
        """See ``interface.Health``."""
        if self._death is not None:
            return Health(ready=False, reason=self._death, dead=True)
        if not self._ready:
            return Health(ready=False, reason="the model is loaded and its self-test is running")
        if not self._thread.is_alive():
            return Health(ready=False, reason="the engine's thread has ended", dead=not self._draining)
        started = self._decode_started
        if started is not None and (overdue := time.monotonic() - started) > self._decode_timeout:
            return Health(ready=False, reason=f"a decode has been running for {overdue:.1f} s")
        if self._draining:
            return Health(ready=False, reason="shutting down")
        return Health(ready=True)

    def encode(self, pieces: Sequence[Piece], *, start: bool) -> list[int]:
        """See ``interface.Engine.encode``."""
        return self._vocabulary.encode(pieces, start=start)

    def token_bytes(self, token_id: int) -> bytes:
        """See ``interface.Engine.token_bytes``."""
        return self._vocabulary.token_bytes(token_id)

    def grammar(self, schema: dict[str, Any] | None) -> str:
        """See ``interface.Engine.grammar``."""
        try:
            return json_grammar(schema)
        except ValueError as error:
            raise Problem(
                Kind.INVALID,
                f"the JSON schema cannot be turned into a grammar ({error}); simplify it",
                param="response_format.json_schema.schema",
            ) from error

    def submit_score(self, job: ScoreJob) -> Future[list[Score]]:
        """See ``interface.Engine``."""
        shared = length(job.shared)
        if not job.tails or not all(job.tails) or not all(job.shared):
            raise ValueError("a score job needs at least one tail, and no empty segment")
        for tail in job.tails:
            if shared + len(tail) > self._allowed:
                raise over_budget(counted=shared + len(tail), allowed=self._allowed)
        ticket: ScoreTicket = Ticket(job, shared + sum(map(len, job.tails)), job.deadline)
        self._admit_short(ticket)
        return ticket.future

    def submit_embedding(self, job: EmbeddingJob) -> Future[list[Logits]]:
        """See ``interface.Engine``."""
        if self._identity.model.pooling in ("none", "rank"):
            raise Problem(
                Kind.UNSUPPORTED, f"the model {self._identity.model.file_name} has no pooling and gives no embeddings"
            )
        for tokens in job.inputs:
            if len(tokens) > self._allowed:
                raise over_budget(counted=len(tokens), allowed=self._allowed, what="An input", param="input")
        ticket: EmbeddingTicket = Ticket(job, sum(map(len, job.inputs)), job.deadline)
        self._admit_short(ticket)
        return ticket.future

    def submit_generation(self, job: GenerationJob, on_event: Callable[[Event], None]) -> Callable[[], None]:
        """See ``interface.Engine``."""
        if not job.prompt:
            raise ValueError("a generation needs a prompt")
        if len(job.prompt) + job.sampling.max_tokens > self._allowed:
            raise over_budget(
                counted=len(job.prompt) + job.sampling.max_tokens,
                allowed=self._allowed,
                what="The prompt with max_tokens",
            )
        generation = Generation(job, on_event, pending=len(job.prompt), unstarted=job.n, unfinished=job.n)
        with self._wake:
            self._check_open(len(job.prompt), job.deadline)
            self._pending_tokens += len(job.prompt)
            self._waiting.append(generation)
            self._counters.generations += 1
            self._wake.notify_all()

        def cancel() -> None:
            with self._wake:
                generation.cancelled = True
                self._wake.notify_all()

        return cancel

    def start_draining(self) -> None:
        """See ``interface.Engine``."""
        with self._wake:
            self._draining = True
            self._wake.notify_all()

    def close(self, *, timeout_s: float) -> None:
        """See ``interface.Engine``."""
        with self._wake:
            self._draining = True
            self._stop_at = time.monotonic() + timeout_s
            self._wake.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout_s + self._decode_timeout)

    # --- admission ---------------------------------------------------------------------------------------------------

    def _admit_short(self, ticket: ScoreTicket | EmbeddingTicket) -> None:
        with self._wake:
            self._check_open(ticket.tokens, ticket.deadline)
            self._pending_tokens += ticket.tokens
            self._short.append(ticket)
            self._wake.notify_all()

    def _check_open(self, tokens: int, deadline: float) -> None:
        """Refuse what cannot be answered in time, before any work is done."""
        if self._death is not None:
            raise self._refusal(Kind.ENGINE_FAILED, f"the engine has failed: {self._death}")
        if self._draining:
            raise self._refusal(
                Kind.DRAINING, "the server is shutting down; send the request to another instance", 1000
            )
        if not self._ready:
            raise self._refusal(Kind.NOT_READY, "the model is still loading; try again shortly", 1000)
        waiting = len(self._short) + len(self._waiting)
        ahead = self._seconds(self._pending_tokens)
        if waiting >= self._queue_limit:
            raise self._refusal(
                Kind.BUSY,
                f"{waiting} requests are waiting and {self._queue_limit} may; try again later",
                max(100, math.ceil(ahead * 500)),
            )
        own, left = self._seconds(tokens), deadline - time.monotonic()
        if own > left:
            raise Problem(
                Kind.OVER_BUDGET,
                f"The request has {tokens} tokens to evaluate, which takes about {own:.1f} s on this machine, and "
                f"{max(left, 0):.1f} s are left; shorten it, or raise deadline_s on the server.",
                counts={"counted_tokens": tokens, "allowed_tokens": int(self._rate * max(left, 0))},
            )
        if ahead + own > left:
            raise self._refusal(
                Kind.BUSY,
                f"about {ahead:.1f} s of work are ahead and this request needs {own:.1f} s more, "
                f"but its deadline is in {left:.1f} s; try again later",
                max(100, math.ceil((ahead + own - left) * 1000)),
            )

    def _refusal(self, kind: Kind, message: str, retry_after_ms: int | None = None) -> Problem:
        self._counters.rejected += 1
        return Problem(kind, message, retry_after_ms=retry_after_ms)

    def _seconds(self, tokens: int) -> float:
        return tokens / self._rate if self._rate else 0.0

    # --- the owner thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._self_test()
            with self._wake:
                self._ready = True
                self._wake.notify_all()
            while self._step():
                pass
            self._fail_all(Problem(Kind.DRAINING, "the server shut down before this request was finished"))
        except Exception as error:  # the engine is gone; /ping says so and the process ends
            log.exception("the engine died")
            with self._wake:
                self._death = f"{type(error).__name__}: {error}"
                self._wake.notify_all()
            self._fail_all(Problem(Kind.ENGINE_FAILED, "the engine failed while working on this request"))
        finally:
            if self._embedder:
                self._embedder.close()
            self._context.close()

    def _step(self) -> bool:
        """One decision, then one decode of the chats; False when it is time to end."""
        ticket = self._next_ticket()
        if ticket is _END:
            return False
        if isinstance(ticket, Ticket):
            self._work(ticket)
        self._sweep()
        self._start_generations()
        if self._generating or self._prefills:
            self._step_chats()
        return True

    def _next_ticket(self) -> ScoreTicket | EmbeddingTicket | object | None:
        with self._wake:
            while True:
                if self._stop_at is not None and (self._idle() or time.monotonic() >= self._stop_at):
                    return _END
                if self._short:
                    return self._short.popleft()
                if not self._idle():
                    return None
                self._wake.wait(0.5)

    def _idle(self) -> bool:
        return not (self._short or self._waiting or self._starting or self._prefills or self._generating)

    def _work(self, ticket: ScoreTicket | EmbeddingTicket) -> None:
        try:
            self._still_wanted(ticket)
            if isinstance(ticket.job, ScoreJob):
                ticket.resolve(self._score(ticket, ticket.job))
                self._counters.decisions += len(ticket.job.tails)
            else:
                ticket.resolve(self._embed(ticket, ticket.job))
                self._counters.embeddings += len(ticket.job.inputs)
        except CallerLeftError:
            self._counters.cancelled += 1
            ticket.fail(CallerLeftError())
        except Problem as problem:
            self._counters.rejected += 1
            ticket.fail(problem)
        except BaseException:
            ticket.fail(Problem(Kind.ENGINE_FAILED, "the engine failed while working on this request"))
            raise
        finally:
            self._settle(ticket.tokens)

    def _settle(self, tokens: int) -> None:
        """Take evaluated or abandoned tokens off the work ahead."""
        with self._wake:
            self._pending_tokens -= tokens

    def _still_wanted(self, ticket: ScoreTicket | EmbeddingTicket) -> None:
        if ticket.future.cancelled():
            raise CallerLeftError
        if (late := time.monotonic() - ticket.deadline) > 0:
            raise Problem(
                Kind.DEADLINE,
                f"the request was not answered within its deadline ({late:.1f} s late); try again later",
                retry_after_ms=1000,
            )

    @contextmanager
    def _decoding(self, tokens: int) -> Iterator[None]:
        """Account for one decode: the watchdog, the counters, the measured rate."""
        started = self._decode_started = time.monotonic()
        try:
            yield
        finally:
            self._decode_started = None
        taken = time.monotonic() - started
        self._counters.decodes += 1
        self._counters.decoded_tokens += tokens
        self._counters.busy_seconds += taken
        if tokens >= RATE_TOKENS and taken > 0:
            rate = tokens / taken
            self._rate = rate if not self._rate else (1 - RATE_WEIGHT) * self._rate + RATE_WEIGHT * rate

    # --- decisions ---------------------------------------------------------------------------------------------------

    def _evaluate(
        self, tokens: Sequence[int], *, sequence: int, position: int, output: bool, wanted: Callable[[], None]
    ) -> Logits | None:
        """One segment, alone; see ``segments.evaluate``."""
        return evaluate(
            self._context,
            tokens,
            sequence=sequence,
            position=position,
            output=output,
            decoding=self._decoding,
            between=wanted,
        )

    def _score(self, ticket: ScoreTicket, job: ScoreJob) -> list[Score]:
        started = time.monotonic()
        queue_ms = (started - ticket.submitted) * 1000

        def wanted() -> None:
            self._still_wanted(ticket)

        base, home, fresh = self._prepare(job, wanted)
        scores: list[Score] = []
        try:
            for tail in job.tails:
                before = time.monotonic()
                wanted()
                logits, evaluated = self._score_tail(job.shared, base, home, tail, wanted)
                prompt, evaluated, fresh = length(job.shared) + len(tail), evaluated + fresh, 0
                self._counters.reused_tokens += prompt - evaluated
                scores.append(
                    Score(
                        logits=logits,
                        tokens=TokenCounts(prompt=prompt, evaluated=evaluated, reused=prompt - evaluated),
                        queue_ms=queue_ms,
                        engine_ms=(time.monotonic() - (before if scores else started)) * 1000,
                    )
                )
        finally:
            if not self._reuse:
                self._drop(base)
        return scores

    def _prepare(self, job: ScoreJob, wanted: Callable[[], None]) -> tuple[Chain, int | None, int]:
        """Have the shared segments in a kept sequence, as far as that pays.

        The first segment (the instructions) serves every request, the rest serves this one's other questions.

        Returns:
            The kept chain, its sequence, and how many tokens were evaluated for it now.
        """
        if not self._sharing:
            return (), None, 0
        wish = job.shared if len(job.tails) > 1 else job.shared[:1] if self._reuse else ()
        found = self._prefixes.longest(job.shared)
        chain, home = found if found else ((), None)
        self._counters.prefix_hits += found is not None
        self._counters.prefix_misses += len(chain) < len(wish)
        evaluated = 0
        for end in range(len(chain) + 1, len(wish) + 1):
            segment, parent, parent_home = job.shared[end - 1], chain, home
            claimed = self._prefixes.claim(job.shared[:end], keep=parent)
            if claimed is None:
                break
            chain, (home, dirty) = job.shared[:end], claimed
            try:
                if dirty:
                    self._context.clear(home)
                if parent_home is not None:
                    self._context.copy(parent_home, home)
                self._evaluate(segment, sequence=home, position=length(parent), output=False, wanted=wanted)
            except BaseException:
                self._drop(chain)
                raise
            evaluated += len(segment)
        return chain, home, evaluated

    def _drop(self, chain: Chain) -> None:
        """Forget a kept chain and every kept beginning of it."""
        for end in range(len(chain), 0, -1):
            if (sequence := self._prefixes.forget(chain[:end])) is not None:
                self._context.clear(sequence)

    def _score_tail(
        self, shared: Chain, base: Chain, home: int | None, tail: Sequence[int], wanted: Callable[[], None]
    ) -> tuple[Logits, int]:
        """Logits after one tail, in the scratch sequence, and the tokens evaluated for it."""
        context, position = self._context, length(base)
        try:
            if home is not None:
                context.copy(home, SCRATCH)
            for segment in shared[len(base) :]:
                self._evaluate(segment, sequence=SCRATCH, position=position, output=False, wanted=wanted)
                position += len(segment)
            logits = self._evaluate(tail, sequence=SCRATCH, position=position, output=True, wanted=lambda: None)
        finally:
            context.clear(SCRATCH)
        if logits is None:
            raise LlamaError("a decode gave no logits")
        return logits, position + len(tail) - length(base)

    # --- embeddings --------------------------------------------------------------------------------------------------

    def _embed(self, ticket: EmbeddingTicket, job: EmbeddingJob) -> list[Logits]:
        if self._embedder is None:
            shape = self._context.shape
            self._embedder = Context(
                self._context.model,
                ContextShape(
                    sequence_tokens=self._allowed,
                    sequences=1,
                    batch_tokens=self._allowed,
                    threads=shape.threads,
                    flash_attention=shape.flash_attention,
                    pooling=self._identity.model.pooling,
                ),
            )
        rows = []
        for tokens in job.inputs:
            self._still_wanted(ticket)
            with self._decoding(len(tokens)):
                row = self._embedder.embed(tokens)
            norm = float(np.linalg.norm(row))
            rows.append((row / norm).astype(np.float32) if norm else row)
        return rows

    # --- generation --------------------------------------------------------------------------------------------------

    def _sweep(self) -> None:
        """End what is cancelled or late."""
        running = {id(g): g for g in (*self._starting, *self._waiting)}
        running |= {id(p.generation): p.generation for p in self._prefills}
        running |= {id(c.generation): c.generation for c in self._generating}
        now = time.monotonic()
        for generation in running.values():
            if generation.cancelled:
                self._counters.cancelled += 1
                generation.over = True
                self._abandon(generation)
            elif now > generation.job.deadline:
                generation.fail(
                    Problem(
                        Kind.DEADLINE,
                        f"{generation.generated} tokens were generated when the deadline came; ask for fewer "
                        "(max_tokens), or stream the answer",
                        retry_after_ms=1000,
                    )
                )
                self._abandon(generation)

    def _abandon(self, generation: Generation) -> None:
        """Free everything that a generation holds."""
        with self._wake:
            if generation in self._waiting:
                self._waiting.remove(generation)
        self._settle(generation.pending)
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

    def _release(self, choice: Choice) -> None:
        choice.close()
        self._context.clear(choice.sequence)
        self._free_chats.append(choice.sequence)

    def _release_base(self, generation: Generation) -> None:
        if generation.base is not None:
            generation.base = None
            generation.first_logits = None
            chain = _base_chain(generation)
            self._prefixes.unpin(chain)
            if (sequence := self._prefixes.forget(chain)) is not None:
                self._context.clear(sequence)

    def _start_generations(self) -> None:
        """Give free chat sequences to choices that wait, first come first served."""
        while self._free_chats:
            if self._starting:
                generation = self._starting[0]
            elif self._waiting:
                with self._wake:
                    generation = self._waiting.popleft()
                generation.started = time.monotonic()
                self._starting.append(generation)
            else:
                return
            if not self._start_choice(generation):
                return

    def _start_choice(self, generation: Generation) -> bool:
        """Start the next choice of ``generation``; False if it must wait for its shared prompt."""
        job = generation.job
        if job.n > 1 and self._sharing and generation.base is None and generation.unstarted == job.n:
            claimed = self._prefixes.claim(_base_chain(generation))
            if claimed is not None:
                generation.base, dirty = claimed
                self._prefixes.pin(_base_chain(generation))
                if dirty:
                    self._context.clear(generation.base)
                self._prefills.append(Prefill(generation, generation.base, None))
        if generation.base is not None and generation.first_logits is None:
            return False
        try:
            choice = Choice(generation, job.n - generation.unstarted, self._free_chats[-1], self._vocabulary)
        except LlamaError as error:
            generation.fail(Problem(Kind.INVALID, str(error), param="response_format"))
            self._abandon(generation)
            return True
        self._free_chats.pop()
        generation.unstarted -= 1
        if not generation.unstarted:
            self._starting.remove(generation)
        if generation.base is not None and generation.first_logits is not None:
            self._context.copy(generation.base, choice.sequence)
            logits = generation.first_logits
            if not generation.unstarted:
                self._release_base(generation)
            self._advance(choice, logits)
        else:
            self._prefills.append(Prefill(generation, choice.sequence, choice))
        return True

    def _step_chats(self) -> None:
        """One decode: a token of every generating choice, and a chunk of the oldest prompt."""
        choices = list(self._generating)
        runs = [Run([c.next_token], c.sequence, c.position, True) for c in choices]
        prefill = self._prefills[0] if self._prefills else None
        if prefill:
            prompt = prefill.generation.job.prompt
            chunk = prompt[prefill.position : prefill.position + self._chunk]
            done = prefill.position + len(chunk) == len(prompt)
            runs.append(Run(chunk, prefill.sequence, prefill.position, done))
        with self._decoding(sum(len(run.tokens) for run in runs)):
            rows = self._context.decode(runs)
        self._counters.generated_tokens += len(choices)
        for choice, row in zip(choices, rows, strict=False):
            choice.position += 1
            self._advance(choice, row)
        if prefill:
            prefill.position += len(chunk)
            prefill.generation.evaluated += len(chunk)
            settled = min(len(chunk), prefill.generation.pending)
            prefill.generation.pending -= settled
            self._settle(settled)
            if done:
                self._prefills.popleft()
                self._prefilled(prefill, rows[-1])

    def _prefilled(self, prefill: Prefill, logits: Logits) -> None:
        generation = prefill.generation
        generation.prefilled = time.monotonic()
        if prefill.choice is None:
            generation.first_logits = logits
        else:
            self._advance(prefill.choice, logits)

    def _advance(self, choice: Choice, logits: Logits) -> None:
        """Choose a token; on the last one, free the choice and perhaps end the generation."""
        finished = choice.take(logits)
        if not finished:
            if choice not in self._generating:
                self._generating.append(choice)
            return
        if choice in self._generating:
            self._generating.remove(choice)
        self._release(choice)
        generation = choice.generation
        generation.unfinished -= 1
        if not generation.unfinished:
            self._done(generation)

    def _done(self, generation: Generation) -> None:
        now, prompt = time.monotonic(), len(generation.job.prompt)
        generation.over = True
        generation.emit(
            Done(
                tokens=TokenCounts(prompt=prompt, evaluated=min(generation.evaluated, prompt), reused=0),
                generated_tokens=generation.generated,
                queue_ms=(generation.started - generation.submitted) * 1000,
                prefill_ms=(generation.prefilled - generation.started) * 1000,
                generate_ms=(now - generation.prefilled) * 1000,
            )
        )

    # --- start and end -----------------------------------------------------------------------------------------------

    def _self_test(self) -> None:
        """Score a fixed prompt twice: finite and, where promised, the same to the bit. Measures the rate too."""
        text = "The quick brown fox jumps over the lazy dog. " * 8
        tokens = self._vocabulary.encode([Piece(text)], start=True)[: min(96, self._allowed)]
        head, tail = tuple(tokens[:-8]), tuple(tokens[-8:])
        job = ScoreJob(shared=(head,), tails=(tail, tail), deadline=math.inf)
        first, second = self._score(Ticket(job, len(tokens), math.inf), job)
        self._drop((head,))
        if not np.isfinite(first.logits).all():
            raise LlamaError("the self-test's logits are not finite: the model file is damaged or not supported")
        if self._identity.probe.exact and not np.array_equal(first.logits, second.logits):
            raise LlamaError("the self-test gave two different answers to one prompt")
        self._counters = Counters()
        self._prefixes.evictions = 0

    def _fail_all(self, problem: Problem) -> None:
        with self._wake:
            self._draining = True
            short, waiting = list(self._short), list(self._waiting)
            self._short.clear()
            self._waiting.clear()
            self._pending_tokens = 0
        for ticket in short:
            ticket.fail(problem)
        running = [*waiting, *self._starting]
        running += [p.generation for p in self._prefills] + [c.generation for c in self._generating]
        for generation in running:
            generation.fail(problem)
        for choice in [*self._generating, *(p.choice for p in self._prefills if p.choice)]:
            choice.close()
        self._starting.clear()
        self._prefills.clear()
        self._generating.clear()


_END = object()


def _base_chain(generation: Generation) -> Chain:
    """The key of a prompt that several choices continue; unlike any decision's, and any other generation's."""
    return ((-1, id(generation)), generation.job.prompt)

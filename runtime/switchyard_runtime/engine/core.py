"""The engine: one thread owns the context and loops. A waiting decision first, then one decode of the chats."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from switchyard_runtime.engine.chats import ChatScheduler
from switchyard_runtime.engine.interface import (
    Counters,
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
from switchyard_runtime.engine.llama import Context, ContextShape, LlamaError, json_grammar
from switchyard_runtime.engine.meter import Meter
from switchyard_runtime.engine.prefixes import PrefixStore, length
from switchyard_runtime.engine.scorer import Scorer
from switchyard_runtime.engine.work import CallerLeftError, Generation, Ticket
from switchyard_runtime.errors import Kind, Problem, over_budget

log = logging.getLogger(__name__)

SCRATCH = 0
SELF_TEST_TOKENS = 96
SELF_TEST_TAIL = 8
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
        self._queue_limit = queue_limit
        self._decode_timeout = decode_timeout_s
        self._allowed = identity.model.context_tokens
        self._meter = Meter()
        self._prefixes = PrefixStore(range(chats + 1, context.shape.sequences))
        sharing = identity.probe.prefix_sharing
        self._scorer = Scorer(
            context, self._prefixes, self._meter, scratch=SCRATCH, sharing=sharing, reuse=reuse_prefixes
        )
        self._chats = ChatScheduler(
            context,
            self._prefixes,
            self._meter,
            sequences=range(1, chats + 1),
            chunk_tokens=chat_chunk_tokens,
            sharing=sharing,
            settled=self._settle,
        )
        self._embedder: Context | None = None

        self._wake = threading.Condition()
        self._short: deque[ScoreTicket | EmbeddingTicket] = deque()
        self._waiting: deque[Generation] = deque()
        self._pending_tokens = 0
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
        counters = self._meter.counters
        counters.queue_depth = len(self._short) + len(self._waiting)
        counters.active_generations = self._chats.active
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
        if (running := self._meter.running_for()) > self._decode_timeout:
            return Health(ready=False, reason=f"a decode has been running for {running:.1f} s")
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
            self._meter.counters.generations += 1
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
        ahead = self._meter.seconds(self._pending_tokens)
        if waiting >= self._queue_limit:
            raise self._refusal(
                Kind.BUSY,
                f"{waiting} requests are waiting and {self._queue_limit} may; try again later",
                max(100, math.ceil(ahead * 500)),
            )
        own, left = self._meter.seconds(tokens), deadline - time.monotonic()
        if own > left:
            raise self._refusal(
                Kind.DEADLINE,
                f"the request has {tokens} tokens to evaluate, which takes about {own:.1f} s at this machine's present "
                f"speed, and {max(left, 0):.1f} s are left; shorten it, or raise deadline_s on the server",
                max(1000, math.ceil((own - left) * 1000)),
            )
        if ahead + own > left:
            raise self._refusal(
                Kind.BUSY,
                f"about {ahead:.1f} s of work are ahead and this request needs {own:.1f} s more, "
                f"but its deadline is in {left:.1f} s; try again later",
                max(100, math.ceil((ahead + own - left) * 1000)),
            )

    def _refusal(self, kind: Kind, message: str, retry_after_ms: int | None = None) -> Problem:
        self._meter.counters.rejected += 1
        return Problem(kind, message, retry_after_ms=retry_after_ms)

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
        self._feed_chats()
        self._chats.step()
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
        return not (self._short or self._waiting) and self._chats.idle

    def _work(self, ticket: ScoreTicket | EmbeddingTicket) -> None:
        counters = self._meter.counters
        try:
            self._still_wanted(ticket)
            if isinstance(ticket.job, ScoreJob):
                ticket.resolve(self._score(ticket, ticket.job))
                counters.decisions += len(ticket.job.tails)
            else:
                ticket.resolve(self._embed(ticket, ticket.job))
                counters.embeddings += len(ticket.job.inputs)
        except CallerLeftError as left:
            counters.cancelled += 1
            ticket.fail(left)
        except Problem as problem:
            counters.rejected += 1
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

    def _score(self, ticket: ScoreTicket, job: ScoreJob) -> list[Score]:
        queue_ms = (time.monotonic() - ticket.submitted) * 1000
        return self._scorer.score(job, queue_ms=queue_ms, wanted=lambda: self._still_wanted(ticket))

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
            with self._meter.decoding(len(tokens)):
                row = self._embedder.embed(tokens)
            norm = float(np.linalg.norm(row))
            rows.append((row / norm).astype(np.float32) if norm else row)
        return rows

    def _feed_chats(self) -> None:
        with self._wake:
            while self._waiting and self._chats.has_room:
                self._chats.add(self._waiting.popleft())

    def _sweep(self) -> None:
        """End generations that are cancelled or late."""
        now = time.monotonic()
        with self._wake:
            waiting = list(self._waiting)
        for generation in (*self._chats.generations(), *waiting):
            if generation.cancelled:
                self._meter.counters.cancelled += 1
                generation.over = True
            elif now > generation.job.deadline:
                self._meter.counters.rejected += 1
                generation.fail(
                    Problem(
                        Kind.DEADLINE,
                        f"{generation.generated} tokens were generated when the deadline came; ask for fewer "
                        "(max_tokens), or stream the answer",
                        retry_after_ms=1000,
                    )
                )
            else:
                continue
            with self._wake:
                if generation in self._waiting:
                    self._waiting.remove(generation)
            self._chats.abandon(generation)

    # --- start and end -----------------------------------------------------------------------------------------------

    def _self_test(self) -> None:
        """Score a fixed prompt twice: finite and, where promised, the same to the bit. Measures the rate too."""
        text = "The quick brown fox jumps over the lazy dog. " * 16
        tokens = self._vocabulary.encode([Piece(text)], start=True)[: min(SELF_TEST_TOKENS, self._allowed)]
        head, tail = tuple(tokens[:-SELF_TEST_TAIL]), tuple(tokens[-SELF_TEST_TAIL:])
        job = ScoreJob(shared=(head,), tails=(tail, tail), deadline=math.inf)
        first, second = self._scorer.score(job, queue_ms=0, wanted=lambda: None)
        self._scorer.drop((head,))
        if not np.isfinite(first.logits).all():
            raise LlamaError("the self-test's logits are not finite: the model file is damaged or not supported")
        if first.logits.min() == first.logits.max():
            raise LlamaError("the self-test's logits are all equal: the model gives embeddings, not next tokens")
        if self._identity.probe.exact and not np.array_equal(first.logits, second.logits):
            raise LlamaError("the self-test gave two different answers to one prompt")
        self._meter.counters = Counters()
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
        for generation in (*waiting, *self._chats.close()):
            generation.fail(problem)


_END = object()

"""The engine: one thread owns the contexts and loops. Waiting decisions first, then one decode of the chats.

Decisions and chats have a context each, so that decisions can be scored in the middle of a chat's decode.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from steelyard_runtime.engine.admission import Admission
from steelyard_runtime.engine.chats import ChatScheduler
from steelyard_runtime.engine.embedder import EmbeddingRun, embed_next
from steelyard_runtime.engine.fair_queue import FairQueue
from steelyard_runtime.engine.interface import (
    Counters,
    EmbeddingJob,
    EngineIdentity,
    Event,
    GenerationJob,
    Grammar,
    Health,
    Logits,
    Piece,
    Score,
    ScoreJob,
    ScorePrompt,
    Segment,
    Tokenizing,
    Tokens,
)
from steelyard_runtime.engine.json_output import JsonOutput, JsonOutputError, problem_of
from steelyard_runtime.engine.llama import Context, LlamaError
from steelyard_runtime.engine.meter import Meter
from steelyard_runtime.engine.places import UNNAMED
from steelyard_runtime.engine.plain_text import UnwritableTextError
from steelyard_runtime.engine.prefixes import PrefixStore
from steelyard_runtime.engine.probe import conclude, examine
from steelyard_runtime.engine.scorer import Ready, Scorer, ScoreRun
from steelyard_runtime.engine.tokenizer import Tokenizer
from steelyard_runtime.engine.turns import Turns
from steelyard_runtime.engine.vitals import EngineBrokenError, Vitals
from steelyard_runtime.engine.work import CallerLeftError, Generation, Ticket, Waiter
from steelyard_runtime.errors import Kind, Problem, over_budget
from steelyard_runtime.legible import reason_of

log = logging.getLogger(__name__)

SHARE_OF_DEADLINE = 0.25
"""Of the time that is left to the most urgent of several decisions, how much one decode of them may take."""
ScoreTicket = Ticket[ScoreRun, list[Score]]
EmbeddingTicket = Ticket[EmbeddingRun, list[Logits]]
WarmTicket = Ticket[tuple[Segment, ...], None]
AnyTicket = ScoreTicket | EmbeddingTicket | WarmTicket
Duplicate = tuple[str, tuple[ScorePrompt, ...]]


class LlamaEngine:
    """The ``Engine`` over llama.cpp.

    Args:
        context: The decisions' context; owned from now on. With more than one sequence, so many decisions share a
            decode, and answers are not exact.
        chat_context: The chats', over the same model; owned from now on.
        embedder: One that pools, where the model gives embeddings; owned from now on.
        identity: What answers say about this engine; its probe's note, if any, says why snapshots must not be tried.
        probing: Let the self-test find out whether prefixes can be shared; else they are not.
        chat_chunk_tokens: Most tokens of a chat's prompt in one decode.
        reuse_prefixes: Keep evaluated prefixes between requests.
        reuse_states: Keep those that hold callers' text too, each for the same caller.
        prefix_cache_bytes: Most bytes of kept prefixes.
        queue_limit: Chats that may wait, and as many decisions and embeddings.
        unnamed_share: Share of the chats' sequences and of the queue that callers without a name may hold together.
        decode_timeout_s: A decode longer than this is reported by ``health``.
    """

    def __init__(
        self,
        context: Context,
        chat_context: Context,
        identity: EngineIdentity,
        *,
        embedder: Context | None,
        probing: bool,
        chat_chunk_tokens: int,
        reuse_prefixes: bool,
        reuse_states: bool,
        prefix_cache_bytes: int,
        queue_limit: int,
        unnamed_share: float,
        decode_timeout_s: float,
    ) -> None:
        self._context = context
        self._chat_context = chat_context
        self._vocabulary = context.model.vocabulary
        self._tokenizer = Tokenizer(self._vocabulary, context_tokens=identity.model.context_tokens)
        self._identity = identity
        self._probing = probing
        self._together = context.shape.sequences
        self._decode_timeout = decode_timeout_s
        self._allowed = identity.model.context_tokens
        self._meter = Meter()
        self._admission = Admission(self._meter, queue_limit=queue_limit, unnamed_share=unnamed_share)
        self._prefixes = PrefixStore(prefix_cache_bytes)
        self._scorer = Scorer(
            context,
            self._prefixes,
            self._meter,
            scratch=range(self._together),
            reuse=reuse_prefixes,
            reuse_private=reuse_states,
        )
        self._json_output = JsonOutput(self._vocabulary)
        self._chats = ChatScheduler(
            chat_context,
            self._prefixes,
            self._meter,
            chunk_tokens=chat_chunk_tokens,
            reuse=reuse_prefixes and reuse_states,
            unnamed_share=unnamed_share,
            settled=self._settle,
            failed=self._chats_failed,
        )
        self._embedder = embedder

        self._vitals: list[Vitals] = []
        self._chat_vitals: Vitals | None = None
        self._inside_chats = False

        self._wake = threading.Condition()
        self._short: FairQueue[AnyTicket] = FairQueue()
        self._duplicates: dict[Duplicate, ScoreTicket] = {}
        self._waiting: FairQueue[Generation] = FairQueue()
        self._turns = Turns()
        self._chats_since = 0.0
        self._stopped = False
        self._ready = False
        self._draining = False
        self._stop_at: float | None = None
        self._death: str | None = None
        self._thread = threading.Thread(target=self._run, name="steelyard-engine", daemon=True)

    # --- what other threads call -------------------------------------------------------------------------------------

    def started(self, stages: dict[str, float]) -> None:
        """Note how many seconds each stage of the start took."""
        self._meter.start_seconds = dict(stages)

    @property
    def start_seconds(self) -> dict[str, float]:
        """Seconds that the start took, by stage; empty before it is over."""
        return self._meter.start_seconds

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
        counters.prefix_bytes = self._prefixes.bytes + self._scorer.spare_bytes
        counters.prefixes = len(self._prefixes)
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
        try:
            return self._vocabulary.encode(pieces, start=start)
        except UnwritableTextError as error:
            raise Problem(Kind.INVALID, f"{error}; leave it out") from error

    @property
    def max_text_bytes(self) -> int:
        """See ``interface.Engine.max_text_bytes``."""
        return self._tokenizer.max_text_bytes

    def tokenize(self, pieces: Sequence[Piece], *, start: bool, work: Tokenizing) -> Tokens:
        """See ``interface.Engine.tokenize``."""
        try:
            return self._tokenizer.encode(pieces, start=start, work=work)
        except UnwritableTextError as error:
            raise Problem(Kind.INVALID, f"{error}; leave it out") from error

    def token_bytes(self, token_id: int) -> bytes:
        """See ``interface.Engine.token_bytes``."""
        return self._vocabulary.token_bytes(token_id)

    def is_text(self, token_id: int) -> bool:
        """See ``interface.Engine.is_text``."""
        return self._vocabulary.is_text(token_id)

    def grammar(self, schema: dict[str, Any] | None) -> Grammar:
        """See ``interface.Engine.grammar``."""
        try:
            return self._json_output.grammar(schema)
        except JsonOutputError as error:
            raise problem_of(error) from error

    def submit_score(self, job: ScoreJob) -> Future[list[Score]]:
        """See ``interface.Engine``."""
        if not job.prompts or not all(p.tail and all(segment.tokens for segment in p.shared) for p in job.prompts):
            raise ValueError("a score job needs at least one prompt, a tail in each, and no empty segment")
        for prompt in job.prompts:
            if len(prompt) > self._allowed:
                raise over_budget(counted=len(prompt), allowed=self._allowed)
        waiter: Waiter[list[Score]] = Waiter(job.deadline)
        duplicate = job.caller, job.prompts
        with self._wake:
            if (running := self._duplicates.get(duplicate)) is not None and not self._draining:
                running.waiters.append(waiter)
                self._meter.counters.joined += 1
                return waiter.future
            run = ScoreRun(job)
            ticket: ScoreTicket = Ticket(run, job.caller, self._expected(job), len(job.prompts), [waiter])
            self._admit(ticket, deadline=job.deadline)
            self._duplicates[duplicate] = ticket
        return waiter.future

    def _expected(self, job: ScoreJob) -> int:
        """Tokens that will have to be evaluated, as far as can be told now."""
        new: dict[tuple[Segment, ...], int] = {}
        for prompt in job.prompts:
            new[prompt.shared] = self._scorer.missing(prompt.shared, caller=job.caller)
        return sum(new.values()) + sum(len(prompt.tail) for prompt in job.prompts)

    def keep_warm(self, shared: tuple[Segment, ...]) -> Future[None]:
        """See ``interface.Engine``."""
        if any(segment.private for segment in shared):
            raise ValueError("a caller's text is never kept for good")
        waiter: Waiter[None] = Waiter(math.inf)
        with self._wake:
            self._admit(Ticket(shared, "", sum(len(s.tokens) for s in shared), 1, [waiter]), deadline=math.inf)
        return waiter.future

    def submit_embedding(self, job: EmbeddingJob) -> Future[list[Logits]]:
        """See ``interface.Engine``."""
        if self._embedder is None:
            raise Problem(
                Kind.UNSUPPORTED, f"the model {self._identity.model.file_name} has no pooling and gives no embeddings"
            )
        for tokens in job.inputs:
            if len(tokens) > self._allowed:
                raise over_budget(counted=len(tokens), allowed=self._allowed, what="An input", param="input")
        waiter: Waiter[list[Logits]] = Waiter(job.deadline)
        total = sum(map(len, job.inputs))
        run = EmbeddingRun(job)
        with self._wake:
            self._admit(Ticket(run, job.caller, total, len(job.inputs), [waiter]), deadline=job.deadline)
        return waiter.future

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
            self._check_open(len(job.prompt), job.deadline, caller=job.caller, chat=True)
            self._admission.add_chat(tokens=len(job.prompt), caller=job.caller)
            self._waiting.push(generation, caller=job.caller)
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

    def _admit(self, ticket: AnyTicket, *, deadline: float) -> None:
        """Queue a ticket, or refuse it. Called with the lock."""
        self._check_open(ticket.tokens, deadline, caller=ticket.caller)
        self._admission.add(tokens=ticket.tokens, steps=ticket.steps, caller=ticket.caller)
        self._short.push(ticket, caller=ticket.caller)
        self._wake.notify_all()

    def _check_open(self, tokens: int, deadline: float, *, caller: str, chat: bool = False) -> None:
        """Refuse what cannot be answered, or not in time. Called with the lock."""
        refusal = self._admission.refusal
        if self._death is not None:
            raise refusal(Kind.ENGINE_FAILED, f"the engine has failed: {self._death}", RESTART_MS)
        if self._draining:
            raise refusal(Kind.DRAINING, "the server is shutting down; send the request to another instance", 1000)
        if not self._ready:
            raise refusal(Kind.NOT_READY, "the model is still loading; try again shortly", 1000)
        line: FairQueue[Any] = self._waiting if chat else self._short
        self._admission.check(
            tokens,
            deadline=deadline,
            waiting=len(line),
            beside_chats=not self._chats.idle,
            chat=chat,
            caller=caller,
            unnamed_waiting=line.waiting(UNNAMED),
        )

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
                self._death = f"{type(error).__name__}: {reason_of(error)}"
                self._wake.notify_all()
            self._fail_all(_engine_failed())
        finally:
            for context in (self._embedder, self._chat_context, self._context):
                if context:
                    context.close()

    def _step(self) -> bool:
        """A decision that waits, if it is its turn, and a decode of the chats if it is theirs; False at the end."""
        ticket = self._next_ticket()
        if ticket is _END:
            return False
        if isinstance(ticket, Ticket):
            self._serve(ticket)
        self._sweep()
        self._feed_chats()
        if self._chats.idle:
            self._turns.nobody_chats()
        elif not (self._short and self._turns.decisions_may):
            self._chats_since, self._stopped = time.monotonic(), False
            self._chats.step(between=self._between)
            taken = self._chatted()
            if not self._stopped:
                self._meter.chatted(taken)
        return True

    def _serve(self, ticket: AnyTicket) -> None:
        began = time.monotonic()
        if self._together > 1 and isinstance(ticket.job, ScoreRun):
            self._work_together(ticket)
        else:
            self._work(ticket)
        self._turns.decided(time.monotonic() - began, usual_s=self._meter.decision_s)

    def _between(self) -> None:
        """In the middle of a chat's decode: let the decisions that wait go first."""
        self._stopped = True
        self._chatted()
        ending = self._stop_at is not None and time.monotonic() >= self._stop_at
        if ending or not (self._short and self._turns.decisions_may):
            return
        self._meter.counters.interruptions += 1
        self._inside_chats = True
        try:
            with self._meter.interrupted():
                while self._turns.decisions_may and (ticket := self._another()) is not None:
                    self._serve(ticket)
        finally:
            self._inside_chats = False
        self._chats_since = time.monotonic()

    def _chatted(self) -> float:
        """Account for the seconds that the chats had the engine since they got it."""
        taken = time.monotonic() - self._chats_since
        self._chats_since += taken
        self._turns.chatted(taken)
        return taken

    def _next_ticket(self) -> AnyTicket | object | None:
        with self._wake:
            while True:
                if self._stop_at is not None and (self._idle() or time.monotonic() >= self._stop_at):
                    return _END
                if self._short and (self._chats.idle or self._turns.decisions_may):
                    return self._short.pop()
                if not self._idle():
                    return None
                self._wake.wait(0.5)

    def _idle(self) -> bool:
        return not (self._short or self._waiting) and self._chats.idle

    def _work(self, ticket: AnyTicket) -> None:
        """One question or text, or a prefix to keep warm; a job with more of them goes back into its line."""
        over = True
        try:
            self._still_wanted(ticket)
            ticket.started = ticket.started or time.monotonic()
            if isinstance(ticket.job, ScoreRun):
                over = self._score(ticket, ticket.job)
            elif isinstance(ticket.job, EmbeddingRun):
                over = self._embed(ticket, ticket.job)
            else:
                self._scorer.warm(ticket.job)
                self._resolve(ticket, None)
        except CallerLeftError:
            pass
        except Problem as problem:
            ticket.fail(problem)
        except Exception as error:
            self._ticket_failed(ticket, error)
            self._prove()
        finally:
            if over:
                self._finish(ticket)

    def _score(self, ticket: AnyTicket, run: ScoreRun) -> bool:
        """Score the next question of ``run``; whether it was the last one."""
        self._scorer.next(run, queue_ms=_queue_ms(ticket), wanted=lambda: self._still_wanted(ticket))
        return self._scored(ticket, run)

    def _scored(self, ticket: AnyTicket, run: ScoreRun) -> bool:
        """Hand out the scores of ``run``, or put it back into its line; whether it was done."""
        with self._wake:
            if not run.done:
                left = len(run.job.prompts) - len(run.scores)
                self._progress(ticket, tokens=ticket.tokens * left // ticket.steps, steps=left)
                push = self._short.push_front if self._scorer.goes_on(run) else self._short.push_back
                push(ticket, caller=ticket.caller)
                return False
            self._duplicates.pop((run.job.caller, run.job.prompts), None)
        self._resolve(ticket, run.scores)
        return True

    def _work_together(self, first: AnyTicket) -> None:
        """The next questions of one job or several, their tails in one decode. What does not fit is scored alone."""
        batch: list[tuple[AnyTicket, Ready]] = []
        taken = [first]
        ticket: AnyTicket | None = first
        room = self._context.shape.batch_tokens
        try:
            while ticket is not None and isinstance(run := ticket.job, ScoreRun):
                room = min(room, self._tokens_until(run.job.deadline))
                if sum(len(ready.tail) for _, ready in batch) + len(run.next.tail) > room:
                    break
                if (ready := self._prepared(ticket, run, at=len(batch))) is not None:
                    batch.append((ticket, ready))
                if len(batch) == self._together:
                    ticket = None
                elif ready is None or run.prepared:
                    ticket = self._another()
                    taken += [ticket] if ticket else []
            self._score_together(batch)
        except BaseException:
            for each in taken:
                self._finish(each)
                each.fail(_engine_failed())
            raise
        if ticket is not None and all(ticket is not each for each, _ in batch):
            self._work(ticket)

    def _score_together(self, batch: Sequence[tuple[AnyTicket, Ready]]) -> None:
        """One decode of questions that were prepared; each by itself where that fails, to see whose fault it is."""
        tickets = list({id(ticket): ticket for ticket, _ in batch}.values())
        try:
            self._scorer.together([ready for _, ready in batch])
        except Exception as error:
            log.warning("a decode of %d decisions failed; each is scored alone", len(batch), exc_info=error)
            try:
                self._prove()
            except EngineBrokenError:
                for ticket in tickets:  # any of them may have done it
                    self._ticket_failed(ticket, error)
                raise
            for ticket in tickets:
                if ticket.waiters and isinstance(run := ticket.job, ScoreRun):
                    run.begun = len(run.scores)
                    self._work(ticket)
            return
        for ticket in tickets:
            # Whoever waited for it may have left after a question of it was prepared: then it is finished.
            if ticket.waiters and isinstance(run := ticket.job, ScoreRun):
                try:
                    over = self._scored(ticket, run)
                except Exception as error:
                    self._ticket_failed(ticket, error)
                    self._prove()
                    continue
                if over:
                    self._finish(ticket)

    def _ticket_failed(self, ticket: AnyTicket, error: Exception) -> None:
        """End the work that a fault belongs to."""
        self._count_fault(error)
        self._finish(ticket)  # first, so that nobody joins what has failed
        ticket.fail(_request_failed(error))
        ticket.waiters.clear()

    def _chats_failed(self, generations: Sequence[Generation], error: Exception) -> None:
        """End the chats that a fault belongs to: one, or all that shared a decode."""
        self._count_fault(error)
        try:
            for generation in generations:
                self._chats.abandon(generation)
            self._prove()
        except BaseException:
            for generation in generations:  # any of them may have done it
                generation.fail(_request_failed(error))
            raise
        for generation in generations:
            generation.fail(_request_failed(error) if len(generations) == 1 else _shared_decode_failed())

    def _count_fault(self, error: Exception) -> None:
        self._meter.counters.faults += 1
        log.error("a request failed in the engine and was given up", exc_info=error)

    def _prove(self, *, sequence: int = 0) -> None:
        """Show that every context still computes what it did at the start, after a fault. Else the engine ends.

        Args:
            sequence: One of the decisions' that nobody needs.

        Raises:
            EngineBrokenError: One does not.
        """
        for vitals in self._vitals:
            vitals.prove(sequence, decoding=self._meter.decoding)
        free = self._chats.free_sequence
        if self._chat_vitals and free is not None and not self._inside_chats:
            self._chat_vitals.prove(free, decoding=self._meter.decoding)

    def _tokens_until(self, deadline: float) -> int:
        """How many tokens may share a decode, by the measured rate, without making anyone late."""
        rate = self._meter.rate
        if not rate or math.isinf(deadline):
            return self._context.shape.batch_tokens
        return int(rate * SHARE_OF_DEADLINE * max(0.0, deadline - time.monotonic()))

    def _another(self) -> AnyTicket | None:
        with self._wake:
            return self._short.pop() if self._short else None

    def _prepared(self, ticket: AnyTicket, run: ScoreRun, *, at: int) -> Ready | None:
        """All but the tail of the next question, or None when nobody waits for it any more."""
        try:
            self._still_wanted(ticket)
            ticket.started = ticket.started or time.monotonic()
            return self._scorer.prepare(
                run, at=at, queue_ms=_queue_ms(ticket), wanted=lambda: self._still_wanted(ticket)
            )
        except CallerLeftError:
            self._scorer.give_up(at)
            self._finish(ticket)
            return None
        except Exception as error:
            self._ticket_failed(ticket, error)
            self._prove(sequence=at)
            return None

    def _resolve(self, ticket: Ticket[Any, Any], result: Any) -> None:
        """Hand out a result. The first who is still there is told what was evaluated, the others that nothing was.

        So the answers' counts add up to what the engine did, also when the one who asked first has left.
        """
        told = False
        for waiter in ticket.waiters:
            if isinstance(ticket.job, ScoreRun):
                told = waiter.resolve(_as_told(result, ticket, waiter, joined=told)) or told
            else:
                waiter.resolve(result)

    def _finish(self, ticket: AnyTicket) -> None:
        with self._wake:
            self._progress(ticket, tokens=0, steps=0)
            if isinstance(ticket.job, ScoreRun):
                self._scorer.release(ticket.job)
                key = ticket.job.job.caller, ticket.job.job.prompts
                if self._duplicates.get(key) is ticket:
                    del self._duplicates[key]

    def _progress(self, ticket: AnyTicket, *, tokens: int, steps: int) -> None:
        """Note what is left of a ticket. Called with the lock."""
        self._admission.add(tokens=tokens - ticket.tokens, steps=steps - ticket.steps, caller=ticket.caller)
        ticket.tokens, ticket.steps = tokens, steps

    def _settle(self, tokens: int, caller: str) -> None:
        """Take a chat's evaluated or abandoned tokens off the work ahead."""
        with self._wake:
            self._admission.add_chat(tokens=-tokens, caller=caller)

    def _still_wanted(self, ticket: AnyTicket) -> None:
        """Let go of those who left or were waiting too long.

        Raises:
            CallerLeftError: Nobody is left.
        """
        now = time.monotonic()
        with self._wake:
            waiters: list[Any] = list(ticket.waiters)
            gone = [w for w in waiters if w.future.cancelled()]
            late = [w for w in waiters if w not in gone and now > w.deadline]
            if not (gone or late):
                return
            left = [w for w in waiters if w not in gone and w not in late]
            if not left and isinstance(ticket.job, ScoreRun):
                self._duplicates.pop((ticket.job.job.caller, ticket.job.job.prompts), None)
            ticket.waiters[:] = left
        self._meter.counters.cancelled += len(gone)
        self._meter.counters.rejected += len(late)
        for waiter in late:
            waiter.fail(
                Problem(
                    Kind.DEADLINE,
                    f"the request was not answered within its deadline ({now - waiter.deadline:.1f} s late); "
                    "try again later",
                    retry_after_ms=1000,
                )
            )
        if not left:
            raise CallerLeftError

    def _embed(self, ticket: AnyTicket, run: EmbeddingRun) -> bool:
        """Embed the next text of ``run``; whether it was the last one."""
        assert self._embedder is not None  # noqa: S101 - no job is taken without it
        embed_next(run, self._embedder, self._meter, between=lambda: self._still_wanted(ticket))
        left = run.left
        if left:
            with self._wake:
                self._progress(ticket, tokens=sum(map(len, left)), steps=len(left))
                self._short.push_back(ticket, caller=ticket.caller)
            return False
        self._resolve(ticket, run.rows)
        return True

    def _feed_chats(self) -> None:
        with self._wake:
            while (caller := next(filter(self._chats.has_room, self._waiting.callers()), None)) is not None:
                self._chats.add(self._waiting.pop(caller))

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
                self._waiting.remove(generation, caller=generation.job.caller)
            self._chats.abandon(generation)

    # --- start and end -----------------------------------------------------------------------------------------------

    def _self_test(self) -> None:
        """Evaluate a fixed prompt in every way there is, on the very context that serves. Measures the rate too."""
        probe = self._identity.probe
        if self._probing:
            finding = examine(
                self._context,
                share=not probe.note,
                chats=self._chat_context,
                together=self._together > 1,
                decoding=self._meter.decoding,
            )
            probe = conclude(finding, memory=probe.memory, note=probe.note)
        else:
            finding = examine(self._context, share=False, decoding=self._meter.decoding)
        contexts = [self._context, *([self._embedder] if self._embedder else ())]
        self._vitals = [Vitals.take(context, noise=finding.recomputed) for context in contexts]
        self._chat_vitals = Vitals.take(self._chat_context, noise=finding.recomputed)
        self._identity = replace(self._identity, probe=probe)
        self._scorer.sharing = self._chats.sharing = probe.prefix_sharing
        self._meter.counters = Counters()

    def _fail_all(self, problem: Problem) -> None:
        with self._wake:
            self._draining = True
            short, waiting = self._short.clear(), self._waiting.clear()
            self._duplicates.clear()
            self._admission.clear()
        for ticket in short:
            if isinstance(ticket.job, ScoreRun):
                self._scorer.release(ticket.job)
            ticket.fail(problem)
        for generation in (*waiting, *self._chats.close()):
            generation.fail(problem)


_END = object()
RESTART_MS = 5000
"""When to try again after the engine ended: whoever started the process starts another."""


def _request_failed(error: Exception) -> Problem:
    """For whoever asked for what the engine failed on."""
    why = reason_of(error) if isinstance(error, LlamaError) else type(error).__name__
    return Problem(
        Kind.REQUEST_FAILED,
        f"the engine failed while it worked on this request ({why}) and gave it up; do not repeat it as it is: change "
        "it, or report it, the server's log has the reason",
    )


def _shared_decode_failed() -> Problem:
    """For those of whom only one can have been at fault, while the engine goes on."""
    return Problem(
        Kind.ENGINE_FAILED,
        "a decode that this answer shared with others failed, and the engine goes on; try again",
        retry_after_ms=1000,
    )


def _engine_failed() -> Problem:
    """For those whom the end of the engine took along."""
    return Problem(
        Kind.ENGINE_FAILED,
        "the engine ended while this request was in progress, for a reason that is not in it; try again",
        retry_after_ms=RESTART_MS,
    )


def _queue_ms(ticket: Ticket[Any, Any]) -> float:
    return max(0.0, ticket.started - ticket.submitted) * 1000


def _as_told(scores: list[Score], ticket: Ticket[Any, Any], waiter: Waiter[Any], *, joined: bool) -> list[Score]:
    """The scores as a waiter gets them: how long they waited themselves; nothing was evaluated for who joined."""
    queue_ms = max(0.0, ticket.started - waiter.submitted) * 1000
    return [
        replace(
            score,
            tokens=replace(score.tokens, evaluated=0, reused=score.tokens.prompt) if joined else score.tokens,
            queue_ms=queue_ms,
        )
        for score in scores
    ]

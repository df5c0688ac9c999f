"""Runs work: one question, text or prefix of a ticket at a time, or several questions in one decode."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from steelyard_runtime.engine.chats import ChatBatcher
from steelyard_runtime.engine.delivery import Delivery, engine_failed, request_failed, shared_decode_failed
from steelyard_runtime.engine.embedder import EmbeddingRun, embed_next
from steelyard_runtime.engine.generations import Generation
from steelyard_runtime.engine.interface import Probe
from steelyard_runtime.engine.llama import Context
from steelyard_runtime.engine.meter import Meter
from steelyard_runtime.engine.prefixes import PrefixStore
from steelyard_runtime.engine.probe import conclude, examine
from steelyard_runtime.engine.scheduler import Scheduler
from steelyard_runtime.engine.scorer import Ready, Scorer, ScoreRun
from steelyard_runtime.engine.tickets import AnyTicket, CallerLeftError
from steelyard_runtime.engine.vitals import EngineBrokenError, Vitals
from steelyard_runtime.errors import Problem

log = logging.getLogger(__name__)

SHARE_OF_DEADLINE = 0.25
"""Of the time that is left to the most urgent of several decisions, how much one decode of them may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contexts:
    """The contexts over one model. Decisions and chats have one each, so that decisions can interrupt a chat's decode.

    Attributes:
        decisions: The decisions'. With more than one sequence, that many decisions share a decode, and answers are not
            exact.
        chats: The chats'.
        embeddings: One that pools, where the model gives embeddings.
    """

    decisions: Context
    chats: Context
    embeddings: Context | None

    def close(self) -> None:
        """Free them."""
        for context in (self.embeddings, self.chats, self.decisions):
            if context:
                context.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """Settings of the executor.

    Attributes:
        chat_chunk_tokens: Most tokens of a chat's prompt in one decode.
        reuse_prefixes: Keep evaluated prefixes between requests.
        reuse_states: Also keep prefixes that hold callers' text; only the same caller reuses them.
        prefix_cache_bytes: Most bytes of kept prefixes.
    """

    chat_chunk_tokens: int
    reuse_prefixes: bool
    reuse_states: bool
    prefix_cache_bytes: int


class Executor:
    """Runs tickets and chats on the engine's thread, and finds out whom a fault belongs to.

    Attributes:
        contexts: The contexts.
        prefixes: Evaluated prefixes that are kept between requests.
        scorer: Evaluates decisions.
        chats: Runs the chats.
        vitals: Reference values of every context but the chats'.
        chat_vitals: Those of the chats' context.

    Args:
        contexts: Owned from now on.
        scheduler: Where unfinished tickets return to, and where more of them come from for a shared decode.
        delivery: Hands out results and problems.
        meter: Counts every decode.
        settings: Settings.
    """

    def __init__(
        self, contexts: Contexts, *, scheduler: Scheduler, delivery: Delivery, meter: Meter, settings: Execution
    ) -> None:
        self.contexts = contexts
        self._scheduler = scheduler
        self._delivery = delivery
        self._meter = meter
        self._batch_size = contexts.decisions.shape.sequences
        self.prefixes = PrefixStore(settings.prefix_cache_bytes)
        self.scorer = Scorer(
            contexts.decisions,
            self.prefixes,
            meter,
            scratch=range(self._batch_size),
            reuse=settings.reuse_prefixes,
            reuse_private=settings.reuse_states,
        )
        self.chats = ChatBatcher(
            contexts.chats,
            self.prefixes,
            meter,
            chunk_tokens=settings.chat_chunk_tokens,
            reuse=settings.reuse_prefixes and settings.reuse_states,
            places=scheduler.chat_places,
            on_progress=scheduler.chat_progressed,
            on_fault=self._chats_failed,
        )
        self.vitals: list[Vitals] = []
        self.chat_vitals: Vitals | None = None
        self._inside_chats = False

    def self_test(self, probe: Probe, *, probing: bool) -> Probe:
        """Evaluate a fixed prompt in every way there is, on the very contexts that serve; measures the rate too.

        Args:
            probe: What is known; its note, if any, says why snapshots must not be tried.
            probing: Find out whether prefixes can be shared; else they are not.

        Returns:
            What was found.
        """
        contexts = self.contexts
        if probing:
            finding = examine(
                contexts.decisions,
                share=not probe.note,
                chats=contexts.chats,
                together=self._batch_size > 1,
                decoding=self._meter.decoding,
            )
            probe = conclude(finding, memory=probe.memory, note=probe.note)
        else:
            finding = examine(contexts.decisions, share=False, decoding=self._meter.decoding)
        proven = [contexts.decisions, *([contexts.embeddings] if contexts.embeddings else ())]
        self.vitals = [Vitals.take(context, noise=finding.recomputed) for context in proven]
        self.chat_vitals = Vitals.take(contexts.chats, noise=finding.recomputed)
        self.scorer.sharing = self.chats.sharing = probe.prefix_sharing
        self._meter.reset_counters()
        return probe

    # --- tickets -----------------------------------------------------------------------------------------------------

    def run(self, ticket: AnyTicket) -> None:
        """Run the next step of a ticket, with other tickets' questions where decisions share decodes."""
        if self._batch_size > 1 and isinstance(ticket.job, ScoreRun):
            self._run_batch(ticket)
        else:
            self._run_alone(ticket)

    def finish(self, ticket: AnyTicket) -> None:
        """Release everything that a ticket holds."""
        self._scheduler.finish(ticket)
        if isinstance(ticket.job, ScoreRun):
            self.scorer.release(ticket.job)

    def _run_alone(self, ticket: AnyTicket) -> None:
        """Run one question or text, or warm a prefix; a ticket with more of them returns to the queue."""
        done = True
        try:
            self._delivery.check_wanted(ticket)
            ticket.start()
            done = self._run_step(ticket)
        except CallerLeftError:
            pass
        except Problem as problem:
            ticket.fail(problem)
        except Exception as error:
            self._fail(ticket, error)
            self._prove()
        finally:
            if done:
                self.finish(ticket)

    def _run_step(self, ticket: AnyTicket) -> bool:
        """Run one step; whether it was the last one."""
        if isinstance(ticket.job, ScoreRun):
            self.scorer.score_next(
                ticket.job, queue_ms=ticket.queue_ms, wanted=lambda: self._delivery.check_wanted(ticket)
            )
            return self._resolve_or_requeue(ticket, ticket.job)
        if isinstance(ticket.job, EmbeddingRun):
            return self._embed_next(ticket, ticket.job)
        self.scorer.warm(ticket.job)
        self._delivery.resolve(ticket, None)
        return True

    def _resolve_or_requeue(self, ticket: AnyTicket, run: ScoreRun) -> bool:
        """Hand out the scores, or return the ticket to the queue for its other questions; whether it was done."""
        if not run.done:
            left = len(run.job.prompts) - len(run.scores)
            tokens = ticket.tokens * left // ticket.steps
            self._scheduler.requeue(ticket, tokens=tokens, steps=left, keeps_turn=self.scorer.keeps_turn(run))
            return False
        self._scheduler.seal(ticket)
        self._delivery.resolve(ticket, run.scores)
        return True

    def _embed_next(self, ticket: AnyTicket, run: EmbeddingRun) -> bool:
        """Embed the next text; whether it was the last one."""
        context = self.contexts.embeddings
        assert context is not None  # noqa: S101 - no job is taken without it
        embed_next(run, context, self._meter, between=lambda: self._delivery.check_wanted(ticket))
        if left := run.left:
            self._scheduler.requeue(ticket, tokens=sum(map(len, left)), steps=len(left))
            return False
        self._delivery.resolve(ticket, run.rows)
        return True

    # --- several questions in one decode -----------------------------------------------------------------------------

    def _run_batch(self, first: AnyTicket) -> None:
        """Run the next questions of one ticket or several, their tails in one decode; what does not fit runs alone."""
        batch: list[tuple[AnyTicket, Ready]] = []
        taken = [first]
        ticket: AnyTicket | None = first
        room = self.contexts.decisions.shape.batch_tokens
        try:
            while ticket is not None and isinstance(run := ticket.job, ScoreRun):
                room = min(room, self._tokens_until(run.job.deadline))
                if sum(len(ready.tail) for _, ready in batch) + len(run.next.tail) > room:
                    break
                if (ready := self._prepare(ticket, run, sequence=len(batch))) is not None:
                    batch.append((ticket, ready))
                if len(batch) == self._batch_size:
                    ticket = None
                elif ready is None or run.prepared:
                    ticket = self._scheduler.pop_ticket()
                    taken += [ticket] if ticket else []
            self._decode_batch(batch)
        except BaseException:
            for each in taken:
                self.finish(each)
                each.fail(engine_failed())
            raise
        if ticket is not None and all(ticket is not each for each, _ in batch):
            self._run_alone(ticket)

    def _tokens_until(self, deadline: float) -> int:
        """Tokens that may share a decode, by the measured rate, so that no request is late."""
        rate = self._meter.rate
        if not rate or math.isinf(deadline):
            return self.contexts.decisions.shape.batch_tokens
        return int(rate * SHARE_OF_DEADLINE * max(0.0, deadline - time.monotonic()))

    def _prepare(self, ticket: AnyTicket, run: ScoreRun, *, sequence: int) -> Ready | None:
        """Evaluate all but the tail of the next question; None when that failed or its callers have left."""
        try:
            self._delivery.check_wanted(ticket)
            ticket.start()
            return self.scorer.prepare(
                run, at=sequence, queue_ms=ticket.queue_ms, wanted=lambda: self._delivery.check_wanted(ticket)
            )
        except CallerLeftError:
            self.scorer.discard(sequence)
            self.finish(ticket)
        except Exception as error:
            self._fail(ticket, error)
            self._prove(sequence=sequence)
        return None

    def _decode_batch(self, batch: Sequence[tuple[AnyTicket, Ready]]) -> None:
        """Decode questions that were prepared; each by itself where that fails, to see whose fault it is."""
        tickets = list({id(ticket): ticket for ticket, _ in batch}.values())
        try:
            self.scorer.score_batch([ready for _, ready in batch])
        except Exception as error:
            log.warning("a decode of %d decisions failed; each is scored alone", len(batch), exc_info=error)
            self._run_each_alone(tickets, error)
            return
        for ticket in tickets:
            # Its callers may have left after a question of it was prepared: then it is finished.
            if ticket.waiters and isinstance(run := ticket.job, ScoreRun):
                try:
                    done = self._resolve_or_requeue(ticket, run)
                except Exception as error:
                    self._fail(ticket, error)
                    self._prove()
                    continue
                if done:
                    self.finish(ticket)

    def _run_each_alone(self, tickets: Sequence[AnyTicket], error: Exception) -> None:
        """Run tickets whose shared decode failed."""
        try:
            self._prove()
        except EngineBrokenError:
            for ticket in tickets:  # any of them may have done it
                self._fail(ticket, error)
            raise
        for ticket in tickets:
            if ticket.waiters and isinstance(run := ticket.job, ScoreRun):
                run.begun = len(run.scores)
                self._run_alone(ticket)

    # --- chats -------------------------------------------------------------------------------------------------------

    @contextmanager
    def inside_chats(self) -> Iterator[None]:
        """Run tickets in the middle of a chat's decode."""
        self._inside_chats = True
        try:
            with self._meter.interrupted():
                yield
        finally:
            self._inside_chats = False

    def _chats_failed(self, generations: Sequence[Generation], error: Exception) -> None:
        """End the chats that a fault belongs to: one, or all that shared a decode."""
        self._delivery.count_fault(error)
        try:
            for generation in generations:
                self.chats.abandon(generation)
            self._prove()
        except BaseException:
            for generation in generations:  # any of them may have done it
                generation.fail(request_failed(error))
            raise
        for generation in generations:
            generation.fail(request_failed(error) if len(generations) == 1 else shared_decode_failed())

    # --- faults ------------------------------------------------------------------------------------------------------

    def _fail(self, ticket: AnyTicket, error: Exception) -> None:
        """End the ticket that a fault belongs to."""
        self._delivery.count_fault(error)
        self.finish(ticket)  # first, so that no caller joins what has failed
        self._delivery.fail(ticket, error)

    def _prove(self, *, sequence: int = 0) -> None:
        """Show that every context still computes what it did at the start, after a fault. Else the engine dies.

        Args:
            sequence: One of the decisions' that nothing needs.

        Raises:
            EngineBrokenError: One does not.
        """
        for vitals in self.vitals:
            vitals.prove(sequence, decoding=self._meter.decoding)
        free = self.chats.free_sequence
        if self.chat_vitals and free is not None and not self._inside_chats:
            self.chat_vitals.prove(free, decoding=self._meter.decoding)

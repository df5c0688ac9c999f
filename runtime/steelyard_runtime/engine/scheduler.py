"""Decides what runs next: queues of decisions and chats, admission, duplicates, turns."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from steelyard_runtime.engine.admission import Admission
from steelyard_runtime.engine.embedder import EmbeddingRun
from steelyard_runtime.engine.fair_queue import FairQueue
from steelyard_runtime.engine.generations import Generation
from steelyard_runtime.engine.interface import EmbeddingJob, Logits, Score, ScoreJob, ScorePrompt, Segment
from steelyard_runtime.engine.lifecycle import Lifecycle
from steelyard_runtime.engine.meter import Meter
from steelyard_runtime.engine.places import UNNAMED, ChatPlaces
from steelyard_runtime.engine.scorer import ScoreRun
from steelyard_runtime.engine.tickets import AnyTicket, AnyWaiter, ScoreTicket, Ticket, Waiter
from steelyard_runtime.engine.turns import Turns
from steelyard_runtime.errors import Problem

Duplicate = tuple[str, tuple[ScorePrompt, ...]]


@dataclass(slots=True, kw_only=True)
class Arrivals:
    """Totals of what callers submitted. Written with the scheduler's lock, whichever thread holds it.

    Attributes:
        refused: Requests that were not let in.
        joined: Requests that wait for the result of an exact duplicate.
        generations: Chats that were let in.
    """

    refused: int = 0
    joined: int = 0
    generations: int = 0


class Scheduler:
    """Queues work and says what runs next. Safe from any thread; only the engine's thread takes work out.

    Decisions, embeddings and prefixes to keep warm are tickets in one queue, chats wait in another; callers take turns
    in both. ``turns`` decides between the two. A decision that equals one that waits or runs is not queued again: its
    caller waits for the same ticket.

    Attributes:
        lifecycle: Whether work is taken.
        turns: Whether a decision goes before the chats; used on the engine's thread.
        arrivals: Totals of what was submitted.
        admission: How much work is ahead.
        chat_places: How many chats of callers without a name may run beside others.
        chats_running: Some chat is past the queue; set by the engine's thread.

    Args:
        meter: Knows how fast the machine is.
        queue_limit: Most waiting chats and, counted apart, most waiting tickets.
        unnamed_share: Share of each queue, and of the chats' places, that callers without a name may fill.
        turns: Decides between decisions and chats.
    """

    def __init__(self, meter: Meter, *, queue_limit: int, unnamed_share: float, turns: Turns | None = None) -> None:
        self.lifecycle = Lifecycle()
        self.turns = turns or Turns()
        self.arrivals = Arrivals()
        self.chat_places = ChatPlaces(unnamed_share=unnamed_share)
        self.admission = Admission(meter, queue_limit=queue_limit, unnamed_share=unnamed_share)
        self.chats_running = False
        self._changed = self.lifecycle.changed
        self._tickets: FairQueue[AnyTicket] = FairQueue()
        self._chats: FairQueue[Generation] = FairQueue()
        self._duplicates: dict[Duplicate, ScoreTicket] = {}

    # --- submission, from any thread ---------------------------------------------------------------------------------

    def submit_score(self, job: ScoreJob, *, expected_tokens: Callable[[], int]) -> Future[list[Score]]:
        """Queue a job, or let its caller wait for an exact duplicate.

        Args:
            job: The job.
            expected_tokens: Counts the tokens that will have to be evaluated; called with the lock.

        Raises:
            Problem: It is refused.
        """
        waiter: Waiter[list[Score]] = Waiter(job.deadline)
        duplicate = job.caller, job.prompts
        with self._changed:
            if (running := self._duplicates.get(duplicate)) is not None and not self.lifecycle.draining:
                running.waiters.append(waiter)
                self.arrivals.joined += 1
            else:
                ticket: ScoreTicket = Ticket(ScoreRun(job), job.caller, expected_tokens(), len(job.prompts), [waiter])
                self._submit(ticket, deadline=job.deadline)
                self._duplicates[duplicate] = ticket
        return waiter.future

    def submit_embedding(self, job: EmbeddingJob) -> Future[list[Logits]]:
        """Queue texts to embed.

        Raises:
            Problem: They are refused.
        """
        waiter: Waiter[list[Logits]] = Waiter(job.deadline)
        ticket = Ticket(EmbeddingRun(job), job.caller, sum(map(len, job.inputs)), len(job.inputs), [waiter])
        with self._changed:
            self._submit(ticket, deadline=job.deadline)
        return waiter.future

    def submit_warm(self, shared: tuple[Segment, ...]) -> Future[None]:
        """Queue a prefix to evaluate and keep.

        Raises:
            Problem: It is refused.
        """
        waiter: Waiter[None] = Waiter(math.inf)
        ticket = Ticket(shared, UNNAMED, sum(len(segment.tokens) for segment in shared), 1, [waiter])
        with self._changed:
            self._submit(ticket, deadline=math.inf)
        return waiter.future

    def submit_chat(self, generation: Generation) -> None:
        """Queue a chat.

        Raises:
            Problem: It is refused.
        """
        job = generation.job
        with self._changed:
            self._admit(len(job.prompt), job.deadline, caller=job.caller, line=self._chats)
            self.admission.add_chat(tokens=len(job.prompt), caller=job.caller)
            self._chats.push(generation, caller=job.caller)
            self.arrivals.generations += 1
            self._changed.notify_all()

    def cancel_chat(self, generation: Generation) -> None:
        """Have a chat ended at the engine's next step."""
        with self._changed:
            generation.cancelled = True
            self._changed.notify_all()

    def _submit(self, ticket: AnyTicket, *, deadline: float) -> None:
        self._admit(ticket.tokens, deadline, caller=ticket.caller, line=self._tickets)
        self.admission.add(tokens=ticket.tokens, steps=ticket.steps, caller=ticket.caller)
        self._tickets.push(ticket, caller=ticket.caller)
        self._changed.notify_all()

    def _admit(self, tokens: int, deadline: float, *, caller: str, line: FairQueue[Any]) -> None:
        """Refuse work that cannot be done, or not in time."""
        self.chat_places.note(caller)
        try:
            self.lifecycle.check_open()
            self.admission.check(
                tokens,
                deadline=deadline,
                waiting=len(line),
                beside_chats=self.chats_running,
                chat=line is self._chats,
                caller=caller,
                unnamed_waiting=line.waiting(UNNAMED),
            )
        except Problem:
            self.arrivals.refused += 1
            raise

    # --- the engine's thread -----------------------------------------------------------------------------------------

    @property
    def depth(self) -> int:
        """The number of tickets and chats that wait."""
        return len(self._tickets) + len(self._chats)

    @property
    def idle(self) -> bool:
        """Tell whether there is nothing to do."""
        return not (self._tickets or self._chats or self.chats_running)

    def wait_for_work(self) -> bool:
        """Block until there is something to do; False when the engine has to end."""
        with self._changed:
            while True:
                if self.lifecycle.stop_at is not None and (self.idle or self.lifecycle.time_is_up):
                    return False
                if not self.idle:
                    return True
                self._changed.wait(0.5)

    def next_ticket(self) -> AnyTicket | None:
        """Take the next ticket, or None when none waits or it is the chats' turn."""
        if self.chats_running and not self.turns.decision_goes_first:
            return None
        return self.pop_ticket()

    def pop_ticket(self) -> AnyTicket | None:
        """Take the next ticket; None when none waits."""
        with self._changed:
            return self._tickets.pop() if self._tickets else None

    @property
    def ticket_is_next(self) -> bool:
        """Tell whether ``next_ticket`` would give one."""
        return bool(self._tickets) and (not self.chats_running or self.turns.decision_goes_first)

    def requeue(self, ticket: AnyTicket, *, tokens: int, steps: int, keeps_turn: bool = False) -> None:
        """Return a ticket of which so many tokens and steps are left to the front of its caller's line.

        Args:
            ticket: The ticket.
            tokens: Tokens that are left.
            steps: Questions or texts that are left.
            keeps_turn: It is the next one; else the other callers come first.
        """
        push = self._tickets.push_front if keeps_turn else self._tickets.push_back
        with self._changed:
            self._set_left(ticket, tokens=tokens, steps=steps)
            push(ticket, caller=ticket.caller)

    def seal(self, ticket: AnyTicket) -> None:
        """Let no caller join a ticket any more: its result is there, or its callers have left."""
        with self._changed:
            self._seal(ticket)

    def finish(self, ticket: AnyTicket) -> None:
        """Take a ticket off the work ahead, and let no caller join it."""
        with self._changed:
            self._set_left(ticket, tokens=0, steps=0)
            self._seal(ticket)

    def _seal(self, ticket: AnyTicket) -> None:
        if isinstance(ticket.job, ScoreRun):
            key = ticket.job.job.caller, ticket.job.job.prompts
            if self._duplicates.get(key) is ticket:
                del self._duplicates[key]

    def _set_left(self, ticket: AnyTicket, *, tokens: int, steps: int) -> None:
        self.admission.add(tokens=tokens - ticket.tokens, steps=steps - ticket.steps, caller=ticket.caller)
        ticket.tokens, ticket.steps = tokens, steps

    def drop_waiters(self, ticket: AnyTicket) -> tuple[list[AnyWaiter], list[AnyWaiter]]:
        """Take the callers that have left, and those whose deadline has passed, off a ticket; both, in that order.

        When no waiter is left, no caller can join the ticket any more.
        """
        now = time.monotonic()
        with self._changed:
            waiters: list[AnyWaiter] = list(ticket.waiters)
            gone = [waiter for waiter in waiters if waiter.future.cancelled()]
            late = [waiter for waiter in waiters if waiter not in gone and now > waiter.deadline]
            ticket.waiters[:] = [waiter for waiter in waiters if waiter not in gone and waiter not in late]
            if not ticket.waiters:
                self._seal(ticket)
        return gone, late

    def next_chat(self, *, may_start: Callable[[str], bool]) -> Generation | None:
        """Take the next chat of the first caller that may start one; None when there is none.

        Args:
            may_start: Whether a chat of this caller may start now.
        """
        with self._changed:
            caller = next(filter(may_start, self._chats.callers()), None)
            return None if caller is None else self._chats.pop(caller)

    def waiting_chats(self) -> list[Generation]:
        """List the chats in the queue."""
        with self._changed:
            return list(self._chats)

    def remove_chat(self, generation: Generation) -> None:
        """Take a chat out of the queue, if it is there."""
        with self._changed:
            self._chats.remove(generation, caller=generation.job.caller)

    def chat_progressed(self, tokens: int, caller: str) -> None:
        """Take a chat's evaluated or abandoned tokens off the work ahead."""
        with self._changed:
            self.admission.add_chat(tokens=-tokens, caller=caller)

    def clear(self) -> tuple[list[AnyTicket], list[Generation]]:
        """Empty both queues at the end, and refuse new work; returns what was in them."""
        with self._changed:
            self.lifecycle.drain()
            self._duplicates.clear()
            self.admission.clear()
            return self._tickets.clear(), self._chats.clear()

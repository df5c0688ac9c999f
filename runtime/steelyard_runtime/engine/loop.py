"""The engine's loop: waiting decisions first, then one decode of the chats, each as it is their turn."""

from __future__ import annotations

import time

from steelyard_runtime.engine.delivery import Delivery
from steelyard_runtime.engine.executor import Executor
from steelyard_runtime.engine.meter import Meter
from steelyard_runtime.engine.scheduler import Scheduler
from steelyard_runtime.engine.tickets import AnyTicket


class Loop:
    """Takes work from the scheduler and has the executor run it, on the engine's thread.

    Args:
        scheduler: Says what runs next.
        executor: Runs it.
        delivery: Ends chats whose callers have left.
        meter: Knows how long a decision usually takes.
    """

    def __init__(self, scheduler: Scheduler, executor: Executor, delivery: Delivery, meter: Meter) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self._delivery = delivery
        self._meter = meter
        self._chats_since = 0.0
        self._interrupted = False

    def step(self) -> bool:
        """Run a ticket that waits, if it is its turn, and a decode of the chats, if it is theirs; False at the end."""
        if not self._scheduler.wait_for_work():
            return False
        if (ticket := self._scheduler.next_ticket()) is not None:
            self._run_ticket(ticket)
        self._end_unwanted_chats()
        self._start_chats()
        if not self._scheduler.chats_running:
            self._scheduler.turns.reset()
        elif not self._scheduler.ticket_is_next:
            self._run_chats()
        return True

    def _run_ticket(self, ticket: AnyTicket) -> None:
        began = time.monotonic()
        self._executor.run(ticket)
        self._scheduler.turns.charge_decision(time.monotonic() - began, usual_s=self._meter.decision_s)

    def _run_chats(self) -> None:
        """Run one decode of the chats, in whose middle decisions may have their turn."""
        self._chats_since, self._interrupted = time.monotonic(), False
        self._executor.chats.step(between=self._run_tickets_inside_chats)
        self._note_chats()
        taken_s = self._charge_chats()
        if not self._interrupted:
            self._meter.chat_decode_took(taken_s)

    def _run_tickets_inside_chats(self) -> None:
        """In the middle of a chat's decode: let the tickets that wait go first."""
        self._interrupted = True
        self._charge_chats()
        if self._scheduler.lifecycle.time_is_up or not self._scheduler.ticket_is_next:
            return
        self._meter.counters.interruptions += 1
        with self._executor.inside_chats():
            while (ticket := self._scheduler.next_ticket()) is not None:
                self._run_ticket(ticket)
        self._chats_since = time.monotonic()

    def _charge_chats(self) -> float:
        """Charge the chats the seconds that they had the engine since they got it, or since the last charge."""
        taken_s = time.monotonic() - self._chats_since
        self._chats_since += taken_s
        self._scheduler.turns.charge_chats(taken_s)
        return taken_s

    def _end_unwanted_chats(self) -> None:
        """End chats that were cancelled or are late."""
        for generation in (*self._executor.chats.generations(), *self._scheduler.waiting_chats()):
            if self._delivery.end_if_unwanted(generation):
                self._scheduler.remove_chat(generation)
                self._executor.chats.abandon(generation)

    def _start_chats(self) -> None:
        """Move chats from the queue to where there is room for them."""
        chats = self._executor.chats
        while (generation := self._scheduler.next_chat(may_start=chats.has_room)) is not None:
            chats.add(generation)
        self._note_chats()

    def _note_chats(self) -> None:
        self._scheduler.chats_running = not self._executor.chats.idle

"""What runs next, without a model: tickets, chats and their turns; who may join, and what is counted by whom."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tiny_models
from steelyard_runtime.engine.core import LlamaEngine
from steelyard_runtime.engine.generations import Generation
from steelyard_runtime.engine.interface import (
    Counters,
    EmbeddingJob,
    GenerationJob,
    Piece,
    Sampling,
    ScoreJob,
    ScorePrompt,
    Segment,
)
from steelyard_runtime.engine.meter import Meter
from steelyard_runtime.engine.scheduler import Arrivals, Scheduler
from steelyard_runtime.engine.start import start_engine
from steelyard_runtime.engine.tickets import AnyTicket
from steelyard_runtime.engine.turns import Turns
from steelyard_runtime.errors import Kind, Problem
from steelyard_runtime.settings import load_settings

WAIT_S = 60


class ChatsFirst(Turns):
    """It is never the decisions' turn."""

    @property
    def decision_goes_first(self) -> bool:
        return False


def opened(*, turns: Turns | None = None, queue_limit: int = 8) -> Scheduler:
    scheduler = Scheduler(Meter(), queue_limit=queue_limit, unnamed_share=1, turns=turns)
    scheduler.lifecycle.open()
    return scheduler


def job(state: int, *, tails: int = 1, caller: str = "ann", within_s: float = WAIT_S) -> ScoreJob:
    shared = (Segment((state,) * 5, private=True),)
    prompts = tuple(ScorePrompt(shared=shared, tail=(1, 2, n)) for n in range(tails))
    return ScoreJob(prompts=prompts, deadline=time.monotonic() + within_s, caller=caller)


def chat(caller: str = "ann", *, tokens: int = 7) -> Generation:
    asked = GenerationJob(
        prompt=(3,) * tokens, sampling=Sampling(max_tokens=4), deadline=time.monotonic() + WAIT_S, caller=caller
    )
    return Generation(asked, lambda _: None, pending=tokens)


def submit(scheduler: Scheduler, asked: ScoreJob, *, tokens: int = 10) -> Any:
    return scheduler.submit_score(asked, expected_tokens=lambda: tokens)


def taken(scheduler: Scheduler) -> list[AnyTicket]:
    """Every ticket in the order of its turn."""
    found = []
    while (ticket := scheduler.pop_ticket()) is not None:
        found.append(ticket)
    return found


def test_a_decision_is_next_unless_it_is_the_turn_of_running_chats() -> None:
    scheduler = opened(turns=ChatsFirst())
    submit(scheduler, job(1))
    scheduler.chats_running = True
    assert not scheduler.ticket_is_next
    assert scheduler.next_ticket() is None
    scheduler.chats_running = False
    assert scheduler.ticket_is_next
    assert scheduler.next_ticket() is not None
    assert scheduler.next_ticket() is None


def test_a_ticket_that_returns_waits_for_other_callers_unless_it_keeps_its_turn() -> None:
    scheduler = opened()
    submit(scheduler, job(1, tails=2, caller="ann"))
    submit(scheduler, job(2, caller="bob"))
    first = scheduler.pop_ticket()
    assert first is not None
    scheduler.requeue(first, tokens=5, steps=1, keeps_turn=True)
    assert scheduler.pop_ticket() is first
    scheduler.requeue(first, tokens=5, steps=1)
    assert [ticket.caller for ticket in taken(scheduler)] == ["bob", "ann"]


def test_what_is_ahead_is_what_is_left_of_every_ticket_and_chat() -> None:
    scheduler = opened()
    ahead = scheduler.admission
    submit(scheduler, job(1, tails=3), tokens=30)
    scheduler.submit_embedding(EmbeddingJob(inputs=((1, 2), (3,)), deadline=time.monotonic() + WAIT_S, caller="bob"))
    scheduler.submit_chat(chat(tokens=7))
    assert (ahead.tokens, ahead.steps, ahead.chat_tokens) == (33, 5, 7)
    decision, texts = taken(scheduler)
    scheduler.requeue(decision, tokens=20, steps=2)
    scheduler.chat_progressed(4, "ann")
    assert (ahead.tokens, ahead.steps, ahead.chat_tokens) == (23, 4, 3)
    scheduler.finish(decision)
    scheduler.finish(texts)
    scheduler.finish(texts)
    assert (ahead.tokens, ahead.steps, ahead.chat_tokens) == (0, 0, 3)


def test_a_duplicate_joins_until_the_ticket_is_sealed() -> None:
    scheduler = opened()
    submit(scheduler, job(1))
    submit(scheduler, job(1, within_s=5))
    submit(scheduler, job(1, caller="bob"))
    ticket = scheduler.pop_ticket()
    assert ticket is not None
    assert len(ticket.waiters) == 2
    assert scheduler.arrivals.joined == 1
    submit(scheduler, job(1))  # while it runs
    assert len(ticket.waiters) == 3
    scheduler.seal(ticket)
    submit(scheduler, job(1))
    assert len(ticket.waiters) == 3
    assert [ticket.caller for ticket in taken(scheduler)] == ["bob", "ann"]


def test_a_sealed_ticket_does_not_seal_the_one_that_came_after_it() -> None:
    scheduler = opened()
    submit(scheduler, job(1))
    first = scheduler.pop_ticket()
    assert first is not None
    scheduler.seal(first)
    submit(scheduler, job(1))
    scheduler.finish(first)
    submit(scheduler, job(1))
    assert [len(ticket.waiters) for ticket in taken(scheduler)] == [2]


def test_waiters_that_left_or_are_late_are_dropped_and_no_caller_joins_an_empty_ticket() -> None:
    scheduler = opened()
    futures = [submit(scheduler, job(1, within_s=within_s)) for within_s in (WAIT_S, WAIT_S, 0.001)]
    ticket = scheduler.pop_ticket()
    assert ticket is not None
    time.sleep(0.01)
    assert futures[0].cancel()
    gone, late = scheduler.drop_waiters(ticket)
    assert [[waiter.future for waiter in some] for some in (gone, late)] == [[futures[0]], [futures[2]]]
    assert [waiter.future for waiter in ticket.waiters] == [futures[1]]
    assert scheduler.drop_waiters(ticket) == ([], [])
    assert futures[1].cancel()
    assert len(scheduler.drop_waiters(ticket)[0]) == 1
    submit(scheduler, job(1))
    assert not ticket.waiters


def test_chats_start_for_the_first_caller_that_may() -> None:
    scheduler = opened()
    for caller in ("ann", "ann", "bob"):
        scheduler.submit_chat(chat(caller))
    started = [scheduler.next_chat(may_start=lambda caller: caller != "ann"), scheduler.next_chat(may_start=bool)]
    assert [generation.job.caller for generation in started if generation] == ["bob", "ann"]
    (left,) = scheduler.waiting_chats()
    scheduler.remove_chat(left)
    assert scheduler.next_chat(may_start=bool) is None


@pytest.mark.parametrize(
    ("change", "kind"),
    [("drain", Kind.DRAINING), ("die", Kind.ENGINE_FAILED), ("not open", Kind.NOT_READY), ("full", Kind.BUSY)],
)
def test_every_refusal_is_counted_once_and_leaves_nothing_behind(change: str, kind: Kind) -> None:
    scheduler = opened(queue_limit=1)
    if change == "drain":
        scheduler.lifecycle.drain()
    elif change == "die":
        scheduler.lifecycle.die("it broke")
    elif change == "not open":
        scheduler.lifecycle.ready = False
    else:
        submit(scheduler, job(1))
        scheduler.submit_chat(chat())
    before = scheduler.depth, scheduler.admission.tokens, scheduler.admission.chat_tokens
    for number, ask in enumerate((lambda: submit(scheduler, job(2)), lambda: scheduler.submit_chat(chat())), 1):
        with pytest.raises(Problem) as caught:
            ask()
        assert caught.value.kind is kind
        assert scheduler.arrivals.refused == number
    assert (scheduler.depth, scheduler.admission.tokens, scheduler.admission.chat_tokens) == before


def test_the_end_waits_for_what_was_accepted_until_its_time_is_up() -> None:
    scheduler = opened()
    submit(scheduler, job(1))
    scheduler.lifecycle.stop(within_s=WAIT_S)
    assert scheduler.wait_for_work()
    assert scheduler.pop_ticket() is not None
    assert not scheduler.wait_for_work()
    scheduler.chats_running = True
    assert scheduler.wait_for_work()
    scheduler.lifecycle.stop(within_s=0)
    assert not scheduler.wait_for_work()


def test_the_end_hands_back_what_waits_and_takes_no_more() -> None:
    scheduler = opened()
    submit(scheduler, job(1))
    scheduler.submit_chat(chat())
    tickets, generations = scheduler.clear()
    assert (len(tickets), len(generations)) == (1, 1)
    assert scheduler.idle
    assert scheduler.admission.tokens == scheduler.admission.chat_tokens == 0
    with pytest.raises(Problem, match="shutting down"):
        submit(scheduler, job(1))


# --- counters


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[LlamaEngine]:
    model = tiny_models.write("llama", tmp_path / "llama.gguf")
    engine = start_engine(load_settings(model=str(model), threads=1, context_tokens=512, queue_limit=4))
    yield engine
    engine.close(timeout_s=0)


def test_every_count_is_written_by_the_engines_thread_or_with_the_lock(
    engine: LlamaEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``+=`` of two threads at once would lose counts."""
    writers: dict[str, set[str]] = {}
    unlocked: list[str] = []
    changed = engine._lifecycle.changed

    class Noted(Counters):
        __slots__ = ()

        def __setattr__(self, name: str, value: Any) -> None:
            if self is engine._meter.counters:
                writers.setdefault(name, set()).add(threading.current_thread().name)
            super().__setattr__(name, value)

    class Locked(Arrivals):
        __slots__ = ()

        def __setattr__(self, name: str, value: Any) -> None:
            if self is engine._scheduler.arrivals and not changed._is_owned():
                unlocked.append(name)
            super().__setattr__(name, value)

    engine._meter.counters = Noted()
    engine._scheduler.arrivals = Locked()
    tokens = tuple(engine.encode([Piece("a text of some words")], start=True))

    def asked(number: int, *, within_s: float = WAIT_S) -> ScoreJob:
        prompt = ScorePrompt(shared=(Segment((*tokens, tokens[-1 - number % 4])),), tail=tokens[: 2 + number % 3])
        return ScoreJob(prompts=(prompt,), deadline=time.monotonic() + within_s)

    def ask(count: int) -> None:
        for number in range(count):
            try:
                future = engine.submit_score(asked(number, within_s=0.02 if number % 3 else WAIT_S))
            except Problem:
                continue
            if number % 5 == 0:
                future.cancel()
            elif number % 7 == 0:
                future.exception(WAIT_S)

    threads = [threading.Thread(target=ask, args=(60,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    over = threading.Event()
    sampling = Sampling(max_tokens=3, temperature=0)
    engine.submit_generation(
        GenerationJob(prompt=tokens, sampling=sampling, deadline=time.monotonic() + WAIT_S),
        lambda event: over.set() if type(event).__name__ in ("Done", "Failed") else None,
    )
    for thread in threads:
        thread.join(WAIT_S)
    assert over.wait(WAIT_S)
    engine.start_draining()
    with pytest.raises(Problem):
        engine.submit_score(asked(0))
    engine.close(timeout_s=WAIT_S)
    assert writers
    assert {name for name, who in writers.items() if who != {"steelyard-engine"}} == set()
    assert unlocked == []
    assert engine._scheduler.arrivals.refused > 0


def test_what_counters_gives_is_a_copy(engine: LlamaEngine) -> None:
    first = engine.counters
    first.rejected = 99
    engine.start_draining()
    with pytest.raises(Problem):
        engine._scheduler.submit_chat(chat())
    assert engine.counters.rejected == 1
    assert first.rejected == 99

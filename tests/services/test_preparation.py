"""Work before the engine: admitted, in turn by caller, small before large, dropped when nobody waits for it."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from steelyard_runtime.errors import Kind, Problem
from steelyard_runtime.services.preparation import INLINE_BYTES, LARGE_BYTES, Preparation, Preparing
from steelyard_runtime.services.waiting import answered

SMALL, LARGE = INLINE_BYTES + 1, LARGE_BYTES + 1


def preparation(places: int = 100, large_bytes: int = 64 << 20, unnamed_share: float = 1) -> Preparation:
    return Preparation(places=places, large_bytes=large_bytes, unnamed_share=unnamed_share)


def admit(subject: Preparation, *, caller: str = "", size: int = SMALL, deadline_s: float = 60) -> Preparing:
    return subject.admit(caller=caller, size=size, arrived=time.monotonic(), deadline_s=deadline_s)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, timeout=60))


class Held:
    """Work that holds its thread until it is let go; notes what ran after it, in order."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.began = threading.Event()
        self.ran: list[str] = []

    def hold(self) -> None:
        self.began.set()
        assert self.let_go.wait(60)

    def note(self, name: str) -> Callable[[], None]:
        return lambda: self.ran.append(name)

    async def holding(self, request: Preparing) -> asyncio.Task[None]:
        task = asyncio.create_task(request.parse(self.hold))
        await asyncio.to_thread(self.began.wait, 60)
        return task


def test_callers_take_turns() -> None:
    async def check() -> None:
        subject, held = preparation(), Held()
        first = await held.holding(admit(subject, caller="many"))
        names = ["many 1", "many 2", "many 3", "few 1"]
        tasks = [asyncio.create_task(admit(subject, caller=name.split()[0]).parse(held.note(name))) for name in names]
        await asyncio.sleep(0)
        held.let_go.set()
        await asyncio.gather(first, *tasks)
        assert held.ran == ["many 1", "few 1", "many 2", "many 3"]

    run(check())


@pytest.mark.parametrize("stage", ["parse", "tokenize"])
def test_small_work_is_not_behind_large_work(stage: str) -> None:
    async def check() -> None:
        subject, held = preparation(), Held()
        large = asyncio.create_task(getattr(admit(subject, size=LARGE), stage)(held.hold))
        await asyncio.to_thread(held.began.wait, 60)
        for name in ("parse", "tokenize", "render"):
            assert await getattr(admit(subject), name)(lambda: "answered") == "answered"
        assert not large.done()
        held.let_go.set()
        await large

    run(check())


def test_parsing_is_not_behind_tokenizing_large_texts() -> None:
    async def check() -> None:
        subject, held = preparation(), Held()
        texts = asyncio.create_task(admit(subject, size=LARGE).tokenize(held.hold))
        await asyncio.to_thread(held.began.wait, 60)
        assert await admit(subject, size=LARGE).parse(lambda: "parsed") == "parsed"
        held.let_go.set()
        await texts

    run(check())


def test_the_smallest_bodies_are_parsed_at_once() -> None:
    async def check() -> None:
        thread = await admit(preparation(), size=INLINE_BYTES).parse(threading.get_ident)
        assert thread == threading.get_ident()

    run(check())


def test_work_of_a_client_that_left_is_dropped_before_it_begins() -> None:
    async def check() -> None:
        subject, held = preparation(), Held()
        first = await held.holding(admit(subject))
        waiting = asyncio.create_task(admit(subject).parse(held.note("waiting")))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        held.let_go.set()
        await first
        await admit(subject).parse(held.note("last"))
        assert held.ran == ["last"]

    run(check())


def test_work_of_a_client_that_left_ends_at_its_next_check() -> None:
    async def check() -> None:
        subject, held = preparation(), Held()
        request = admit(subject)
        ended: list[Problem] = []

        def work() -> None:
            held.hold()
            try:
                request.check()
            except Problem as problem:
                ended.append(problem)

        task = asyncio.create_task(request.parse(work))
        await asyncio.to_thread(held.began.wait, 60)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        held.let_go.set()
        await admit(subject).parse(lambda: None)
        assert [problem.kind for problem in ended] == [Kind.DEADLINE]

    run(check())


def test_a_deadline_counts_from_the_arrival_and_ends_the_waiting() -> None:
    async def check() -> None:
        subject, held = preparation(), Held()
        first = await held.holding(admit(subject))
        late = subject.admit(caller="", size=SMALL, arrived=time.monotonic() - 50, deadline_s=50.05)
        with pytest.raises(Problem) as caught:
            await late.parse(held.note("late"))
        assert caught.value.kind is Kind.DEADLINE
        assert caught.value.retry_after_ms
        held.let_go.set()
        await first
        await admit(subject).parse(held.note("last"))
        assert held.ran == ["last"]

    run(check())


def refused(subject: Preparation, **asked: Any) -> Problem:
    with pytest.raises(Problem) as caught:
        admit(subject, **asked)
    assert caught.value.kind is Kind.BUSY
    assert caught.value.retry_after_ms
    return caught.value


def test_places_are_bounded_and_given_back() -> None:
    subject = preparation(places=2)
    first, second = admit(subject), admit(subject)
    assert "queue_limit" in refused(subject).message
    first.done()
    first.done()
    with admit(subject):
        refused(subject)
    second.__exit__()
    admit(subject)
    admit(subject)


def test_large_bodies_are_bounded_by_their_bytes_and_one_is_always_taken() -> None:
    subject = preparation(places=1, large_bytes=3 * LARGE)
    for size in (3 * LARGE, 9 * LARGE):
        with admit(subject, size=size):
            assert "max_waiting_mib" in refused(subject, size=LARGE).message
            admit(subject).done()  # small ones have places of their own
    with admit(subject, size=LARGE), admit(subject, size=2 * LARGE):
        refused(subject, size=LARGE)


def test_callers_without_a_name_share_a_part() -> None:
    subject = preparation(places=4, large_bytes=4 * LARGE, unnamed_share=0.5)
    for size in (SMALL, LARGE):
        admit(subject, size=size)
        admit(subject, size=size)
        refused(subject, size=size)
        admit(subject, caller="named", size=size)
        admit(subject, caller="other", size=size)
        refused(subject, caller="third", size=size)


def test_what_work_raises_is_its_requests() -> None:
    async def check() -> None:
        subject = preparation()
        with pytest.raises(ZeroDivisionError):
            await admit(subject).parse(lambda: 1 / 0)
        assert await admit(subject).parse(lambda: 1) == 1

    run(check())


class Body:
    """Something large, which a weak reference can watch."""


@pytest.fixture
def no_collector() -> Iterator[None]:
    """What nothing refers to goes at once; what is in a circle stays."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def ended(tasks: list[asyncio.Task[Any]], watched: weakref.ref[Body]) -> bool:
    """Whether, soon after the only task failed, nothing refers to the body that it worked on."""
    await asyncio.wait(tasks)
    assert tasks[0].cancelled() or tasks[0].exception() is not None
    tasks.clear()
    for _ in range(200):
        if watched() is None:
            return True
        await asyncio.sleep(0.01)
    return False


def refuse(body: Body) -> None:
    raise Problem(Kind.INVALID, f"{type(body).__name__} is wrong")


@pytest.mark.parametrize("end", ["refused", "left", "late"])
@pytest.mark.parametrize("large", [True, False])
def test_a_body_goes_when_its_request_ends(no_collector: None, end: str, large: bool) -> None:
    """An attacker's refused bodies, of 4 MB each, stayed until the collector came by: hundreds of MB."""

    async def check() -> None:
        subject, held = preparation(), Held()
        size, body = LARGE if large else SMALL, Body()
        watched = weakref.ref(body)
        if end != "refused":  # it waits behind another
            first = asyncio.create_task(admit(subject, size=size).parse(held.hold))
            await asyncio.to_thread(held.began.wait, 60)
        request = admit(subject, size=size, deadline_s=0.05 if end == "late" else 60)
        tasks = [asyncio.create_task(request.parse(refuse, body))]
        del body
        await asyncio.sleep(0)
        if end == "left":
            tasks[0].cancel()
        assert await ended(tasks, watched)
        held.let_go.set()
        if end != "refused":
            await first

    run(check())


def test_a_request_goes_when_the_engine_refused_it(no_collector: None) -> None:
    async def wait(futures: list[Future[None]], body: Body) -> None:
        await answered(futures.pop(), deadline=time.monotonic() + 60)

    async def check() -> None:
        future, body = Future[None](), Body()
        watched = weakref.ref(body)
        tasks = [asyncio.create_task(wait([future], body))]
        del body
        await asyncio.sleep(0)
        future.set_exception(Problem(Kind.BUSY, "busy"))
        del future
        assert await ended(tasks, watched)

    run(check())

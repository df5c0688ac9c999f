"""Several jobs at once: results in order, the first failure ends all, and no more in memory than was said."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from steelyard.models.parallel import StoppedError, Tally, check, ordered


@pytest.mark.parametrize("workers", [1, 3, 50])
@pytest.mark.parametrize("ahead", [None, 1, 4])
def test_results_come_in_the_order_of_the_jobs(workers, ahead):
    assert list(ordered([lambda _stop, n=n: n * n for n in range(20)], workers=workers, ahead=ahead)) == [
        n * n for n in range(20)
    ]


def test_no_jobs():
    assert list(ordered([], workers=4)) == []


def test_no_more_is_ahead_than_was_said():
    started = []
    results = ordered([lambda _stop, n=n: started.append(n) for n in range(20)], workers=8, ahead=3)
    with closing(results):
        next(results)
        assert max(started) < 3
        next(results)
        assert max(started) < 4


def test_the_first_failure_is_raised_and_stops_the_others():
    stopped = threading.Event()

    def waits(stop):
        stop.wait()
        stopped.set()
        check(stop)

    def fails(_stop):
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        list(ordered([waits, fails], workers=2))
    assert stopped.is_set()


def test_leaving_early_stops_what_runs():
    stopped = threading.Event()

    def waits(stop):
        stop.wait()
        stopped.set()

    with closing(ordered([lambda _stop: 1, waits], workers=2)) as results:
        assert next(results) == 1
    assert stopped.is_set()


def test_check_raises_once_it_is_to_stop():
    stop = threading.Event()
    check(stop)
    stop.set()
    with pytest.raises(StoppedError):
        check(stop)


def test_a_tally_adds_up():
    told = []
    tally = Tally(lambda done, total: told.append((done, total)), 10)
    for job, done in (("a", 1), ("b", 2), ("a", 5)):
        tally.set(job, done)
    assert told == [(1, 10), (3, 10), (7, 10)]

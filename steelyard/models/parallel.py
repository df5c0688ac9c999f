"""Several jobs at once, results in order. The first failure, or Ctrl-C, stops all of them."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

Result = TypeVar("Result")
Job = Callable[[threading.Event], Result]
"""Called with an event that is set when it should stop; it then raises ``StoppedError``."""

SECONDS_TO_STOP = 2.0


class StoppedError(Exception):
    """A job ended because another one failed."""


def check(stop: threading.Event) -> None:
    """Raise ``StoppedError`` when the jobs are to stop."""
    if stop.is_set():
        raise StoppedError


def ordered(jobs: Sequence[Job[Result]], *, workers: int, ahead: int | None = None) -> Generator[Result, None, None]:
    """The results of ``jobs`` in their order, each as soon as it and those before it are there.

    Close the generator when it is left early (``contextlib.closing``): jobs that still run are then stopped, and
    waited for, ``SECONDS_TO_STOP`` at most. A job that hangs in a system call does not hold the process: the threads
    are daemons.

    Args:
        jobs: What to do.
        workers: How many at once.
        ahead: How many results there may be that nobody has taken, running jobs included; as many as there are jobs
            by default.

    Raises:
        BaseException: What the first failing job raised.
    """
    stop = threading.Event()
    done: queue.SimpleQueue[tuple[int, Result | None, BaseException | None]] = queue.SimpleQueue()
    numbers = itertools.count()
    room = threading.Semaphore(ahead or len(jobs) or 1)

    def work() -> None:
        while True:
            room.acquire()
            if stop.is_set() or (number := next(numbers)) >= len(jobs):
                return
            try:
                done.put((number, jobs[number](stop), None))
            except BaseException as error:  # it is raised again where the results are taken
                done.put((number, None, error))
                return

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(workers, len(jobs)))]
    waiting: dict[int, Result] = {}
    try:
        for thread in threads:
            thread.start()
        for number in range(len(jobs)):
            while number not in waiting:
                finished, result, error = done.get()
                if error is not None:
                    raise error
                waiting[finished] = result  # type: ignore[assignment]  # None only beside an error
            yield waiting.pop(number)
            room.release()
    finally:
        stop.set()
        room.release(len(threads) + 1)
        end = time.monotonic() + SECONDS_TO_STOP
        for thread in threads:
            if thread.ident is not None:
                thread.join(max(0.0, end - time.monotonic()))


class Tally:
    """Adds up the progress of several jobs for one bar.

    Args:
        report: Receives the bytes of all jobs together, and their total (None while unknown).
        total: Bytes of all jobs, when they are known.
    """

    def __init__(self, report: Callable[[int, int | None], None], total: int | None) -> None:
        self._report = report
        self._total = total
        self._done: dict[str, int] = {}
        self._lock = threading.Lock()

    def set(self, job: str, done: int) -> None:
        """``job`` has ``done`` bytes."""
        with self._lock:
            self._done[job] = done
            self._report(sum(self._done.values()), self._total)

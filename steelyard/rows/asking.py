"""Asks decisions about many states: equal states once, over a bounded number of connections, in the input's order."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import islice
from queue import SimpleQueue
from typing import Any, Protocol

from steelyard.client.refusals import RequestError
from steelyard_base.exit_codes import CommandError

Json = dict[str, Any]

BLOCK_ROWS = 256
"""Rows that are looked at together: within them, equal states become one request."""

BLOCK_BYTES = 8 << 20
"""Bytes of rows after which a block ends earlier, so that memory is bounded whatever the rows hold."""

MOST_DECISIONS = 64
"""Decisions of one request: what a server allows by default."""


class Decides(Protocol):
    """Anything that answers decisions: a server over HTTP, or an endpoint."""

    def decide(self, body: Json) -> list[Json]:
        """Return one result per decision, in order."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One row's decisions.

    Attributes:
        id: Names the row.
        state: What is decided on.
        decisions: Without ``state``; each has an ``id``.
        beside: Further fields of the request, such as its layout.
        size: Bytes that the row takes, for the limit of a block.
    """

    id: Any
    state: Any
    decisions: Sequence[Json]
    beside: Mapping[str, Any] = field(default_factory=dict)
    size: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of one decision of a row: ``result``, or ``error``.

    Attributes:
        row: The row.
        decision: The decision.
        result: As the server gave it, with the decision's own id.
        error: Why there is none.
    """

    row: Ask
    decision: Json
    result: Json | None
    error: RequestError | None = None


def ask_all(client: Decides, rows: Iterable[Ask], *, concurrency: int) -> Iterator[list[Outcome]]:
    """Ask every row.

    Args:
        client: Where to.
        rows: Read as they are needed, a block at a time.
        concurrency: Requests that may be under way together.

    Yields:
        The outcomes of one row, in the order of ``rows``. A decision that is refused does not end the others.

    Raises:
        CommandError: Nothing more can be asked: no server answers, or the caller is refused whatever is asked.
    """
    waiting: deque[tuple[Ask, list[Future[Json | RequestError]]]] = deque()
    blocks = _blocks(rows)
    with _Workers(client, concurrency) as workers:
        exhausted = False
        while True:
            # One block ahead, so that connections are busy while the first rows of it are still awaited.
            while not exhausted and len(waiting) < BLOCK_ROWS:
                block = next(blocks, None)
                exhausted = block is None
                waiting.extend(_submit(workers, block or []))
            if not waiting:
                return
            row, answers = waiting.popleft()
            yield [
                _outcome(row, decision, answer.result())
                for decision, answer in zip(row.decisions, answers, strict=True)
            ]


def _outcome(row: Ask, decision: Json, answer: Json | RequestError) -> Outcome:
    if isinstance(answer, RequestError):
        return Outcome(row, decision, None, answer)
    return Outcome(row, decision, answer | {"id": decision["id"]})


def _blocks(rows: Iterable[Ask]) -> Iterator[list[Ask]]:
    source = iter(rows)
    while first := next(source, None):
        block, size = [first], first.size
        for row in islice(source, BLOCK_ROWS - 1):
            block.append(row)
            size += row.size
            if size > BLOCK_BYTES:
                break
        yield block


def _submit(workers: _Workers, block: Sequence[Ask]) -> list[tuple[Ask, list[Future[Json | RequestError]]]]:
    """Put a block's requests into the queue: one for each state, with the different decisions about it."""
    answers: dict[tuple[str, str], Future[Json | RequestError]] = {}
    requests: dict[str, tuple[Ask, list[tuple[Json, Future[Json | RequestError]]]]] = {}
    asked = []
    for row in block:
        state = _canonical([row.state, row.beside])
        futures = []
        for decision in row.decisions:
            key = state, _canonical({name: each for name, each in decision.items() if name != "id"})
            if key not in answers:
                answers[key] = Future()
                requests.setdefault(state, (row, []))[1].append((decision, answers[key]))
            futures.append(answers[key])
        asked.append((row, futures))
    for row, decisions in requests.values():
        for start in range(0, len(decisions), MOST_DECISIONS):
            workers.put(_Request(row, decisions[start : start + MOST_DECISIONS]))
    return asked


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


@dataclass(frozen=True, slots=True)
class _Request:
    row: Ask
    decisions: Sequence[tuple[Json, Future[Json | RequestError]]]

    def body(self) -> Json:
        # Ids of different rows may be equal; the server wants different ones.
        filled = [
            decision | {"id": str(number), "state": self.row.state}
            for number, (decision, _) in enumerate(self.decisions, 1)
        ]
        return dict(self.row.beside) | ({"decisions": filled} if len(filled) > 1 else {"decision": filled[0]})


class _Workers:
    """Threads that each send one request at a time. They are daemons: Ctrl-C does not wait for answers under way."""

    def __init__(self, client: Decides, count: int) -> None:
        self._client = client
        self._queue: SimpleQueue[_Request | None] = SimpleQueue()
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(count)]

    def __enter__(self) -> _Workers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        self._stopped.set()
        for _ in self._threads:
            self._queue.put(None)

    def put(self, request: _Request) -> None:
        self._queue.put(request)

    def _work(self) -> None:
        while (request := self._queue.get()) is not None and not self._stopped.is_set():
            self._send(request)

    def _send(self, request: _Request) -> None:
        futures = [future for _, future in request.decisions]
        try:
            results = self._client.decide(request.body())
            if len(results) != len(futures):
                raise CommandError(f"{len(futures)} decisions were asked, and {len(results)} were answered")
        except RequestError as error:
            if len(futures) == 1:
                futures[0].set_result(error)
                return
            # One of them may be to blame: it alone must fail.
            for each in request.decisions:
                self._send(_Request(request.row, [each]))
        except Exception as error:
            # It holds for every row: those before it are answered or under way, and the ones behind need not be asked.
            self._stopped.set()
            for future in futures:
                future.set_exception(error)
        else:
            for future, result in zip(futures, results, strict=True):
                future.set_result(result)

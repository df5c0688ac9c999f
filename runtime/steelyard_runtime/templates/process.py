"""Child processes in which chat templates are compiled and rendered, because Python cannot bound Python.

A template is a stranger's program. In a child, the operating system bounds what it costs: processor time, memory, the
length of its answer. A child that goes over is ended and replaced; the request that it worked for gets a fault, those
that wait are served. Callers take turns.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from steelyard_runtime.engine.fair_queue import FairQueue
from steelyard_runtime.errors import Kind, Problem
from steelyard_runtime.templates.limits import CHILDREN, MAX_TEMPLATE_CHARACTERS, MAX_WAITING, PATIENCE_S

_RETRY_MS = 500
_MAX_ANSWER_BYTES = 128 << 20
_CHUNK_BYTES = 1 << 20
# The child imports what this process would, and gets nothing else of it: no environment, no descriptors.
_BOOT = "import sys; sys.path[:] = sys.argv[1:]; from steelyard_runtime.templates.worker import main; main()"
_KEPT_VARIABLES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT")

Answer = dict[str, Any]
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    request: Mapping[str, Any]
    convert: Callable[[Answer], Any]
    future: Future[Any]


class TemplateProcesses:
    """A few child processes and the requests that wait for them. Safe from any thread.

    Children are started when there is work, and end with this process, or with ``close``.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queue: FairQueue[_Job] = FairQueue()
        self._idle = 0
        self._threads: list[threading.Thread] = []
        self._children: set[_Child] = set()
        self._closed = False

    def submit(
        self, request: Mapping[str, Any], *, convert: Callable[[Answer], Result], caller: str = ""
    ) -> Future[Result]:
        """Queue a request; a result that is cancelled meanwhile is not worked for.

        Args:
            request: ``want`` (``render``, ``compile``, ``review``), ``source``, and what ``worker`` needs for it.
            convert: Makes the result of the child's answer. ``fault`` in that is ``time``, ``memory``, ``output``,
                ``died``, or with ``words`` ``compile``, ``refused`` or ``failed``.
            caller: Name of the caller; callers take turns.

        Raises:
            Problem: BUSY, when too many wait.
        """
        future: Future[Result] = Future()
        if len(request["source"]) > MAX_TEMPLATE_CHARACTERS:
            words = f"it has {len(request['source'])} characters and {MAX_TEMPLATE_CHARACTERS} are allowed"
            future.set_result(convert({"fault": "compile", "words": words}))
            return future
        with self._changed:
            if self._closed:
                raise Problem(Kind.DRAINING, "The server is stopping.", retry_after_ms=_RETRY_MS)
            if len(self._queue) >= MAX_WAITING:
                raise Problem(
                    Kind.BUSY,
                    f"{len(self._queue)} chats wait for their chat template, which is the limit; try again later.",
                    retry_after_ms=_RETRY_MS,
                )
            self._queue.push(_Job(request, convert, future), caller=caller)
            if self._idle < len(self._queue) and len(self._threads) < CHILDREN:
                thread = threading.Thread(target=self._work, name="chat-template", daemon=True)
                self._threads.append(thread)
                thread.start()
            self._changed.notify()
        return future

    def close(self) -> None:
        """End the children; requests that wait are cancelled."""
        with self._changed:
            self._closed = True
            for job in self._queue.clear():
                job.future.cancel()
            for child in self._children:
                child.kill()  # the thread that it works for sees its end
            self._changed.notify_all()

    def _work(self) -> None:
        child: _Child | None = None
        while True:
            with self._changed:
                self._idle += 1
                while not self._queue and not self._closed:
                    self._changed.wait()
                self._idle -= 1
                if self._closed:
                    break
                job = self._queue.pop()
            if not job.future.set_running_or_notify_cancel():
                continue
            try:
                child, answer = self._serve(child, job.request)
                job.future.set_result(job.convert(answer))
            except BaseException as error:  # also where no child can be started
                job.future.set_exception(error)
        if child is not None:
            child.end()

    def _serve(self, child: _Child | None, request: Mapping[str, Any]) -> tuple[_Child | None, Answer]:
        """The answer of ``child``, or of another one when it has died of something else than this request."""
        body = json.dumps(dict(request), ensure_ascii=False).encode("utf-8", "surrogatepass")
        for last in (False, True):
            if child is None or child.ended:
                child = self._replace(child)
            answer = child.ask(body)
            if answer.get("fault") in ("time", "memory", "died"):
                self._replace(child, start=False)
                child = None
                if answer["fault"] == "died" and not last:
                    continue
            return child, answer
        raise AssertionError  # not reached: the last round returns

    def _replace(self, child: _Child | None, *, start: bool = True) -> Any:
        if child is not None:
            child.end()
        with self._changed:
            if child is not None:
                self._children.discard(child)
            if not start:
                return None
            if self._closed:
                raise Problem(Kind.DRAINING, "The server is stopping.", retry_after_ms=_RETRY_MS)
            new = _Child()
            self._children.add(new)
            return new


class _Child:
    def __init__(self) -> None:
        environment = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-I", "-X", "utf8", "-c", _BOOT, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env=environment,
            start_new_session=True,  # Ctrl-C on a terminal is for the server, which ends its children
        )
        assert self._process.stdin is not None and self._process.stdout is not None  # noqa: S101, PT018 - both PIPE
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._in, False)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def ask(self, body: bytes) -> Answer:
        """The answer to a request, or the fault that the child ended with."""
        limit = time.monotonic() + PATIENCE_S
        try:
            self._send(len(body).to_bytes(4, "big") + body, limit)
            size = int.from_bytes(self._receive(4, limit), "big")
            if size > _MAX_ANSWER_BYTES:
                return {"fault": "output"}
            answer: Answer = json.loads(self._receive(size, limit).decode("utf-8", "surrogatepass"))
        except TimeoutError:
            return {"fault": "time"}
        except OSError:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=PATIENCE_S)
            return {"fault": "time" if self._process.returncode == -signal.SIGPROF else "died"}
        return answer

    def kill(self) -> None:
        """End the process; it holds nothing that has to be saved."""
        self._process.kill()

    def end(self) -> None:
        """Kill the process and wait for its end; no request may be running in it."""
        self.kill()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process.wait()

    def _send(self, data: bytes, limit: float) -> None:
        view = memoryview(data)
        while view:
            _wait(limit, writing=self._in)
            view = view[os.write(self._in, view[:_CHUNK_BYTES]) :]

    def _receive(self, size: int, limit: float) -> bytes:
        chunks, left = [], size
        while left:
            _wait(limit, reading=self._out)
            chunk = os.read(self._out, min(left, _CHUNK_BYTES))
            if not chunk:
                raise OSError("the child closed its output")
            chunks.append(chunk)
            left -= len(chunk)
        return b"".join(chunks)


def _wait(limit: float, *, reading: int | None = None, writing: int | None = None) -> None:
    poll = select.poll()
    for descriptor, event in ((reading, select.POLLIN), (writing, select.POLLOUT)):
        if descriptor is not None:
            poll.register(descriptor, event)
    if not poll.poll(max(0.0, limit - time.monotonic()) * 1000):
        raise TimeoutError


@functools.cache
def shared() -> TemplateProcesses:
    """The processes of this program; started when they are first needed, ended with it."""
    processes = TemplateProcesses()
    atexit.register(processes.close)
    return processes

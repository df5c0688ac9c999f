"""The process: it listens at once, loads the model meanwhile, and ends with an honest answer to everybody.

``python -m steelyard_runtime.http.serve`` runs it with settings from ``STEELYARD_*`` and ``STEELYARD_CONFIG``.

Exit status: 0 after SIGTERM, SIGHUP, SIGQUIT or Ctrl-C; 1 when the address is taken, the engine does not start, or dies
while serving; 2 when a setting is wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import os
import signal
import socket
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import uvicorn
from structlog.typing import FilteringBoundLogger

from steelyard_runtime.allocator import return_large_blocks
from steelyard_runtime.chat_template import BadTemplateError
from steelyard_runtime.decisions.registry import MismatchedHeadError, RegistryError
from steelyard_runtime.http.app import create_app
from steelyard_runtime.http.connections import (
    Connections,
    TooFewDescriptorsError,
    connection_limit,
    raise_descriptor_limit,
)
from steelyard_runtime.http.listener import Listener
from steelyard_runtime.http.observability.embedded import INTERVAL_S
from steelyard_runtime.http.observability.log_writer import LogWriter
from steelyard_runtime.http.observability.logs import (
    Sink,
    describe_exception,
    forward_python_faults,
    forward_standard_logging,
    make_log,
)
from steelyard_runtime.http.observability.metrics import Metrics
from steelyard_runtime.http.observability.records import Records
from steelyard_runtime.http.protocol import Protocol
from steelyard_runtime.http.runtime import Runtime, Services, build_services
from steelyard_runtime.legible import reason_of
from steelyard_runtime.metrics_table import STARTS_REFUSED
from steelyard_runtime.settings import Settings, SettingsError, load_settings

STOPPED = 0
FAILED = 1
WRONG_SETTINGS = 2

BACKLOG = 2048
# Longer than the idle time-out of a load balancer (60 s), so that it and not we closes idle connections.
KEEP_ALIVE_S = 75
# The engine asks Python at every node of a chat's decode whether a decision waits. A busy event loop would keep each of
# these questions waiting for Python's default of 5 ms.
SWITCH_S = 0.0005
HEALTH_CHECK_S = 0.5
DEAD_ENGINE_GRACE_S = 5.0


def serve(settings: Settings) -> int:
    """Serve until a signal to stop, or until the engine ends.

    Returns:
        The process's exit status, see the module's text.
    """
    # Before there are threads, which take their heaps at their first block.
    return_large_blocks()
    sink = _log_sink()
    log = make_log(settings, sink)
    forward_standard_logging(log, settings)
    forward_python_faults(log, settings)
    try:
        return _serve(settings, log, sink)
    finally:
        _drain(sink)


def _serve(settings: Settings, log: FilteringBoundLogger, sink: Sink) -> int:
    sys.setswitchinterval(SWITCH_S)
    try:
        limit = connection_limit(settings.max_connections, descriptors=raise_descriptor_limit())
    except TooFewDescriptorsError as error:
        log.error("not_listening", reason=str(error))
        return FAILED
    try:
        records = Records(settings, log=sink)
    except OSError as error:
        log.error("not_recording", reason=f"The file {settings.decision_records} cannot be opened: {error.strerror}.")
        return FAILED
    process = _Process(settings, log, sink, records, connections=limit)
    status = asyncio.run(process.run())
    records.close()
    log.info("stopped", status=status)
    if process.loading:
        # A library's destructors must not run under a thread that is still loading a model with it.
        _drain(sink)
        os._exit(status)
    return status


def _log_sink() -> Sink:
    """Standard output, written by a thread of its own; a reader that stops reading holds up nothing else."""
    for number in (0, 1, 2):  # closed ones would become a socket's, and lines be sent to a caller
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is None:
        return LogWriter(None)
    try:
        sys.stdout.flush()
        return LogWriter(sys.stdout.fileno())
    except (OSError, ValueError):  # it is no file, as in some tests and notebooks
        return sys.stdout


def _drain(sink: Sink) -> None:
    if isinstance(sink, LogWriter):
        sink.drain()
    else:
        sink.flush()


class _Server(uvicorn.Server):
    """uvicorn with a listener of ours, and without its signal handling.

    It would raise the signal again, and the status would not be ours.
    """

    def __init__(self, config: uvicorn.Config, connections: Connections) -> None:
        super().__init__(config)
        self._connections = connections

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen on the given sockets."""
        make = functools.partial(
            Protocol,
            config=self.config,
            server_state=self.server_state,
            app_state={},
            connections=self._connections,
        )
        # It closes and awaits them, no more.
        self.servers = [Listener(sock, make, self._connections) for sock in sockets or []]  # type: ignore[misc]
        self.started = True

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class _Process:
    def __init__(
        self, settings: Settings, log: FilteringBoundLogger, sink: Sink, records: Records, *, connections: int
    ) -> None:
        self._settings = settings
        self._log = log
        self._sink = sink
        counted = Connections(
            limit=connections, unnamed_share=settings.unnamed_share, unread_timeout_s=settings.unread_timeout_s
        )
        self._runtime = Runtime(settings=settings, connections=counted)
        if isinstance(sink, LogWriter):
            self._runtime.dropped_lines = lambda: sink.dropped
        self._app = create_app(self._runtime, log=log, sink=sink, records=records)
        self._metrics: Metrics = self._app.state.metrics
        self._stop = asyncio.Event()
        self._loader: threading.Thread | None = None
        self._server = _Server(
            uvicorn.Config(
                self._app,
                http=Protocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=BACKLOG,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=math.ceil(settings.drain_s),
            ),
            counted,
        )

    @property
    def loading(self) -> bool:
        """Tell whether the engine is still being started."""
        return self._loader is not None and self._loader.is_alive()

    async def run(self) -> int:
        """Everything from binding the address to the exit status."""
        try:
            listener = self._listen()
        except (OSError, TypeError) as error:  # TypeError: Python's for names that the DNS cannot hold, such as é..b
            where = f"{self._settings.host}:{self._settings.port}"
            reason = (isinstance(error, OSError) and error.strerror) or error
            self._log.error("not_listening", reason=f"Cannot listen on {where}: {reason}.")
            return FAILED
        self._take_signals()
        serving = asyncio.create_task(self._server.serve(sockets=[listener]))
        telling = asyncio.create_task(self._tell_metrics())
        status = await self._supervise(listener)
        self._server.should_exit = True
        closing = asyncio.create_task(self._close_engine(status))
        await serving
        await closing
        telling.cancel()
        self._metrics.flush()
        return status

    async def _tell_metrics(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            self._metrics.flush()

    def _listen(self) -> socket.socket:
        host, port = self._settings.host, self._settings.port
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
        listener.setblocking(False)
        return listener

    def _take_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        # These would end the process in the middle of its work. One that is ignored, as nohup has it, stays so.
        for number, take in ((signal.SIGHUP, self._drain), (signal.SIGQUIT, self._drain)):
            if signal.getsignal(number) is signal.SIG_DFL:
                loop.add_signal_handler(number, take, number)
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, signal.SIG_IGN)

    def _on_signal(self, number: signal.Signals) -> None:
        if self._stop.is_set():
            # Asked twice: stop at once.
            self._log.warning("stopping_now", signal=number.name)
            _drain(self._sink)
            os._exit(FAILED)
        self._drain(number)

    def _drain(self, number: signal.Signals) -> None:
        """Stop after the work in progress. A terminal that closes may send SIGHUP more than once."""
        if not self._stop.is_set():
            self._log.info("stopping", signal=number.name, drain_s=self._settings.drain_s)
            self._stop.set()

    async def _supervise(self, listener: socket.socket) -> int:
        """Start the engine, watch it, and say with which status to end."""
        host, port = listener.getsockname()[:2]
        name = f"[{host}]" if ":" in host else host
        while not self._server.started:
            await asyncio.sleep(0.005)
        self._log.info("listening", url=f"http://{name}:{port}", model=self._settings.model)
        if self._settings.decision_records is not None and self._settings.record_text:
            self._log.warning("recording_text", to=self._settings.decision_records)
        stop = asyncio.create_task(self._stop.wait())
        started = self._start_engine()
        try:
            first: list[asyncio.Future[Any]] = [stop, started]
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if not started.done():
                return STOPPED
            services = started.result()
            if services is None:
                return FAILED
            self._runtime.services = services
            self._log.info("ready", url=f"http://{name}:{port}", **services.identity.summary())
            return await self._watch(services, stop)
        finally:
            stop.cancel()

    def _start_engine(self) -> asyncio.Future[Services | None]:
        """Start the engine on a thread of its own; the result is None when it failed, which has been logged then."""
        loop = asyncio.get_running_loop()
        started: asyncio.Future[Services | None] = loop.create_future()

        def start() -> None:
            services = self._load()
            with contextlib.suppress(RuntimeError):  # the loop is closed: stopped while loading
                loop.call_soon_threadsafe(lambda: None if started.done() else started.set_result(services))

        self._loader = threading.Thread(target=start, name="engine-start", daemon=True)
        self._loader.start()
        return started

    def _load(self) -> Services | None:
        # Imported here so that the socket listens before llama.cpp's libraries are loaded.
        try:
            from steelyard_runtime.engine.start import EngineStartError, start_engine
        except ImportError as error:
            self._refuse_start("llama.cpp could not be loaded")
            self._log.error("start_failed", reason=str(error))
            return None
        try:
            return build_services(self._settings, start_engine(self._settings))
        except (EngineStartError, BadTemplateError, RegistryError) as error:
            mismatched = isinstance(error, MismatchedHeadError)
            self._refuse_start("the model could not be loaded", counted="mismatched_head" if mismatched else "other")
            self._log.error("start_failed", reason=str(error))
        except Exception as error:
            self._refuse_start("the model could not be loaded")
            self._log.error("start_failed", reason=reason_of(error), **describe_exception(error, self._settings))
        return None

    def _refuse_start(self, reason: str, *, counted: str = "other") -> None:
        self._runtime.reason = reason
        self._metrics.add(STARTS_REFUSED, labels={"reason": counted})

    async def _watch(self, services: Services, stop: asyncio.Task[bool]) -> int:
        while not stop.done():
            health = services.engine.health()
            if health.dead:
                self._log.error("engine_died", reason=health.reason)
                return FAILED
            await asyncio.wait({stop}, timeout=HEALTH_CHECK_S)
        return STOPPED

    async def _close_engine(self, status: int) -> None:
        """Let accepted work finish; what is left shortly before the end is failed, while there is time to say so."""
        services = self._runtime.services
        if services is None:
            self._runtime.reason = "the server is stopping"
            return
        drain_s = self._settings.drain_s if status == STOPPED else min(DEAD_ENGINE_GRACE_S, self._settings.drain_s)
        services.engine.start_draining()
        await asyncio.to_thread(services.engine.close, timeout_s=drain_s - min(3.0, drain_s / 2))


def main() -> int:
    """Serve with the settings of the environment."""
    config = os.environ.get("STEELYARD_CONFIG")
    try:
        settings = load_settings(config=Path(config) if config else None)
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        return WRONG_SETTINGS
    return serve(settings)


if __name__ == "__main__":
    sys.exit(main())

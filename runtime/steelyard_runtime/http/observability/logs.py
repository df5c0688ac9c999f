"""Log lines: JSON, or text for a person. Hashes, scores and times; a caller's text only if the settings ask for it."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Hashable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any, Protocol, TextIO, cast

import structlog
from structlog.typing import FilteringBoundLogger

from steelyard_runtime.settings import Settings

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


REPEATED_S = 10.0
"""A fault of the server that recurs is logged once in so many seconds, with how often it did."""
_KINDS_OF_FAULTS = 64
CHEAP_LINES_PER_S, CHEAP_LINES_AT_ONCE = 20.0, 100
"""Lines of requests for which nothing was evaluated: refusals, /ping and its like. The metrics count all of them."""
_NOT_FOR_PEOPLE = frozenset({"prompt_sha256", "model_sha256", "time", "level", "event", "traceback"})


Clock = Callable[[], float]


class Sink(Protocol):
    """The destination of lines, each with one call of ``write``."""

    def write(self, text: str, /) -> object:
        """Take a line."""
        ...

    def flush(self) -> None:
        """Write what was taken."""
        ...

    def isatty(self) -> bool:
        """Tell whether a person reads it on a terminal."""
        ...


class LineBudget:
    """Bound the lines of requests that cost the engine nothing, so that nobody fills a log with cheap ones.

    For the event loop's thread only.

    Args:
        per_s: Lines a second, in the long run.
        burst: Lines at once.
        clock: Seconds that only go forward.
    """

    def __init__(
        self, *, per_s: float = CHEAP_LINES_PER_S, burst: int = CHEAP_LINES_AT_ONCE, clock: Clock = time.monotonic
    ) -> None:
        self._per_s = per_s
        self._burst = burst
        self._clock = clock
        self._left = float(burst)
        self._at = clock()
        self._left_out = 0

    def take(self) -> int | None:
        """Return how many lines were left out since the last one, or None to leave this one out too."""
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._at) * self._per_s)
        self._at = now
        if self._left < 1:
            self._left_out += 1
            return None
        self._left -= 1
        left_out, self._left_out = self._left_out, 0
        return left_out


class Repeats:
    """Decide which of many equal lines are written, so that nobody can fill a log with one fault."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[Hashable, tuple[float, int]] = {}

    def due(self, key: Hashable) -> int | None:
        """Return how many lines like this one were left out since the last, or None to leave this one out too."""
        now = time.monotonic()
        with self._lock:
            if key not in self._last and len(self._last) >= _KINDS_OF_FAULTS:
                key = "others"
            written, left_out = self._last.get(key, (-REPEATED_S, 0))
            if now - written < REPEATED_S:
                self._last[key] = (written, left_out + 1)
                return None
            self._last[key] = (now, 0)
            return left_out


class Undisturbed:
    """A stream whose end disturbs nobody: a line that cannot be written costs no caller the answer."""

    def __init__(self, stream: Sink) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        """Write a line, or nothing."""
        with suppress(OSError, ValueError):  # a reader that is gone; a stream that is closed
            self._stream.write(text)

    def flush(self) -> None:
        """Flush, if that is possible."""
        with suppress(OSError, ValueError):
            self._stream.flush()


def make_log(settings: Settings, stream: Sink | None = None) -> FilteringBoundLogger:
    """A logger that writes to ``stream`` (standard output by default): JSON, one object per line, or text."""
    sink = stream or sys.stdout
    text = settings.log_format == "text" or (settings.log_format == "auto" and _is_terminal(sink))
    log: FilteringBoundLogger = structlog.wrap_logger(
        structlog.WriteLogger(cast(TextIO, Undisturbed(sink))),
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[settings.log_level]),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S" if text else "iso", utc=not text, key="time"),
            as_text if text else structlog.processors.JSONRenderer(ensure_ascii=False, default=str),
        ],
    )
    return log


def _is_terminal(sink: Sink) -> bool:
    try:
        return sink.isatty()
    except ValueError:  # it is closed
        return False


def as_text(_: object, __: str, entry: MutableMapping[str, Any]) -> str:
    """Render an entry for a person: time, level, event, then its values; a traceback on lines of its own."""
    head = f"{entry['time']} {entry['level']:<7} {entry['event']}"
    values = " ".join(f"{key}={_shown(value)}" for key, value in entry.items() if key not in _NOT_FOR_PEOPLE)
    frames = "".join(f"\n    {_printable(str(frame))}" for frame in entry.get("traceback", ()))
    return f"{head}  {values}".rstrip() + frames


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + " ".join(f"{key}={_shown(each)}" for key, each in value.items()) + "}"
    if isinstance(value, str):
        plain = value.isprintable() and value and not any(mark in value for mark in ' "=')
        return value if plain else json.dumps(value, ensure_ascii=not value.isprintable())
    return _printable(json.dumps(value, ensure_ascii=False, default=str))


def _printable(text: str) -> str:
    """Return text that a terminal only shows: no control characters."""
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def describe_exception(error: BaseException, settings: Settings) -> dict[str, Any]:
    """Type and traceback of ``error``, for a log line.

    Its message is left out unless raw text may be logged: the messages of ``KeyError`` and its kin quote the input.
    """
    described: dict[str, Any] = {
        "exception": type(error).__qualname__,
        "traceback": [
            f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in traceback.extract_tb(error.__traceback__)
        ],
    }
    if settings.log_raw_text:
        described["message"] = str(error)
    if error.__cause__ is not None:
        described["cause"] = describe_exception(error.__cause__, settings)
    return described


class ForwardToLog(logging.Handler):
    """Turns lines of the standard ``logging`` module (uvicorn's, asyncio's, our own) into lines of ours."""

    def __init__(self, log: FilteringBoundLogger, settings: Settings) -> None:
        super().__init__(level=logging.WARNING)
        self._log = log
        self._settings = settings
        self._repeats = Repeats()

    def emit(self, record: logging.LogRecord) -> None:
        """Write ``record`` without its arguments: they may hold what a caller sent."""
        # The text of a warning of Python is its argument, and no caller's.
        text = (record.getMessage() if record.name == "py.warnings" else str(record.msg))[:200]
        left_out = self._repeats.due((record.name, text[:40]))
        if left_out is None:
            return
        described: dict[str, Any] = {"repeated": left_out} if left_out else {}
        if record.exc_info and record.exc_info[1] is not None:
            described |= describe_exception(record.exc_info[1], self._settings)
        self._log.log(record.levelno, "server", logger=record.name, text=text, **described)


def forward_standard_logging(log: FilteringBoundLogger, settings: Settings) -> None:
    """Send the warnings and errors of every library to ``log`` instead of to standard error, which may not be read."""
    root = logging.getLogger()
    root.handlers = [h for h in root.handlers if not isinstance(h, ForwardToLog)] + [ForwardToLog(log, settings)]
    for name in ("uvicorn", "uvicorn.error", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers = []
        logger.propagate = True
        logger.setLevel(logging.WARNING)


def forward_python_faults(log: FilteringBoundLogger, settings: Settings) -> None:
    """Send to ``log`` what Python would write to standard error: warnings, and exceptions that nobody catches."""
    logging.captureWarnings(True)
    repeats = Repeats()

    def tell(error: BaseException | None, where: str) -> None:
        if error is not None and (left_out := repeats.due((type(error), where))) is not None:
            described = describe_exception(error, settings)
            log.error("exception", where=where, **({"repeated": left_out} if left_out else {}), **described)

    threading.excepthook = lambda args: tell(args.exc_value, f"thread {args.thread.name if args.thread else ''}")
    sys.unraisablehook = lambda args: tell(args.exc_value, "a destructor or callback")

"""JSON log lines on standard output. Hashes, scores and times; never a caller's text unless the settings ask for it."""

from __future__ import annotations

import logging
import sys
import traceback
from contextlib import suppress
from typing import Any, TextIO, cast

import structlog
from structlog.typing import FilteringBoundLogger

from steelyard_runtime.settings import Settings

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class _Undisturbed:
    """A stream whose end disturbs nobody: a line that cannot be written costs no caller the answer."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with suppress(OSError, ValueError):  # a reader that is gone; a stream that is closed
            self._stream.write(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()


def make_log(settings: Settings, stream: TextIO | None = None) -> FilteringBoundLogger:
    """A logger that writes one JSON object per line to ``stream`` (standard output by default)."""
    log: FilteringBoundLogger = structlog.wrap_logger(
        structlog.WriteLogger(cast(TextIO, _Undisturbed(stream or sys.stdout))),
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[settings.log_level]),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
            structlog.processors.JSONRenderer(ensure_ascii=False, default=str),
        ],
    )
    return log


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
    """Turns lines of the standard ``logging`` module (uvicorn's, asyncio's) into lines of ours."""

    def __init__(self, log: FilteringBoundLogger, settings: Settings) -> None:
        super().__init__(level=logging.WARNING)
        self._log = log
        self._settings = settings

    def emit(self, record: logging.LogRecord) -> None:
        """Write ``record`` without its arguments: they may hold what a caller sent."""
        described = {}
        if record.exc_info and record.exc_info[1] is not None:
            described = describe_exception(record.exc_info[1], self._settings)
        self._log.log(record.levelno, "server", logger=record.name, text=str(record.msg)[:200], **described)


def forward_standard_logging(log: FilteringBoundLogger, settings: Settings) -> None:
    """Send uvicorn's and asyncio's warnings and errors to ``log`` instead of to standard error."""
    for name in ("uvicorn", "uvicorn.error", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers = [ForwardToLog(log, settings)] if name != "uvicorn.error" else []
        logger.propagate = name == "uvicorn.error"
        logger.setLevel(logging.WARNING)

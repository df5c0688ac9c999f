"""Decision records: appended to the log, or to a file of their own, by a thread that nobody waits for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from steelyard_runtime.decision import Answer, Correction, DecisionRequest
from steelyard_runtime.decisions.record import DecisionRecord, FeedbackRecord, decision_records, feedback_record
from steelyard_runtime.http.observability.log_writer import FLUSH_S, LogWriter
from steelyard_runtime.http.observability.logs import Sink, Undisturbed
from steelyard_runtime.identity import Identity
from steelyard_runtime.settings import RECORDS_TO_LOG, Settings


class Records:
    """Writes records; what does not fit is dropped and counted.

    Args:
        settings: Where they go, and whether they hold texts.
        log: The log, for records that go there.

    Attributes:
        dropped: Records that were not written, because the file is as long as it may be.

    Raises:
        OSError: The file cannot be opened.
    """

    def __init__(self, settings: Settings, *, log: Sink | None = None) -> None:
        self._settings = settings
        self._file: LogWriter | None = None
        self._sink: Sink | None = None
        self._left: int | None = None
        self._identity: tuple[Identity, dict[str, Any]] | None = None
        self._over = 0
        if settings.decision_records == RECORDS_TO_LOG:
            self._sink = log
        elif settings.decision_records is not None:
            descriptor = _opened(Path(settings.decision_records).expanduser())
            self._left = (settings.decision_records_mib << 20) - os.fstat(descriptor).st_size
            self._sink = self._file = LogWriter(descriptor)

    @property
    def dropped(self) -> int:
        """Records of the file that were not written."""
        return self._over + (self._file.dropped if self._file else 0)

    def decided(
        self,
        request: DecisionRequest,
        answers: Sequence[Answer],
        *,
        request_id: str,
        contract: str,
        identity: Identity,
    ) -> None:
        """Record the answers to a request."""
        if self._sink is None:
            return
        if self._identity is None or self._identity[0] is not identity:
            self._identity = identity, identity.basis()
        for record in decision_records(
            request,
            answers,
            request_id=request_id,
            contract=contract,
            layout=request.layout or self._settings.layout,
            identity=self._identity[1],
            time=datetime.now(UTC),
            with_text=self._settings.record_text,
        ):
            self._write(record)

    @property
    def on(self) -> bool:
        """Tell whether anything is recorded."""
        return self._sink is not None

    @property
    def with_text(self) -> bool:
        """Tell whether callers' texts are recorded, too."""
        return self.on and self._settings.record_text

    def corrected(self, correction: Correction, *, request_id: str, contract_sha256: str) -> tuple[str | None, bool]:
        """Record what a person found right.

        Returns:
            The hash of the state that it is about, where there is one, and whether there was room for the record.
        """
        record = feedback_record(
            correction,
            request_id=request_id,
            contract_sha256=contract_sha256,
            time=datetime.now(UTC),
            with_text=self._settings.record_text,
        )
        return record.state_sha256, self._write(record)

    def _write(self, record: DecisionRecord | FeedbackRecord) -> bool:
        if self._sink is None:
            return False
        line = record.line()
        if self._left is not None:
            size = len(line.encode())
            if size > self._left:
                self._over += 1
                return False
            self._left -= size
        Undisturbed(self._sink).write(line)
        return True

    def close(self, *, timeout_s: float = FLUSH_S) -> None:
        """Write what is left, for no longer than ``timeout_s`` seconds."""
        if self._file is not None:
            self._file.drain(timeout_s=timeout_s)


def _opened(path: Path) -> int:
    # A named pipe that nobody reads is refused instead of holding up the start.
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    os.set_blocking(descriptor, True)
    return descriptor

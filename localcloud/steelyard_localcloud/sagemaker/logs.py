"""An endpoint's log: in a file of the local cloud, and in CloudWatch Logs as SageMaker writes it.

SageMaker makes the log group when it is missing, which is why one can reappear after its stack is gone.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from pathlib import Path

from ministack.core.responses import get_account_id, get_region, request_scope
from ministack.services import cloudwatch_logs

from steelyard_localcloud.cloudwatch import embedded
from steelyard_localcloud.service_role import ServiceRole

GROUP_PREFIX = "/aws/sagemaker/Endpoints/"
_ACTIONS = ("logs:CreateLogStream", "logs:PutLogEvents")
_BATCH = 500

log = logging.getLogger("steelyard.localcloud")


class EndpointLog:
    """Takes the lines of one process. Made within a request's account and region."""

    def __init__(self, endpoint: str, stream: str, *, path: Path, role: ServiceRole) -> None:
        self.group = GROUP_PREFIX + endpoint
        self.stream = stream
        self._scope = (get_account_id(), get_region())
        self._permitted = self._may_write(role)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8", buffering=1)
        self._waiting: queue.SimpleQueue[tuple[int, str] | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._run, daemon=True)
        self._writer.start()

    def write(self, line: str) -> None:
        """Take one line."""
        self._waiting.put((int(time.time() * 1000), line))

    def note(self, line: str) -> None:
        """Take one line of the local cloud's own."""
        self.write(f"[local cloud] {line}")

    def close(self) -> None:
        """Write what is left."""
        self._waiting.put(None)
        self._writer.join(timeout=5)

    def _may_write(self, role: ServiceRole) -> bool:
        account, region = self._scope
        resource = f"arn:aws:logs:{region}:{account}:log-group:{self.group}:log-stream:{self.stream}"
        missing = [action for action in _ACTIONS if not role.allows(action, resource)]
        if missing:
            log.warning("no logs of %s in CloudWatch: %s lacks %s", self.group, role.arn, ", ".join(missing))
        return not missing

    def _run(self) -> None:
        with self._file as file, request_scope(*self._scope):
            ended = False
            while not ended:
                batch, ended = self._take()
                file.writelines(f"{line}\n" for _, line in batch)
                if self._permitted and batch:
                    self._put(batch)

    def _take(self) -> tuple[list[tuple[int, str]], bool]:
        batch = []
        item = self._waiting.get()
        while item is not None:
            batch.append(item)
            if self._waiting.empty() or len(batch) == _BATCH:
                return batch, False
            item = self._waiting.get()
        return batch, True

    def _put(self, batch: list[tuple[int, str]]) -> None:
        where = {"logGroupName": self.group, "logStreamName": self.stream}
        if self.group not in cloudwatch_logs._log_groups:
            cloudwatch_logs._create_log_group({"logGroupName": self.group})
        if self.stream not in cloudwatch_logs._log_groups[self.group]["streams"]:
            cloudwatch_logs._create_log_stream(where)
        events = [{"timestamp": stamp, "message": line} for stamp, line in batch]
        cloudwatch_logs._put_log_events({**where, "logEvents": events})
        for _, line in batch:
            embedded.publish(line)

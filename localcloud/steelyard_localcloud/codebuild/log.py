"""A build's log: in CloudWatch Logs while it runs, and in a file of the local cloud."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from ministack.core.responses import get_account_id, get_region
from ministack.services import cloudwatch_logs

from steelyard_localcloud.service_role import ServiceRole

_ACTIONS = ("logs:CreateLogStream", "logs:PutLogEvents")

log = logging.getLogger("steelyard.localcloud")


class BuildLog:
    """Takes the lines of one build. Used within the account and region of its project."""

    def __init__(self, group: str, stream: str, *, path: Path, role: ServiceRole) -> None:
        self._where = {"logGroupName": group, "logStreamName": stream}
        resource = f"arn:aws:logs:{get_region()}:{get_account_id()}:log-group:{group}:log-stream:{stream}"
        missing = [action for action in _ACTIONS if not role.allows(action, resource)]
        if missing:
            log.warning("no logs of a build in %s: %s lacks %s", group, role.arn, ", ".join(missing))
        elif group not in cloudwatch_logs._log_groups:
            log.warning("no logs of a build: there is no log group %s", group)
            missing = ["the group"]
        else:
            cloudwatch_logs._create_log_stream(self._where)
        self._kept = not missing
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def write(self, line: str) -> None:
        """Take one line."""
        self._file.write(f"{line}\n")
        if self._kept and self._where["logGroupName"] in cloudwatch_logs._log_groups:
            # CloudWatch refuses an empty message.
            event = {"timestamp": int(time.time() * 1000), "message": f"{line}\n"}
            cloudwatch_logs._put_log_events({**self._where, "logEvents": [event]})

    def close(self) -> None:
        """Close the file."""
        self._file.close()

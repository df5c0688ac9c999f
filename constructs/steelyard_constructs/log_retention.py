"""The periods for which CloudWatch can keep logs. Nothing here needs the CDK."""

from __future__ import annotations

from steelyard_constructs.refusal import Refused

LOG_RETENTION_DAYS = (
    *(1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180),
    *(365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288, 3653),
)
"""The periods that CloudWatch Logs accepts, in days."""


def check_log_retention(days: int) -> None:
    """Refuse a period that CloudWatch Logs does not accept.

    Raises:
        Refused: With those that it does.
    """
    if days not in LOG_RETENTION_DAYS:
        raise Refused(
            f"CloudWatch cannot keep logs for {days} days; use one of {', '.join(map(str, LOG_RETENTION_DAYS))}"
        )

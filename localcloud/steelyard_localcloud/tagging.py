"""The Resource Groups Tagging API tells of log groups too, which ministack leaves out."""

from __future__ import annotations

from collections.abc import Iterator

from ministack.services import cloudwatch_logs, tagging


def extend() -> None:
    """Add them."""
    tagging._COLLECTORS["logs"] = _log_groups


def _log_groups() -> Iterator[tuple[str, list[dict[str, str]]]]:
    for group in list(cloudwatch_logs._log_groups.values()):
        tags = [{"Key": key, "Value": value} for key, value in (group.get("tags") or {}).items()]
        yield group["arn"].removesuffix(":*"), tags

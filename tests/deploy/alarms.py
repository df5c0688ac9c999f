"""Alarms that go off while something is deployed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from steelyard_localcloud.cloud import LocalCloud


@contextmanager
def rollback_alarm_goes_off(cloud: LocalCloud, stack: str) -> Iterator[list[str]]:
    """Set the alarm on the latency of a stack's new instances off, as people try alarms, for the length of the block.

    Yields its names; an update may bring another one.
    """
    cloudwatch, names, stop = cloud.client("cloudwatch"), list[str](), threading.Event()

    def set_off() -> None:
        while not stop.wait(0.02):
            for each in cloudwatch.describe_alarms(AlarmNamePrefix=stack)["MetricAlarms"]:
                if "RollbackLatency" in (name := each["AlarmName"]):
                    cloudwatch.set_alarm_state(AlarmName=name, StateValue="ALARM", StateReason="tried out")
                    if name not in names:
                        names.append(name)

    thread = threading.Thread(target=set_off)
    thread.start()
    try:
        yield names
    finally:
        stop.set()
        thread.join()

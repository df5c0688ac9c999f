"""One change of what an endpoint serves: start the new fleet, shift the traffic, watch the alarms, or roll back."""

from __future__ import annotations

import time
from collections.abc import Callable

from ministack.services import cloudwatch

from steelyard_localcloud.errors import ServiceError
from steelyard_localcloud.sagemaker.endpoint import Endpoint
from steelyard_localcloud.sagemaker.fleet import Fleet
from steelyard_localcloud.sagemaker.traffic import Policy

_LOOK_EVERY_S = 0.05


class Deployment:
    """Brings a new fleet into service.

    Args:
        endpoint: The endpoint; its status is final whatever happens.
        fleet: The new fleet, not yet started.
        longest_wait_s: Cap on every wait of the policy.
        cancelled: Whether the local cloud is ending.
    """

    def __init__(
        self, endpoint: Endpoint, fleet: Fleet, *, longest_wait_s: float, cancelled: Callable[[], bool]
    ) -> None:
        self._endpoint = endpoint
        self._fleet = fleet
        self._longest_wait_s = longest_wait_s
        self._cancelled = cancelled

    def create(self) -> None:
        """The first fleet. Should it fail, the endpoint stays, Failed."""
        try:
            self._fleet.start(cancelled=self._cancelled)
        except ServiceError as error:
            self._endpoint.finish("Failed", error.message)
            return
        self._endpoint.router.serve(self._fleet)
        self._endpoint.finish("InService")

    def update(self, policy: Policy, *, instances: int, weight: float) -> None:
        """Another fleet. If it fails, the old one continues to serve and the endpoint says why."""
        endpoint, old = self._endpoint, self._endpoint.router.main
        try:
            self._fleet.start(cancelled=self._cancelled)
        except ServiceError as error:
            endpoint.finish("InService", error.message)
            return
        try:
            self._shift(policy)
        except ServiceError as error:
            endpoint.status = "RollingBack"
            self._fleet.note(f"rolled back: {error.message}")
            endpoint.router.serve(old)
            self._fleet.retire()
            endpoint.finish("InService", error.message)
            return
        endpoint.config_name, endpoint.instances, endpoint.weight = self._fleet.config_name, instances, weight
        if old is not None:
            old.retire()
        endpoint.finish("InService")

    def _shift(self, policy: Policy) -> None:
        for step in policy.steps:
            if step.share < 1:
                self._endpoint.router.share(self._fleet, step.share)
            else:
                self._endpoint.router.serve(self._fleet)
            self._fleet.note(f"takes {step.share:.0%} of the traffic")
            self._watch(step.wait_s, policy.alarms)
        self._watch(policy.termination_wait_s, policy.alarms)

    def _watch(self, wait_s: float, alarms: tuple[str, ...]) -> None:
        """Wait, and fail as soon as an alarm goes off or the new fleet dies."""
        shortened = min(wait_s, self._longest_wait_s)
        if shortened < wait_s:
            self._fleet.note(f"the local cloud waits {shortened:g} s where AWS waits {wait_s:g} s")
        deadline = time.monotonic() + shortened
        while True:
            for name in alarms:
                if (cloudwatch._alarms.get(name) or {}).get("StateValue") == "ALARM":
                    raise ServiceError(f"One or more alarms went off during the deployment: {name}.")
            if not self._fleet.alive():
                raise ServiceError("The new fleet's container ended during the deployment.")
            if time.monotonic() >= deadline or self._cancelled():
                return
            time.sleep(_LOOK_EVERY_S)

"""A deployment policy as steps: how much traffic the new fleet gets, and for how long before the next step."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from steelyard_localcloud.errors import ServiceError
from steelyard_localcloud.wire import Parameters


@dataclass(frozen=True)
class Step:
    """One step of a deployment.

    Attributes:
        share: Share of the traffic that the new fleet gets, above 0 and at most 1.
        wait_s: Seconds in which the alarms are watched before the next step.
    """

    share: float
    wait_s: float


@dataclass(frozen=True)
class Policy:
    """A deployment policy.

    Attributes:
        steps: The steps; the last one has all of the traffic.
        termination_wait_s: Seconds for which the old fleet is kept after the last step.
        alarms: Names of the alarms that roll the deployment back.
    """

    steps: tuple[Step, ...]
    termination_wait_s: float
    alarms: tuple[str, ...]


def policy_of(config: Parameters | None, *, instances: int) -> Policy:
    """The policy of a ``DeploymentConfig``; without one, all of the traffic at once.

    Args:
        config: As the endpoint names it.
        instances: Instances of the variant, of which a size may be a count.

    Raises:
        ServiceError: The policy contradicts itself.
    """
    config = config or {}
    if "BlueGreenUpdatePolicy" in config and "RollingUpdatePolicy" in config:
        raise ServiceError("A DeploymentConfig names BlueGreenUpdatePolicy or RollingUpdatePolicy, not both.")
    alarms = tuple(alarm["AlarmName"] for alarm in config.get("AutoRollbackConfiguration", {}).get("Alarms", []))
    if rolling := config.get("RollingUpdatePolicy"):
        steps = _even(_share(rolling["MaximumBatchSize"], instances), rolling["WaitIntervalInSeconds"])
        return Policy(steps, 0.0, alarms)
    blue_green = config.get("BlueGreenUpdatePolicy", {})
    routing = blue_green.get("TrafficRoutingConfiguration", {"Type": "ALL_AT_ONCE", "WaitIntervalInSeconds": 0})
    return Policy(_steps(routing, instances), float(blue_green.get("TerminationWaitInSeconds", 0)), alarms)


def _steps(routing: Parameters, instances: int) -> tuple[Step, ...]:
    kind, wait_s = routing["Type"], float(routing["WaitIntervalInSeconds"])
    size = {"CANARY": "CanarySize", "LINEAR": "LinearStepSize"}.get(kind)
    if wrong := {"CanarySize", "LinearStepSize"} & set(routing) - {size}:
        raise ServiceError(f"{', '.join(sorted(wrong))} does not go with traffic routing {kind}.")
    if size is None:
        return (Step(1.0, wait_s),)
    if size not in routing:
        raise ServiceError(f"Traffic routing {kind} needs {size}.")
    share = _share(routing[size], instances)
    if share > 0.5:
        raise ServiceError(f"{size} is {share:.0%} of the capacity; it may be at most 50%.")
    return (Step(share, wait_s), Step(1.0, wait_s)) if kind == "CANARY" else _even(share, wait_s)


def _even(share: float, wait_s: float) -> tuple[Step, ...]:
    count = ceil(round(1 / share, 9))
    return tuple(Step(min(1.0, share * number), float(wait_s)) for number in range(1, count + 1))


def _share(size: Parameters, instances: int) -> float:
    """A size as a share; one instance cannot be halved, so the smallest count of few instances may exceed a limit."""
    value: int = size["Value"]
    if size["Type"] == "CAPACITY_PERCENT":
        return min(1.0, value / 100)
    return min(1.0, value / max(instances, 2 * value))

"""Application Auto Scaling for endpoint variants: targets, policies and schedules are kept and bound the count.

Nothing scales by itself here: one process answers whatever the count is, so there is no load to follow. A change of the
count is made by hand, with ``UpdateEndpointWeightsAndCapacities``.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Callable

from ministack.core.responses import AccountRegionScopedDict, get_account_id, get_region

from steelyard_localcloud import shapes
from steelyard_localcloud.errors import ServiceError, not_emulated
from steelyard_localcloud.sagemaker.endpoints import Endpoints
from steelyard_localcloud.wire import Parameters

SERVICE = "application-autoscaling"
DIMENSION = "sagemaker:variant:DesiredInstanceCount"

_RESOURCE = re.compile(r"endpoint/(?P<endpoint>[^/]+)/variant/(?P<variant>[^/]+)")
_TARGET_KEY = ("ServiceNamespace", "ResourceId", "ScalableDimension")

log = logging.getLogger("steelyard.localcloud")


class ApplicationAutoScaling:
    """The scalable targets of every account and region, with their policies and scheduled actions."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints
        endpoints.is_scaled = self.has_target
        self._targets = AccountRegionScopedDict()
        self._policies = AccountRegionScopedDict()
        self._schedules = AccountRegionScopedDict()
        self._tags = AccountRegionScopedDict()
        self._operations: dict[str, Callable[[Parameters], Parameters]] = {
            "RegisterScalableTarget": self.register,
            "DeregisterScalableTarget": self.deregister,
            "DescribeScalableTargets": self._describe_targets,
            "PutScalingPolicy": self.put_policy,
            "DeleteScalingPolicy": self.delete_policy,
            "DescribeScalingPolicies": self._describe_policies,
            "PutScheduledAction": self.put_schedule,
            "DeleteScheduledAction": self.delete_schedule,
            "DescribeScheduledActions": self._describe_schedules,
            "ListTagsForResource": self._list_tags,
            "TagResource": self._tag,
            "UntagResource": self._untag,
        }

    def perform(self, operation: str, parameters: Parameters) -> Parameters:
        """Answer one request.

        Raises:
            ServiceError: AWS would refuse it, or the local cloud does not emulate the operation.
        """
        if operation not in self._operations:
            raise not_emulated(f"{SERVICE}:{operation}")
        shapes.validate(SERVICE, operation, parameters)
        return self._operations[operation](parameters)

    def register(self, parameters: Parameters) -> Parameters:
        """``RegisterScalableTarget``: a new target, or new bounds; the count is brought within them."""
        key = _key(parameters)
        name, variant = self._variant(parameters["ResourceId"])
        known: Parameters | None = self._targets.get(key)
        target = {**(known or {"CreationTime": time.time()}), **parameters}
        target.setdefault(
            "RoleARN",
            f"arn:aws:iam::{get_account_id()}:role/aws-service-role/sagemaker.application-autoscaling.amazonaws.com/"
            "AWSServiceRoleForApplicationAutoScaling_SageMakerEndpoint",
        )
        for bound in ("MinCapacity", "MaxCapacity"):
            if bound not in target:
                raise ServiceError(f"{bound} is required to register a scalable target.")
        low, high = target["MinCapacity"], target["MaxCapacity"]
        types = self._endpoints.get(name).instance_types
        if burstable := [each for each in types if each.startswith("ml.t")]:
            raise ServiceError(f"Autoscaling is not supported for burstable instance types such as {burstable[0]}.")
        if low < 1:
            raise ServiceError(f"MinCapacity is {low}; an endpoint without inference components needs at least 1.")
        if high < low:
            raise ServiceError(f"MaxCapacity {high} is below MinCapacity {low}.")
        tags = target.pop("Tags", None)
        if tags and known:
            raise ServiceError("Tags are for a new scalable target; to tag an existing one, use TagResource.")
        target.setdefault("ScalableTargetARN", _arn("scalable-target"))
        self._targets[key] = target
        if not known:
            self._tags[target["ScalableTargetARN"]] = dict(tags or {})
        self._bring_within(name, variant, low, high)
        return {"ScalableTargetARN": target["ScalableTargetARN"]}

    def has_target(self, endpoint: str, variant: str) -> bool:
        """Return whether a variant is registered as a scalable target."""
        return f"endpoint/{endpoint}/variant/{variant}|{DIMENSION}|sagemaker" in self._targets

    def deregister(self, parameters: Parameters) -> Parameters:
        """``DeregisterScalableTarget``, with its policies and scheduled actions."""
        self._target(parameters)
        self._forget(_key(parameters))
        return {}

    def put_policy(self, parameters: Parameters) -> Parameters:
        """``PutScalingPolicy``."""
        self._target(parameters)
        key = f"{_key(parameters)}|{parameters['PolicyName']}"
        known = self._policies.get(key) or {"PolicyARN": _arn("scalingPolicy"), "CreationTime": time.time()}
        self._policies[key] = {**known, "PolicyType": "StepScaling", "Alarms": [], **parameters}
        log.info("scaling policy %s is kept; the local cloud scales nothing by itself", parameters["PolicyName"])
        return {"PolicyARN": known["PolicyARN"], "Alarms": []}

    def delete_policy(self, parameters: Parameters) -> Parameters:
        """``DeleteScalingPolicy``."""
        _pop(self._policies, f"{_key(parameters)}|{parameters['PolicyName']}", "scaling policy")
        return {}

    def put_schedule(self, parameters: Parameters) -> Parameters:
        """``PutScheduledAction``."""
        self._target(parameters)
        key = f"{_key(parameters)}|{parameters['ScheduledActionName']}"
        known = self._schedules.get(key) or {"ScheduledActionARN": _arn("scheduledAction"), "CreationTime": time.time()}
        self._schedules[key] = {**known, **parameters}
        return {}

    def delete_schedule(self, parameters: Parameters) -> Parameters:
        """``DeleteScheduledAction``."""
        _pop(self._schedules, f"{_key(parameters)}|{parameters['ScheduledActionName']}", "scheduled action")
        return {}

    def _list_tags(self, parameters: Parameters) -> Parameters:
        return {"Tags": dict(self._tags_of(parameters["ResourceARN"]))}

    def _tag(self, parameters: Parameters) -> Parameters:
        self._tags_of(parameters["ResourceARN"]).update(parameters["Tags"])
        return {}

    def _untag(self, parameters: Parameters) -> Parameters:
        tags = self._tags_of(parameters["ResourceARN"])
        for key in parameters["TagKeys"]:
            tags.pop(key, None)
        return {}

    def _tags_of(self, arn: str) -> dict[str, str]:
        tags: dict[str, str] | None = self._tags.get(arn)
        if tags is None:
            raise ServiceError(f"The specified resource doesn't exist: {arn}", code="ResourceNotFoundException")
        return tags

    def policy_named(self, arn: str) -> Parameters | None:
        """The policy with that ARN."""
        found: list[Parameters] = [policy for policy in self._policies.values() if policy["PolicyARN"] == arn]
        return found[0] if found else None

    def _describe_targets(self, parameters: Parameters) -> Parameters:
        self._drop_orphans()
        wanted = parameters.get("ResourceIds")
        found = [target for target in self._matching(self._targets, parameters) if _in(target["ResourceId"], wanted)]
        return {"ScalableTargets": found}

    def _describe_policies(self, parameters: Parameters) -> Parameters:
        self._drop_orphans()
        wanted = parameters.get("PolicyNames")
        found = [policy for policy in self._matching(self._policies, parameters) if _in(policy["PolicyName"], wanted)]
        return {"ScalingPolicies": found}

    def _describe_schedules(self, parameters: Parameters) -> Parameters:
        self._drop_orphans()
        wanted = parameters.get("ScheduledActionNames")
        found = [
            action
            for action in self._matching(self._schedules, parameters)
            if _in(action["ScheduledActionName"], wanted)
        ]
        return {"ScheduledActions": found}

    def _matching(self, store: AccountRegionScopedDict, parameters: Parameters) -> list[Parameters]:
        return [
            entry
            for entry in list(store.values())
            if all(name not in parameters or entry[name] == parameters[name] for name in _TARGET_KEY)
        ]

    def _target(self, parameters: Parameters) -> Parameters:
        self._drop_orphans()
        target: Parameters | None = self._targets.get(_key(parameters))
        if target is None:
            raise ServiceError(
                f"No scalable target registered for service namespace: {parameters['ServiceNamespace']}, resource ID: "
                f"{parameters['ResourceId']}, scalable dimension: {parameters['ScalableDimension']}",
                code="ObjectNotFoundException",
            )
        return target

    def _variant(self, resource: str) -> tuple[str, str]:
        match = _RESOURCE.fullmatch(resource)
        if match is None:
            raise not_emulated(f"scaling of {resource}; it takes endpoint/NAME/variant/VARIANT")
        fleet = self._endpoints.get(match["endpoint"]).router.main
        if fleet is None or fleet.name != match["variant"]:
            raise ServiceError(f"Could not find variant {match['variant']} of endpoint {match['endpoint']}.")
        return match["endpoint"], match["variant"]

    def _bring_within(self, name: str, variant: str, low: int, high: int) -> None:
        count = self._endpoints.get(name).instances
        wanted = min(max(count, low), high)
        if wanted != count:
            change = {"VariantName": variant, "DesiredInstanceCount": wanted}
            self._endpoints.scale({"EndpointName": name, "DesiredWeightsAndCapacities": [change]})

    def _drop_orphans(self) -> None:
        """AWS deregisters the targets of a deleted endpoint."""
        for key, target in list(self._targets.items()):
            try:
                self._variant(target["ResourceId"])
            except ServiceError:
                self._forget(key)

    def _forget(self, key: str) -> None:
        if (target := self._targets.pop(key, None)) is not None:
            self._tags.pop(target["ScalableTargetARN"], None)
        for store in (self._policies, self._schedules):
            for name in [name for name in list(store.keys()) if name.startswith(f"{key}|")]:
                store.pop(name)


def _key(parameters: Parameters) -> str:
    if parameters["ServiceNamespace"] != "sagemaker" or parameters["ScalableDimension"] != DIMENSION:
        raise not_emulated(f"scaling of {parameters['ServiceNamespace']} {parameters['ScalableDimension']}")
    return "|".join(parameters[name] for name in ("ResourceId", "ScalableDimension", "ServiceNamespace"))


def _arn(kind: str) -> str:
    service = "autoscaling" if kind in ("scalingPolicy", "scheduledAction") else SERVICE
    separator = ":" if service == "autoscaling" else "/"
    return f"arn:aws:{service}:{get_region()}:{get_account_id()}:{kind}{separator}{uuid.uuid4()}"


def _in(name: str, wanted: list[str] | None) -> bool:
    return wanted is None or name in wanted


def _pop(store: AccountRegionScopedDict, key: str, what: str) -> None:
    if key not in store:
        raise ServiceError(f"No {what} found for {key}.", code="ObjectNotFoundException")
    store.pop(key)

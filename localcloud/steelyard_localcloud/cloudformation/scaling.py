"""``AWS::ApplicationAutoScaling::ScalableTarget`` and ``AWS::ApplicationAutoScaling::ScalingPolicy``."""

from __future__ import annotations

from steelyard_localcloud import shapes
from steelyard_localcloud.autoscaling import SERVICE, ApplicationAutoScaling
from steelyard_localcloud.cloudformation.handler import Handler, Provisioned, ignore_missing
from steelyard_localcloud.errors import ServiceError
from steelyard_localcloud.wire import Parameters

_TARGET = ("ServiceNamespace", "ResourceId", "ScalableDimension")


def handlers(scaling: ApplicationAutoScaling) -> list[Handler]:
    """The two handlers."""
    return [_target(scaling), _policy(scaling)]


def _target(scaling: ApplicationAutoScaling) -> Handler:
    def register(properties: Parameters) -> Provisioned:
        given = {name: value for name, value in properties.items() if name not in ("ScheduledActions", "Tags")}
        parameters = shapes.from_template(SERVICE, "RegisterScalableTarget", given)
        arn = scaling.perform("RegisterScalableTarget", parameters)["ScalableTargetARN"]
        _retag(scaling, arn, {tag["Key"]: tag["Value"] for tag in properties.get("Tags", [])})
        for action in properties.get("ScheduledActions", []):
            scheduled = {**{name: properties[name] for name in _TARGET}, **action}
            scaling.perform("PutScheduledAction", shapes.from_template(SERVICE, "PutScheduledAction", scheduled))
        physical_id = "|".join(properties[name] for name in ("ResourceId", "ScalableDimension", "ServiceNamespace"))
        return physical_id, {"Id": physical_id}

    def create(_logical_id: str, properties: Parameters, _stack_name: str) -> Provisioned:
        return register(properties)

    def update(_physical_id: str, old: Parameters, new: Parameters) -> Provisioned:
        kept = {action["ScheduledActionName"] for action in new.get("ScheduledActions", [])}
        for action in old.get("ScheduledActions", []):
            if (name := action["ScheduledActionName"]) not in kept:
                where = {key: old[key] for key in _TARGET}
                ignore_missing(lambda: scaling.perform("DeleteScheduledAction", {**where, "ScheduledActionName": name}))  # noqa: B023 - called at once
        return register(new)

    def delete(_physical_id: str, properties: Parameters) -> None:
        where = {name: properties[name] for name in _TARGET}
        ignore_missing(lambda: scaling.perform("DeregisterScalableTarget", where))

    return Handler(
        type="AWS::ApplicationAutoScaling::ScalableTarget",
        create=create,
        update=update,
        delete=delete,
        replacing=_TARGET,
    )


def _retag(scaling: ApplicationAutoScaling, arn: str, tags: dict[str, str]) -> None:
    present = scaling.perform("ListTagsForResource", {"ResourceARN": arn})["Tags"]
    if gone := sorted(present.keys() - tags.keys()):
        scaling.perform("UntagResource", {"ResourceARN": arn, "TagKeys": gone})
    scaling.perform("TagResource", {"ResourceARN": arn, "Tags": tags})


def _policy(scaling: ApplicationAutoScaling) -> Handler:
    def put(properties: Parameters) -> Provisioned:
        given = {name: value for name, value in properties.items() if name != "ScalingTargetId"}
        if target := properties.get("ScalingTargetId"):
            given |= dict(zip(("ResourceId", "ScalableDimension", "ServiceNamespace"), target.split("|"), strict=True))
        if missing := [name for name in _TARGET if name not in given]:
            raise ServiceError(f"A scaling policy needs ScalingTargetId, or {', '.join(missing)}.")
        answer = scaling.perform("PutScalingPolicy", shapes.from_template(SERVICE, "PutScalingPolicy", given))
        return answer["PolicyARN"], {"Arn": answer["PolicyARN"]}

    def create(_logical_id: str, properties: Parameters, _stack_name: str) -> Provisioned:
        return put(properties)

    def update(_physical_id: str, _old: Parameters, new: Parameters) -> Provisioned:
        return put(new)

    def delete(physical_id: str, _properties: Parameters) -> None:
        if (policy := scaling.policy_named(physical_id)) is not None:
            where = {name: policy[name] for name in (*_TARGET, "PolicyName")}
            ignore_missing(lambda: scaling.perform("DeleteScalingPolicy", where))

    return Handler(
        type="AWS::ApplicationAutoScaling::ScalingPolicy",
        create=create,
        update=update,
        delete=delete,
        replacing=("PolicyName", "ScalingTargetId", *_TARGET),
    )

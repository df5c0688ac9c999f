"""``AWS::EC2::FlowLog``, kept by ministack's EC2. No packet flows, so its log group stays empty."""

from __future__ import annotations

import re

from ministack.services import ec2

from steelyard_localcloud.cloudformation.handler import Handler, Provisioned, only
from steelyard_localcloud.errors import ServiceError
from steelyard_localcloud.wire import Parameters

_TYPE = "AWS::EC2::FlowLog"
_KEPT = ("ResourceType", "TrafficType", "LogDestinationType", "LogDestination", "LogGroupName")


def handlers() -> list[Handler]:
    """The one handler."""
    replacing = ("ResourceId", "DeliverLogsPermissionArn", "MaxAggregationInterval", "LogFormat", *_KEPT)
    return [
        Handler(type=_TYPE, create=_create, update=_update, delete=_delete, replacing=replacing, tagged=True),
    ]


def _create(_logical_id: str, properties: Parameters, _stack_name: str) -> Provisioned:
    only(properties, {"ResourceId", "DeliverLogsPermissionArn", "Tags", *_KEPT}, _TYPE)
    query = {"ResourceId.1": [properties["ResourceId"]]}
    query |= {name: [properties[name]] for name in _KEPT if name in properties}
    query["TagSpecification.1.ResourceType"] = ["flow-log"]
    for number, tag in enumerate(properties.get("Tags", []), start=1):
        query |= {f"TagSpecification.1.Tag.{number}.{part}": [tag[part]] for part in ("Key", "Value")}
    _, _, body = ec2._create_flow_logs(query)
    found = re.search(r"fl-[0-9a-fA-F]+", body.decode())
    if found is None:
        raise ServiceError(f"{_TYPE} was not made: {body.decode()}")
    return found[0], {"Id": found[0]}


def _update(physical_id: str, _old: Parameters, new: Parameters) -> Provisioned:
    ec2._tags[physical_id] = [{"Key": tag["Key"], "Value": tag["Value"]} for tag in new.get("Tags", [])]
    return physical_id, {"Id": physical_id}


def _delete(physical_id: str, _properties: Parameters) -> None:
    ec2._delete_flow_logs({"FlowLogId.1": [physical_id]})

"""Network interfaces of endpoints in a VPC: they hold their security groups and subnets, and outlive their endpoint.

SageMaker removes them minutes after the endpoint is gone, and CloudFormation does not wait for it: it fails to delete a
group or a subnet that an interface is in (coverage-roadmap 1327). Ministack deletes both in any case.
"""

from __future__ import annotations

import contextvars
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any

from ministack.services import ec2
from ministack.services.cloudformation import provisioners

from steelyard_localcloud.errors import ServiceError
from steelyard_localcloud.wire import Parameters

_GROUP_REFUSAL = "resource {} has a dependent object"
_SUBNET_REFUSAL = "The subnet '{}' has dependencies and cannot be deleted."


def make(endpoint: str, network: Parameters | None) -> tuple[str, ...]:
    """Make an interface in each subnet of a model's ``VpcConfig``.

    Args:
        endpoint: The endpoint's name, for people.
        network: The ``VpcConfig``; None outside a VPC.

    Returns:
        Their identifiers.
    """
    if network is None:
        return ()
    groups = {f"SecurityGroupId.{number}": [each] for number, each in enumerate(network["SecurityGroupIds"], start=1)}
    made = []
    for subnet in network["Subnets"]:
        described = {"SubnetId": [subnet], "Description": [f"[Do not delete] SageMaker endpoint {endpoint}"], **groups}
        _, _, body = ec2._create_network_interface(described)
        made += re.findall(r"eni-[0-9a-fA-F]+", body.decode())[:1]
    for identifier in made:
        ec2._network_interfaces[identifier]["Status"] = "in-use"
    return tuple(made)


def release(identifiers: tuple[str, ...], *, after_s: float) -> None:
    """Remove interfaces, in the account and region of the caller, when a time has passed."""
    if not identifiers:
        return
    context = contextvars.copy_context()

    def remove() -> None:
        for identifier in identifiers:
            ec2._network_interfaces.pop(identifier, None)

    timer = threading.Timer(after_s, context.run, args=(remove,))
    timer.daemon = True
    timer.start()


def extend() -> None:
    """Let EC2 and CloudFormation refuse to delete what an interface is in, and find interfaces by their group."""
    for kind, member, refusal in (
        ("SecurityGroup", "GroupId", _GROUP_REFUSAL),
        ("Subnet", "SubnetId", _SUBNET_REFUSAL),
    ):
        action, handler = f"Delete{kind}", provisioners._RESOURCE_HANDLERS[f"AWS::EC2::{kind}"]
        ec2._ACTION_MAP[action] = _refusing(ec2._ACTION_MAP[action], member, refusal)
        deleting = _deleting(handler["delete"], refusal)
        provisioners._RESOURCE_HANDLERS[f"AWS::EC2::{kind}"] = {**handler, "delete": deleting}
    ec2._ACTION_MAP["DescribeNetworkInterfaces"] = _describe


def _uses(identifier: str) -> list[str]:
    """Interfaces that are in a group or subnet."""
    return [
        name
        for name, each in list(ec2._network_interfaces.items())
        if identifier == each["SubnetId"] or identifier in [group["GroupId"] for group in each["Groups"]]
    ]


def _refusing(delete: Callable[[Any], Any], member: str, refusal: str) -> Callable[[Any], Any]:
    def refuse_or_delete(parameters: Any) -> Any:
        identifier = ec2._p(parameters, member)
        if identifier and _uses(identifier):
            return ec2._error("DependencyViolation", refusal.format(identifier), 400)
        return delete(parameters)

    return refuse_or_delete


def _deleting(delete: Callable[[str, Parameters], None], refusal: str) -> Callable[[str, Parameters], None]:
    def refuse_or_delete(physical_id: str, properties: Parameters) -> None:
        if _uses(physical_id):
            raise ServiceError(refusal.format(physical_id), code="DependencyViolation")
        delete(physical_id, properties)

    return refuse_or_delete


def _describe(parameters: Mapping[str, Any]) -> Any:
    filters = dict(ec2._parse_filters(parameters))
    groups, wanted = filters.pop("group-id", None), ec2._parse_member_list(parameters, "NetworkInterfaceId")
    if filters:
        return ec2._error("InvalidParameterValue", f"The local cloud does not emulate {', '.join(filters)}.", 400)
    items = "".join(
        ec2._eni_fields_xml(each)
        for name, each in list(ec2._network_interfaces.items())
        if (not wanted or name in wanted)
        and (groups is None or {group["GroupId"] for group in each["Groups"]} & set(groups))
    )
    return ec2._xml(200, "DescribeNetworkInterfacesResponse", f"<networkInterfaceSet>{items}</networkInterfaceSet>")

"""``AWS::CodeBuild::Project``: the properties that ministack drops, and those that are not emulated."""

from __future__ import annotations

from ministack.services import codebuild
from ministack.services.cloudformation import provisioners

from steelyard_localcloud.cloudformation.handler import Provisioned, only
from steelyard_localcloud.wire import Parameters

_TYPE = "AWS::CodeBuild::Project"
_KNOWN = {
    *("Artifacts", "ConcurrentBuildLimit", "Description", "EncryptionKey", "Environment", "LogsConfig", "Name"),
    *("QueuedTimeoutInMinutes", "ServiceRole", "Source", "SourceVersion", "Tags", "TimeoutInMinutes", "Visibility"),
}


def extend() -> None:
    """Wrap ministack's handler."""
    handler = provisioners._RESOURCE_HANDLERS[_TYPE]
    create, update = handler["create"], handler["update"]

    def create_whole(logical_id: str, properties: Parameters, stack_name: str) -> Provisioned:
        only(properties, _KNOWN, _TYPE)
        name, attributes = create(logical_id, properties, stack_name)
        _keep(name, properties)
        return name, attributes

    def update_whole(physical_id: str, old: Parameters, new: Parameters, stack_name: str) -> Provisioned:
        only(new, _KNOWN, _TYPE)
        name, attributes = update(physical_id, old, new, stack_name)
        _keep(name, new)
        return name, attributes

    provisioners._RESOURCE_HANDLERS[_TYPE] = {**handler, "create": create_whole, "update": update_whole}


def _keep(name: str, properties: Parameters) -> None:
    project = codebuild._projects[name]
    project["logsConfig"] = provisioners._codebuild_cfn_to_api(properties.get("LogsConfig", {}))
    project["concurrentBuildLimit"] = int(properties.get("ConcurrentBuildLimit", 0)) or None

"""Resources that exist: refused, or adopted by a change set with ``ImportExistingResources``.

Ministack writes over a log group and a repository that exist, and refuses a bucket before it adopts it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from ministack.services import cloudwatch_logs, ecr
from ministack.services.cloudformation import changesets, provisioners, stacks

from steelyard_localcloud.cloudformation.handler import Create, Provisioned
from steelyard_localcloud.errors import ServiceError
from steelyard_localcloud.wire import Parameters

_REPOSITORY = "AWS::ECR::Repository"

_imported: ContextVar[frozenset[str]] = ContextVar("imported", default=frozenset())
"""Logical ids of what the change set that runs adopts."""


def extend() -> None:
    """Wrap ministack's handlers."""
    for resource_type, name, existing in (
        (_REPOSITORY, "RepositoryName", ecr._repositories),
        ("AWS::Logs::LogGroup", "LogGroupName", cloudwatch_logs._log_groups),
    ):
        handler = provisioners._RESOURCE_HANDLERS[resource_type]
        create = _creating(handler["create"], resource_type, name, existing)
        provisioners._RESOURCE_HANDLERS[resource_type] = {**handler, "create": create}
    provisioners._RESOURCE_HANDLERS[_REPOSITORY]["import"] = _adopt_repository
    changesets._IMPORT_LOOKUPS[_REPOSITORY] = (("RepositoryName",), _missing_repository)
    _extend_buckets()


def _creating(create: Create, resource_type: str, name: str, existing: Mapping[str, Any]) -> Create:
    def create_or_refuse(logical_id: str, properties: Parameters, stack_name: str) -> Provisioned:
        if properties.get(name) in existing:
            raise ServiceError(
                f"Resource of type '{resource_type}' with identifier '{properties[name]}' already exists."
            )
        return create(logical_id, properties, stack_name)

    return create_or_refuse


def _extend_buckets() -> None:
    deploy, validate = stacks._deploy_stack_async, stacks._validation_errors

    async def deploy_importing(*given: Any, imports: dict[str, Any] | None = None, **named: Any) -> Any:
        _imported.set(frozenset(imports or {}))
        return await deploy(*given, imports=imports, **named)

    def validate_new(*given: Any, **named: Any) -> list[tuple[str, ...]]:
        return [each for each in validate(*given, **named) if each[0] not in _imported.get()]

    for module in (stacks, changesets):
        module._deploy_stack_async = deploy_importing
    stacks._validation_errors = validate_new


def _adopt_repository(identifier: dict[str, str]) -> Provisioned:
    repository = ecr._repositories[identifier["RepositoryName"]]
    attributes = {"Arn": repository["repositoryArn"], "RepositoryUri": repository["repositoryUri"]}
    return identifier["RepositoryName"], attributes


def _missing_repository(name: str) -> str | None:
    if name in ecr._repositories:
        return None
    key = json.dumps({"/properties/RepositoryName": name}, separators=(",", ":"))
    return f"Resource of type '{_REPOSITORY}' with identifier '{key}' was not found."

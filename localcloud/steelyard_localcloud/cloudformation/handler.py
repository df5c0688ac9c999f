"""Handlers by which ministack's CloudFormation creates, updates, replaces and deletes a type of resource."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ministack.services.cloudformation import provisioners, stacks

from steelyard_localcloud.errors import ServiceError, not_emulated
from steelyard_localcloud.wire import Parameters

# Physical id and attributes of Fn::GetAtt.
Provisioned = tuple[str, Parameters]
Create = Callable[[str, Parameters, str], Provisioned]
Update = Callable[[str, Parameters, Parameters], Provisioned]
Delete = Callable[[str, Parameters], None]


@dataclass(frozen=True, kw_only=True)
class Handler:
    """One resource type.

    Attributes:
        type: Such as ``AWS::SageMaker::Model``.
        create: Takes the logical id, the properties and the stack's name.
        update: Takes the physical id, the old and the new properties; changes in place.
        delete: Takes the physical id and the properties. A resource that is gone already is no error.
        replacing: Properties whose change needs a new physical resource. The new one is created first, and the old one
            deleted once the whole update has succeeded.
        name_property: Property that names the resource; a named one cannot be replaced, as on AWS.
        tagged: Whether the type has ``Tags``.
        slow: Whether a handler waits, so that it must not hold up the emulator.
    """

    type: str
    create: Create
    update: Update
    delete: Delete
    replacing: tuple[str, ...] = ()
    name_property: str | None = None
    tagged: bool = False
    slow: bool = False


def register(handlers: list[Handler]) -> None:
    """Enter handlers into ministack's tables."""
    for handler in handlers:
        provisioners._RESOURCE_HANDLERS[handler.type] = {
            "create": handler.create,
            "update": _update(handler),
            "delete": handler.delete,
        }
        provisioners._REPLACING_PROPERTIES[handler.type] = handler.replacing
        if handler.name_property:
            provisioners._CUSTOM_NAME_REPLACEMENT[handler.type] = {"name": handler.name_property}
        if handler.tagged:
            provisioners._STACK_TAG_PROPERTY[handler.type] = ("Tags", "list")
    slow = {handler.type for handler in handlers if handler.slow}
    otherwise = stacks._runs_on_worker_thread
    stacks._runs_on_worker_thread = lambda resource_type: resource_type in slow or otherwise(resource_type)


def physical_name(logical_id: str, stack_name: str, *, longest: int) -> str:
    """A name for an unnamed resource; another one when it replaces its predecessor."""
    name: str = provisioners._physical_name(stack_name, logical_id, max_len=longest)
    return name


def only(properties: Parameters, emulated: set[str], resource_type: str) -> None:
    """Refuse properties that would be ignored.

    Raises:
        ServiceError: With their names.
    """
    if unknown := sorted(set(properties) - emulated):
        raise not_emulated(f"{', '.join(unknown)} of {resource_type}")


def ignore_missing(delete: Callable[[], object]) -> None:
    """Delete, unless it is gone."""
    try:
        delete()
    except ServiceError as error:
        if "could not find" not in error.message.lower() and error.code != "ObjectNotFoundException":
            raise


def _update(handler: Handler) -> Callable[[str, Parameters, Parameters, str], Provisioned]:
    def update(physical_id: str, old: Parameters, new: Parameters, _stack_name: str) -> Provisioned:
        return handler.update(physical_id, old, new)

    return update

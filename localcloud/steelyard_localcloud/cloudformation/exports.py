"""Exports that another stack imports: an update may neither change nor delete them.

Ministack looks at imports when the exporting stack is deleted, and at no other time; an export that an update dropped
stays in its table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ministack.services import cloudformation
from ministack.services.cloudformation import handlers, stacks

from steelyard_localcloud.errors import ServiceError


def extend() -> None:
    """Wrap the resolution of a stack's outputs, the last step of an operation that can fail."""
    resolve = stacks._resolve_stack_outputs

    def resolve_or_refuse(*given: Any) -> tuple[list[Any], dict[str, Any]]:
        outputs, exports = resolve(*given)
        _replace(str(given[-1]), exports)
        return outputs, exports

    stacks._resolve_stack_outputs = resolve_or_refuse


def _replace(stack_id: str, exports: Mapping[str, Mapping[str, Any]]) -> None:
    """Drop the exports that a stack no longer has.

    Raises:
        ServiceError: One that another stack imports would be changed or deleted.
    """
    earlier = {name: each for name, each in cloudformation._exports.items() if each["StackId"] == stack_id}
    for name, export in earlier.items():
        if name in exports and exports[name]["Value"] == export["Value"]:
            continue
        if importing := _importing(name, stack_id):
            action = "update" if name in exports else "delete"
            raise ServiceError(f"Cannot {action} export {name} as it is in use by {', '.join(importing)}.")
    for name in earlier.keys() - exports.keys():
        del cloudformation._exports[name]


def _importing(export: str, stack_id: str) -> list[str]:
    return sorted(
        name
        for name, stack in cloudformation._stacks.items()
        if stack["StackId"] != stack_id
        and stack.get("StackStatus") != "DELETE_COMPLETE"
        and export in handlers._imported_export_names(stack, name)
    )

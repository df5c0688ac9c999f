"""Checks parameters against AWS's own description of its services, which botocore carries."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import botocore.session
from botocore.validate import ParamValidator

from steelyard_localcloud.errors import ServiceError
from steelyard_localcloud.wire import Parameters

_INTEGERS = ("integer", "long")
_FLOATS = ("float", "double")


@cache
def service_model(service: str) -> Any:
    """Botocore's model of a service, such as ``sagemaker``."""
    return botocore.session.get_session().get_service_model(service)


def input_shape(service: str, operation: str) -> Any:
    """The shape of an operation's parameters."""
    return service_model(service).operation_model(operation).input_shape


def validate(service: str, operation: str, parameters: Parameters) -> None:
    """Refuse parameters that AWS would refuse for their shape: unknown or missing members, types, ranges, patterns.

    Raises:
        ServiceError: With every violation in one message.
    """
    shape = input_shape(service, operation)
    report = ParamValidator().validate(parameters, shape)
    problems = [report.generate_report()] if report.has_errors() else list(_violations(shape, parameters, operation))
    if problems:
        raise ServiceError(f"{len(problems)} validation error detected: " + "; ".join(problems))


def from_template(service: str, operation: str, properties: Parameters) -> Parameters:
    """A template's properties as the operation's parameters.

    CloudFormation lets numbers and booleans be strings; members that the operation does not have stay as they are, so
    that ``validate`` names them.
    """
    converted: Parameters = _convert(input_shape(service, operation), properties)
    return converted


def _violations(shape: Any, value: Any, path: str) -> Iterator[str]:
    if shape.type_name == "structure" and isinstance(value, dict):
        for name, member in value.items():
            if name in shape.members:
                yield from _violations(shape.members[name], member, f"{path}.{name}")
        return
    if shape.type_name == "map" and isinstance(value, dict):
        for name, member in value.items():
            yield from _violations(shape.key, name, f"{path} (key)")
            yield from _violations(shape.value, member, f"{path}.{name}")
        return
    size = len(value) if isinstance(value, str | bytes | list) else value
    low, high = shape.metadata.get("min"), shape.metadata.get("max")
    if isinstance(size, int | float) and not isinstance(size, bool):
        unit = "" if size is value else " long"
        if low is not None and size < low:
            yield f"{path} is {size}{unit}, below the minimum {low}"
        if high is not None and size > high:
            yield f"{path} is {size}{unit}, above the maximum {high}"
    if isinstance(value, list):
        for index, member in enumerate(value):
            yield from _violations(shape.member, member, f"{path}[{index}]")
    if isinstance(value, str):
        if shape.type_name == "string" and shape.enum and value not in shape.enum:
            yield f"{path} is {value!r}, which is none of AWS's values such as {', '.join(shape.enum[:5])}"
        if (pattern := _pattern(shape.metadata.get("pattern"))) and not pattern.fullmatch(value):
            yield f"{path} is {value!r}, which does not match {pattern.pattern}"


@cache
def _pattern(text: str | None) -> re.Pattern[str] | None:
    if not text:
        return None
    try:
        # AWS matches in Java, where letters and digits of other scripts do not match these classes.
        return re.compile(text, re.ASCII)
    except re.error:
        return None  # Java's classes such as \\p{ASCII}; what they exclude is checked where it matters.


def _convert(shape: Any, value: Any) -> Any:
    kind = shape.type_name
    if kind == "structure" and isinstance(value, dict):
        return {
            name: _convert(shape.members[name], member) if name in shape.members else member
            for name, member in value.items()
        }
    if kind == "map" and isinstance(value, dict):
        return {name: _convert(shape.value, member) for name, member in value.items()}
    if kind == "list" and isinstance(value, list):
        return [_convert(shape.member, member) for member in value]
    if kind == "string" and isinstance(value, int | float | bool):
        return str(value).lower() if isinstance(value, bool) else str(value)
    if not isinstance(value, str):
        return float(value) if kind in _FLOATS and isinstance(value, int) else value
    if kind in _INTEGERS and re.fullmatch(r"-?[0-9]{1,40}", value):
        return int(value)
    if kind in _FLOATS and re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", value):
        return float(value)
    if kind == "boolean" and value.lower() in ("true", "false"):
        return value.lower() == "true"
    return value

"""Small builders of JSON Schema, so that a schema reads like the value it describes."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

ANY: Schema = {}
TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
COUNT: Schema = {"type": "integer", "minimum": 0}
INTEGER: Schema = {"type": "integer"}
FLAG: Schema = {"type": "boolean"}
MILLISECONDS: Schema = {"type": "number", "minimum": 0}
PROBABILITY: Schema = {"type": "number", "minimum": 0, "maximum": 1}
SHA256: Schema = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
OPEN: Schema = {"type": "object"}


def ref(name: str) -> Schema:
    """A reference to a schema under ``components``."""
    return {"$ref": f"#/components/schemas/{name}"}


def array(items: Schema) -> Schema:
    """An array of ``items``."""
    return {"type": "array", "items": items}


def mapping(values: Schema) -> Schema:
    """An object with any keys."""
    return {"type": "object", "additionalProperties": values}


def constant(value: Any) -> Schema:
    """Exactly ``value``."""
    return {"const": value}


def nullable(schema: Schema) -> Schema:
    """``schema`` or null."""
    return {"anyOf": [schema, {"type": "null"}]}


def either(*schemas: Schema) -> Schema:
    """One of ``schemas``."""
    return {"anyOf": list(schemas)}


def closed(*, optional: dict[str, Schema] | None = None, **required: Schema) -> Schema:
    """An object with exactly these fields."""
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": False,
    }

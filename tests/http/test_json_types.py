"""JSON's ``false``, ``0``, ``0.0`` and ``"0"`` are four values; Python takes the first three for equal.

Each of them is put at every place of valid bodies, and into every field that they leave out. Our document decides
which are accepted.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
from starlette.testclient import TestClient

from fuzzing import INEXPRESSIBLE, OF_PATH, containers, keys
from switchyard_runtime.http.openapi import document
from switchyard_runtime.settings import Settings

CONFUSED: list[Any] = [False, True, 0, 1, 0.0, -0.0, 1.0, "", "0", "1", "false", "true", None, [], {}]


def resolved(schema: dict[str, Any], components: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A schema and what it refers to or joins."""
    yield schema
    if "$ref" in schema:
        yield from resolved(components[schema["$ref"].rsplit("/", 1)[-1]], components)
    for joined in ("anyOf", "oneOf", "allOf"):
        for branch in schema.get(joined, ()):
            yield from resolved(branch, components)


def variants(body: dict[str, Any], schema: dict[str, Any], components: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Copies of a body, each with one value of ``CONFUSED`` somewhere."""
    for number, holder in enumerate(containers(body)):
        for key in keys(holder):
            for value in CONFUSED:
                changed = copy.deepcopy(body)
                list(containers(changed))[number][key] = value
                yield changed
    left_out = {name for part in resolved(schema, components) for name in part.get("properties", ())} - set(body)
    for name in sorted(left_out):
        for value in CONFUSED:
            yield body | {name: value}


@pytest.mark.parametrize("path", OF_PATH)
def test_a_value_is_accepted_when_the_document_says_so(stub_client: TestClient, path: str) -> None:
    described = document(Settings())
    components = described["components"]
    schema = described["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    validator = jsonschema_rs.Draft202012Validator({**schema, "components": components})
    accepted = refused = 0
    for body in OF_PATH[path]:
        for changed in variants(body, schema, components["schemas"]):
            sent = json.dumps(changed)
            answer = stub_client.post(path, content=sent, headers={"content-type": "application/json"})
            if answer.status_code == 200:
                accepted += 1
                assert validator.is_valid(changed), f"accepted although it does not fit the schema: {sent}"
            else:
                refused += 1
                assert answer.status_code in (400, 422), answer.text
                assert not validator.is_valid(changed) or INEXPRESSIBLE.search(answer.text), (sent, answer.text)
    assert accepted
    assert refused

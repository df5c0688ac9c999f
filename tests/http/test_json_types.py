"""JSON's ``false``, ``0``, ``0.0`` and ``"0"`` are four values; Python takes the first three for equal.

Each of them is put at every place of valid bodies, and into every field that they leave out. Our document decides
which are accepted, and how many of a thing are, whatever limits the server has.
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
from steelyard_runtime.contracts.server_fields import ServerFields
from steelyard_runtime.contracts.systemone import MAX_LEVELS
from steelyard_runtime.http.openapi import document
from steelyard_runtime.settings import Settings

CONFUSED: list[Any] = [False, True, 0, 1, 0.0, -0.0, 1.0, "", "0", "1", "false", "true", None, [], {}]


def resolved(schema: dict[str, Any], components: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A schema and what it refers to, among ``components``, or joins."""
    yield schema
    if schema.get("$ref", "").rsplit("/", 1)[-1] in components:
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
    if "prompt" not in body or "anyOf" in schema:
        left_out -= set(ServerFields.model_fields)  # all generating contracts share them: once is enough
    for name in sorted(left_out):
        for value in CONFUSED:
            yield body | {name: value}


def at_the_limits(settings: Settings) -> dict[str, list[dict[str, Any]]]:
    """Bodies by path: each has as many of something as its limit allows, or one more, or as few, or one fewer."""
    questions = (0, 1, settings.max_questions, settings.max_questions + 1)
    options = (1, 2, settings.max_options, settings.max_options + 1)
    levels = (*options, min(MAX_LEVELS, settings.max_options), MAX_LEVELS, MAX_LEVELS + 1)
    choices = (0, 1, settings.max_choices, settings.max_choices + 1)

    def decision(number: int, size: int) -> dict[str, Any]:
        return {"id": str(number), "state": "s", "question": "q", "options": [{"id": str(i)} for i in range(size)]}

    def systemone(*asked: dict[str, Any]) -> dict[str, Any]:
        return {"state": "s", "questions": {str(i): question for i, question in enumerate(asked)}}

    def openai(*asked: dict[str, Any]) -> dict[str, Any]:
        return {"model": "m", "input": "s", "questions": [{"instructions": "?", **question} for question in asked]}

    decide_bodies = [
        *({"decisions": [decision(i, 2) for i in range(size)]} for size in questions),
        *({"decision": decision(0, size)} for size in options),
        *({"decisions": [decision(0, size)]} for size in options),
    ]
    systemone_bodies = [
        *(systemone(*[{"type": "noul"}] * size) for size in questions),
        *(systemone({"type": "choice", "criteria": {str(i): None for i in range(size)}}) for size in options),
        *(systemone({"type": "score", "criteria": [None] * size}) for size in levels),
    ]
    openai_bodies = [
        *(openai(*[{"type": "predicate"}] * size) for size in questions),
        *(openai({"type": "choice", "choices": [{"value": str(i)} for i in range(size)]}) for size in options),
        *(openai({"type": "score", "levels": [{"label": str(i)} for i in range(size)]}) for size in options),
    ]
    chats = [{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, "n": number} for number in choices]
    completions = [{"prompt": "once", "max_tokens": 1, "n": number} for number in choices]
    return {
        "/v1/systemone": systemone_bodies,
        "/v1/decisions": openai_bodies,
        "/v1/chat/completions": chats,
        "/openai/v1/chat/completions": chats,
        "/v1/completions": completions,
        "/v1/embeddings": [],
        "/invocations": [*decide_bodies, *systemone_bodies, *openai_bodies, *chats, *completions],
    }


@pytest.mark.parametrize("path", OF_PATH)
@pytest.mark.parametrize(
    "settings",
    [
        Settings(accept_any_model=True),
        Settings(accept_any_model=True, max_questions=3, max_options=5, max_choices=2),
        Settings(accept_any_model=True, max_questions=1, max_options=2, max_choices=1),
    ],
    ids=["as they come", "lowered", "as low as can be"],
)
def test_a_value_is_accepted_when_the_document_says_so(stub_client: TestClient, settings: Settings, path: str) -> None:
    described = stub_client.get("/openapi.json").json()
    assert described == document(settings)
    components = described["components"]
    schema = described["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    validator = jsonschema_rs.Draft202012Validator({**schema, "components": components})
    accepted = refused = 0
    lowered = settings.max_choices < Settings().max_choices
    # Limits are about sizes: with lower ones, the fields that a body leaves out are as they were.
    bodies = [
        changed
        for body in OF_PATH[path]
        for changed in variants(body, schema, {} if lowered else components["schemas"])
    ]
    for body in (*bodies, *at_the_limits(settings)[path]):
        sent = json.dumps(body)
        answer = stub_client.post(path, content=sent, headers={"content-type": "application/json"})
        if answer.status_code == 200:
            accepted += 1
            assert validator.is_valid(body), f"accepted although it does not fit the schema: {sent}"
        else:
            refused += 1
            assert answer.status_code in (400, 422), answer.text
            assert not validator.is_valid(body) or INEXPRESSIBLE.search(answer.text), (sent, answer.text)
    assert accepted
    assert refused

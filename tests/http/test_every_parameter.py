"""Every documented parameter of every contract goes through the real engine: at its limits, in the middle, each value.

The requests are made from our own OpenAPI document, so that a parameter that is added there is sent here. None may end
the server, or change what others are answered.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema_rs
import pytest

import tiny_models
from live_server import ServerProcess
from steelyard_runtime.http.openapi import document
from steelyard_runtime.settings import Settings

Schema = dict[str, Any]
Sent = set[tuple[str, str]]

MESSAGE = [{"role": "user", "content": "hello"}]
OPTIONS = [{"id": "a"}, {"id": "b"}]
DECISION = {"id": "d", "state": "The parcel is late.", "question": "Which team?", "options": OPTIONS}
BASES: dict[str, tuple[str, dict[str, Any]]] = {
    "ChatRequest": ("/v1/chat/completions", {"messages": MESSAGE, "max_tokens": 2, "temperature": 0.5}),
    "CompletionsRequest": ("/v1/completions", {"prompt": "hello", "max_tokens": 2}),
    "EmbeddingsRequest": ("/v1/embeddings", {"input": "hello"}),
    "SystemOneRequest": ("/v1/systemone", {"state": "late", "questions": {"q": {"type": "noul"}}}),
    "OpenAIDecisionsRequest": (
        "/v1/decisions",
        {"model": "any", "input": "late", "questions": [{"type": "predicate", "instructions": "late?"}]},
    ),
    "DecideSingle": ("/invocations", {"decision": DECISION}),
    "DecideSeveral": ("/invocations", {"decisions": [DECISION]}),
    "FeedbackRequest": ("/v1/feedback", {"feedback": {"use": "route", "right": "a"}}),
}
STREAMED = ("ChatRequest", "CompletionsRequest")
# What a parameter needs beside it, and what it takes the place of.
WITH: dict[str, dict[str, Any]] = {"top_logprobs": {"logprobs": True}, "stream_options": {"stream": True}}
INSTEAD = {"max_completion_tokens": "max_tokens"}
# Texts of patterns that ordinary text does not fit.
PATTERNS = {
    "^[a-zA-Z0-9_-]{1,64}$": ("a", "Z9_-", "a" * 64),
    "^[A-Za-z0-9._-]{1,64}(/[0-9]{1,3})?$": ("a", "A.9_-/0", "a" * 64 + "/127"),
}
# Values that fit the document and are refused all the same, with what the refusal says.
REFUSED = (
    "prompts in one request are not supported",
    "together",  # max_tokens beyond the context
    "a control token of this model",
    "this model's tokens are",
    "dimensions is",  # another number than the model's
    "no function_call before",
    "no custom_tool_call before",
    "is registered on this server",
    "cannot read the question",
)
DIFFER = ("id", "value", "label")
"""Of several things side by side, what has to differ."""
SMALL = 3
"""Beside the limits, of numbers whose middle is far beyond what anyone sends."""
MODEST = 1000
TOKEN = 300
"""A token of ordinary text, where a number may be one."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A model that generates, decides and embeds."""
    model = tiny_models.write("llama-pooling", tmp_path_factory.mktemp("tiny") / "model.gguf")
    with ServerProcess(model=model, threads=1, deadline_s=600, accept_any_model=True).running() as process:
        yield process


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=120, trust_env=False) as opened:
        yield opened


DOCUMENT = document(Settings())
COMPONENTS: dict[str, Schema] = DOCUMENT["components"]["schemas"]


class Requests:
    """Values of a schema, each with one thing that is not the least; ``sent`` holds the parameters that were in one."""

    def __init__(self) -> None:
        self.sent: Sent = set()

    def least(self, schema: Schema, number: int = 0) -> Any:
        """The smallest value; different ones for different numbers, where names must differ."""
        if "$ref" in schema:
            return self.least(COMPONENTS[name_of(schema)], number)
        for joined in ("anyOf", "oneOf"):
            if joined in schema:
                return self.least(schema[joined][0], number)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return schema["enum"][0]
        match schema.get("type"):
            case "null":
                return None
            case "boolean":
                return False
            case "integer" | "number":
                return schema.get("minimum", 0)
            case "string":
                return PATTERNS.get(schema.get("pattern", ""), (short(number),))[0]
            case "array":
                return [self.least(schema.get("items", {}), index) for index in range(schema.get("minItems", 0))]
            case "object":
                return self._least_object(schema, number)
            case _:
                return f"any {number}"

    def _least_object(self, schema: Schema, number: int) -> dict[str, Any]:
        required = schema.get("required", ())
        found = {name: self.least(schema["properties"][name], number if name in DIFFER else 0) for name in required}
        missing = max(0, schema.get("minProperties", 0) - len(found))
        return found | {short(index): self.least(inner_of(schema), index) for index in range(missing)}

    def values(self, schema: Schema, name: str = "") -> Iterator[Any]:
        """Values with everything that the schema allows."""
        if "$ref" in schema:
            yield from self.values(COMPONENTS[name_of(schema)], name_of(schema))
            return
        branches = [branch for joined in ("anyOf", "oneOf") for branch in schema.get(joined, ())]
        for branch in branches:
            yield from self.values(branch, name)
        if branches:
            return
        if "const" in schema or "enum" in schema:
            yield from schema.get("enum", [schema.get("const")])
            return
        match schema.get("type"):
            case "null":
                yield None
            case "boolean":
                yield from (True, False)
            case "integer" | "number":
                yield from numbers(schema)
            case "string":
                yield from strings(schema)
            case "array":
                yield from self._arrays(schema)
            case "object":
                yield from self._objects(schema, name)
            case _:
                yield from ("text", 7, None, {"any": ["thing"]})

    def _arrays(self, schema: Schema) -> Iterator[list[Any]]:
        items, least, most = schema.get("items", {}), schema.get("minItems", 0), schema.get("maxItems")
        for size in sorted({least, least + 1, *([most] if most else ())}):
            yield [self.least(items, index) for index in range(size)]
        fill = [self.least(items, 300 + index) for index in range(max(0, least - 1))]
        for value in self.values(items):
            yield [value, *fill]

    def _objects(self, schema: Schema, name: str) -> Iterator[dict[str, Any]]:
        least = self._least_object(schema, 0)
        yield least
        for field, inner in schema.get("properties", {}).items():
            for value in self.values(inner):
                self.sent.add((name, field))
                yield {**without(least, INSTEAD.get(field)), **WITH.get(field, {}), field: value}
        inner = inner_of(schema)
        names = [short(index) for index in range(schema.get("maxProperties", 3))]
        if "patternProperties" in schema:  # token ids
            names = [str(index) for index in range(schema["maxProperties"])]
        if not schema.get("properties"):
            yield {key: self.least(inner, index) for index, key in enumerate(names)}
            for value in self.values(inner):
                fill = {key: self.least(inner) for key in names[1 : schema.get("minProperties", 0)]}
                yield {names[0]: value, **fill}


def short(number: int) -> str:
    """A name of one token, or two, so that many fit into the context."""
    more, last = divmod(number, len(tiny_models.LABELS))
    return (tiny_models.LABELS[more - 1] + " " if more else "") + tiny_models.LABELS[last]


def name_of(schema: Schema) -> str:
    return str(schema["$ref"].rsplit("/", 1)[-1])


def inner_of(schema: Schema) -> Schema:
    """The schema of an object's values whose names are free."""
    for inner in schema.get("patternProperties", {}).values():
        return dict(inner)
    inner = schema.get("additionalProperties")
    return dict(inner) if isinstance(inner, dict) else {}


def numbers(schema: Schema) -> Iterator[float]:
    least, most = schema.get("minimum", -5), schema.get("maximum", 5)
    middle = (least + most) / 2 if schema["type"] == "number" else (least + most) // 2
    found = [least, middle if most - least < MODEST else SMALL, most]
    if schema["type"] == "integer" and least == 0 and most > TOKEN:
        found.append(TOKEN)
    if schema["type"] == "number":
        found += [least + (most - least) * 0.1, most - (most - least) * 0.001]
    yield from dict.fromkeys(found)


def strings(schema: Schema) -> Iterator[str]:
    if schema.get("pattern") in PATTERNS:
        yield from PATTERNS[schema["pattern"]]
        return
    yield "x" * schema.get("minLength", 0)
    yield "Grüße, 漢字 👍 <|im_end|>"
    if "maxLength" in schema:
        yield "x" * schema["maxLength"]


def without(body: dict[str, Any], field: str | None) -> dict[str, Any]:
    return {key: value for key, value in body.items() if key != field}


def reachable(name: str, seen: set[str]) -> set[str]:
    """The schemas that a request's schema refers to, itself included."""
    if name not in seen:
        seen.add(name)
        for found in references(COMPONENTS[name]):
            reachable(found, seen)
    return seen


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "$ref" in value:
            yield name_of(value)
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def bodies(name: str) -> tuple[list[dict[str, Any]], Sent]:
    """Bodies of a contract: each parameter at the top with each of its values."""
    requests, found = Requests(), []
    base = BASES[name][1]
    for field, inner in COMPONENTS[name]["properties"].items():
        for value in requests.values(inner):
            requests.sent.add((name, field))
            found.append({**without(base, INSTEAD.get(field)), **WITH.get(field, {}), field: value})
    if name in STREAMED:
        found += [body | {"stream": True} for body in found if "stream" not in body]
    return found, requests.sent


def innocent(client: httpx.Client) -> list[float]:
    """The logits of a decision that has nothing to do with the rest."""
    response = client.post("/invocations", json={"decision": DECISION | {"state": "An innocent state."}})
    assert response.status_code == 200
    result = response.json()["result"]
    assert not result["cached"]
    logits: list[float] = result["option_logits"]
    return logits


@functools.cache
def validator(path: str, status: int) -> jsonschema_rs.Draft202012Validator:
    schema = DOCUMENT["paths"][path]["post"]["responses"][str(status)]["content"]["application/json"]["schema"]
    return jsonschema_rs.Draft202012Validator({**schema, "components": DOCUMENT["components"]})


def validate(path: str, response: httpx.Response) -> None:
    """The answer is one that the document promises, with the body that it promises."""
    media_type = response.headers["content-type"].partition(";")[0]
    if media_type == "application/json":
        validator(path, response.status_code).validate(response.json())
    else:
        *_, last, end = response.text.split("\n\n")
        assert (last, end) == ("data: [DONE]", ""), response.text[-300:]


def wrong(client: httpx.Client, path: str, body: dict[str, Any]) -> str:
    """What is wrong with the answer to ``body``; "" if nothing is."""
    response = client.post(path, json=body)
    validate(path, response)
    if response.status_code == 200:
        return ""
    if response.status_code < 500 and any(reason in response.text for reason in REFUSED):
        return ""
    return f"{response.status_code} {response.text[:300]} for {json.dumps(body)[:300]}"


def test_every_request_of_the_document_has_a_base() -> None:
    named = {
        name_of(part)
        for item in DOCUMENT["paths"].values()
        for operation in item.values()
        for content in operation.get("requestBody", {}).get("content", {}).values()
        for part in content["schema"].get("anyOf", [content["schema"]])
    }
    single = {
        name for whole in named for name in (references(COMPONENTS[whole]) if whole == "DecideRequest" else [whole])
    }
    assert single == set(BASES)


@pytest.mark.parametrize("name", BASES)
def test_every_parameter_is_among_the_requests(name: str) -> None:
    sent = bodies(name)[1]
    for schema in reachable(name, set()):
        assert not {(schema, field) for field in COMPONENTS[schema].get("properties", {})} - sent


@pytest.mark.parametrize("name", BASES)
def test_every_parameter_goes_through_the_real_engine(server: ServerProcess, client: httpx.Client, name: str) -> None:
    before = innocent(client)
    path = BASES[name][0]
    faults = [fault for body in bodies(name)[0] if (fault := wrong(client, path, body))]
    assert not faults
    assert innocent(client) == before
    assert client.get("/ping").status_code == 200
    assert "steelyard_engine_faults_total 0.0" in client.get("/metrics").text
    assert server.errors == ""


@pytest.mark.parametrize("name", BASES)
def test_every_contract_is_answered_at_invocations(client: httpx.Client, name: str) -> None:
    assert wrong(client, "/invocations", BASES[name][1]) == ""
    if name in STREAMED:
        assert wrong(client, "/invocations", BASES[name][1] | {"stream": True}) == ""


def test_the_document_is_the_servers_own(client: httpx.Client) -> None:
    assert client.get("/openapi.json").json() == json.loads(json.dumps(DOCUMENT))

"""What the fuzz tests share: valid bodies, ways to damage them, and the check of every answer."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import schemathesis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from live_server import ServerProcess
from steelyard_runtime.http.openapi import document
from steelyard_runtime.settings import Settings

# Rules that JSON Schema cannot express. A body that fits its schema may be refused for these alone.
INEXPRESSIBLE = re.compile(
    r"must be unique"
    r"|look the same|nothing is seen|cannot read the question"
    r"|has the control character U\+000A"  # in Python, the pattern's $ also stands before a last line break
    r"|differs from the state"
    r"|no \w+ before this output has the call_id"
    r"|tokens and \d+ are allowed|; \d+ are allowed"
    r"|is only allowed with|give one of them"
    r"|logit_bias names the token"
    r"|vectors have \d+"
    r"|belong to different shapes"
    r"|has no tokens"
    r"|is registered on this server"
    r"|is not served here"
    r"|ask for \d+ answers"
    r"|holds the token id"
    r"|is not supported together with"
    r"|must be an integer; got -?\d+\.0\b|must be an integer; got -?[\d.]+e\+\d+"  # to JSON Schema, 1.0 is an integer
)

BODIES: dict[str, list[dict[str, Any]]] = {
    "decide": [
        {"decision": {"id": "a", "state": "late", "question": "team?",
                      "options": [{"id": "x"}, {"id": "y", "description": "z"}]}},
        {"decisions": [{"id": str(i), "state": {"k": [1, None]}, "question": "q",
                        "options": [{"id": "x"}, {"id": "y"}]} for i in range(3)]},
    ],
    "systemone": [
        {"state": ["a", {"b": 1.5}], "model": "jev-latest", "questions": {
            "n": {"type": "noul", "criteria": {"true": "yes"}},
            "c": {"type": "choice", "instructions": "which?", "criteria": {"x": None, "y": "why", "ñ": {"a": 1}}},
            "s": {"type": "score", "criteria": ["low", None, "high"]}}},
    ],
    "openai_decisions": [
        {"model": "default", "input": "text", "questions": [{"type": "predicate", "instructions": "late?"}]},
        {"model": "default", "input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
         "questions": [
            {"type": "choice", "instructions": "?", "choices": [{"value": True}, {"value": "no", "description": "d"}]},
            {"type": "score", "instructions": "how?", "levels": [{"label": "l"}, {"label": "h"}]}]},
    ],
    "chat": [
        {"messages": [{"role": "system", "content": "s"},
                      {"role": "user", "content": [{"type": "text", "text": "hi"}]}],
         "max_tokens": 4, "temperature": 0.5, "stop": ["x"], "logprobs": True, "top_logprobs": 2},
        {"messages": [{"role": "user", "content": "hi"}], "stream": True, "stream_options": {"include_usage": True},
         "max_completion_tokens": 3, "response_format": {"type": "json_object"}, "logit_bias": {"5": 1}},
    ],
    "completions": [
        {"prompt": "once", "max_tokens": 3, "logprobs": 2, "n": 2},
        {"prompt": [[97, 98], [99]], "max_tokens": 2, "echo": True},
    ],
    "embeddings": [{"input": ["a", "b"], "encoding_format": "base64"}],
}  # fmt: skip
OF_PATH = {
    "/v1/systemone": BODIES["systemone"],
    "/v1/decisions": BODIES["openai_decisions"],
    "/v1/chat/completions": BODIES["chat"],
    "/openai/v1/chat/completions": BODIES["chat"],
    "/v1/completions": BODIES["completions"],
    "/v1/embeddings": BODIES["embeddings"],
    "/invocations": [body for bodies in BODIES.values() for body in bodies],
}
LIMITS = settings(
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)


class Fuzzed:
    """The server under fire, and what its document promises."""

    def __init__(self, process: ServerProcess) -> None:
        self.process = process
        self.client = httpx.Client(base_url=process.url, timeout=60, verify=False, trust_env=False)
        self.schema = schemathesis.openapi.from_url(process.url + "/openapi.json")
        self.document = document(Settings())
        self.memory_at_start = self.memory()

    def memory(self) -> int:
        """Resident bytes of the server."""
        pages = int(Path(f"/proc/{self.process.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def validator(self, path: str, response: httpx.Response) -> jsonschema_rs.Draft202012Validator | None:
        """What the document says about this answer's body; None for text. Fails for an undocumented status or type."""
        operation = self.document["paths"][path]["post"]
        documented = operation["responses"].get(str(response.status_code))
        assert documented, f"{response.status_code} is not documented for {path}: {response.text[:500]}"
        media_type = response.headers["content-type"].partition(";")[0]
        schema = documented["content"][media_type]["schema"]
        if media_type != "application/json":
            return None
        return jsonschema_rs.Draft202012Validator({**schema, "components": self.document["components"]})

    def check(self, path: str, content: bytes) -> None:
        """Post bytes; the answer must be one that the document promises, and no fault of the server."""
        response = self.client.post(path, content=content, headers={"content-type": "application/json"})
        assert response.status_code < 500, (content, response.text)
        validator = self.validator(path, response)
        if validator is not None:
            validator.validate(response.json())


ODD_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([2**31, 2**63, 2**64, -1, 10**400, 1e308, -0.0, 5e-324]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=40),
    st.sampled_from(["", "\x00", "<|im_end|>", "</s>", "\ufeff", "💩" * 50, "a" * 5000, "__proto__", "\u2028"]),
    st.recursive(
        st.none() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
        max_leaves=12,
    ),
    st.builds(lambda depth: json.loads("[" * depth + "]" * depth), st.integers(1, 70)),
    st.builds(lambda count: [{}] * count, st.integers(0, 300)),
)


def mutate_bytes(body: bytes, randomness: random.Random) -> bytes:
    """One to four of: a flipped bit, a removed, doubled or swapped stretch, an inserted troublemaker."""
    data = bytearray(body)
    for _ in range(randomness.randint(1, 4)):
        at = randomness.randrange(len(data) + 1)
        length = randomness.randint(1, 8)
        match randomness.randrange(4):
            case 0 if data:
                data[at % len(data)] ^= 1 << randomness.randrange(8)
            case 1:
                del data[at : at + length]
            case 2:
                data[at:at] = data[at : at + length * 8]
            case _:
                data[at:at] = randomness.choice(TROUBLE)
    return bytes(data)


TROUBLE = [
    b"NaN", b"Infinity", b"-", b"1e999", b"\\ud800", b"\\u0000", b"\x00", b"\xff", b"\xef\xbb\xbf", b'"', b"\\", b",",
    b":", b"{", b"}", b"[", b"]", b"null", b"true", b"[" * 100, b'{"a":' * 70, b"9" * 400, b"0.1e-400", b"/*", b"'",
]  # fmt: skip


def mutate_value(body: Any, value: Any, randomness: random.Random) -> Any:
    """A copy of ``body`` with one value somewhere inside replaced, removed, or joined by another."""
    copy = json.loads(json.dumps(body))
    places = [(holder, key) for holder in containers(copy) for key in keys(holder)]
    holder, key = randomness.choice(places)
    match randomness.randrange(4):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[randomness.choice(["extra", "", "use", "type", "model", "id"])] = value
        case 1:
            holder.append(value)
        case _:
            holder[key] = value
    return copy


def containers(value: Any) -> Iterator[Any]:
    """Every array and object in ``value``."""
    if isinstance(value, dict | list):
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from containers(inner)


def keys(holder: Any) -> list[Any]:
    """Keys or indices."""
    return list(holder) if isinstance(holder, dict) else list(range(len(holder)))

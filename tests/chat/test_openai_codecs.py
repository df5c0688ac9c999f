"""The OpenAI text contracts: what a body may say, what is refused by name, and bodies that the real client reads."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable
from typing import Any

import pytest
from openai.types import Completion, CreateEmbeddingResponse
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from steelyard_runtime.contracts import chat, completions, embeddings
from steelyard_runtime.contracts.error_formats import OPENAI
from steelyard_runtime.contracts.limits import Limits
from steelyard_runtime.contracts.openai_text import fingerprint
from steelyard_runtime.decision import TokenCounts
from steelyard_runtime.engine.interface import Delta, Done, Event, Finished, TokenLogprob
from steelyard_runtime.errors import Kind, Problem
from steelyard_runtime.generation import (
    Choice,
    EmbeddingRequest,
    Embeddings,
    GenerationRequest,
    Head,
    JsonOutput,
    Message,
    Reply,
    TextPrompts,
    TokenLogprobs,
)
from steelyard_runtime.http.sse import sse, sse_error

ONE = Limits(max_choices=1)
HEAD = Head(id="1a", created=1_700_000_000, model="tiny", identity={"id": "tiny"}, prompt_sha256=("ab" * 32,))
DONE = Done(
    tokens=TokenCounts(prompt=9, evaluated=4, reused=5),
    generated_tokens=3,
    queue_ms=0.5,
    prefill_ms=1.5,
    generate_ms=2.5,
)
HALF = "€".encode()
LOGPROBS: TokenLogprobs = (
    (
        TokenLogprob(token_id=7, bytes=b" a", logprob=-0.25),
        (TokenLogprob(token_id=8, bytes=b"b", logprob=float("-inf")),),
    ),
    (TokenLogprob(token_id=9, bytes=HALF[:2], logprob=-1.0), ()),
    (TokenLogprob(token_id=10, bytes=HALF[2:], logprob=-2.0), ()),
)


def chat_body(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Hi"}], **fields}


def decode_chat(**fields: Any) -> GenerationRequest:
    return chat.decode(chat_body(**fields), limits=Limits(max_choices=8))


def decode_completion(**fields: Any) -> GenerationRequest:
    return completions.decode({"prompt": "Once", **fields}, limits=Limits(max_choices=8))


def refusal(call: Callable[[], object]) -> Problem:
    with pytest.raises(Problem) as caught:
        call()
    return caught.value


def test_the_least_request() -> None:
    assert decode_chat() == GenerationRequest(prompt=(Message("user", "Hi"),))
    assert chat.decode({"messages": [{"role": "user", "content": ""}]}, limits=ONE).prompt == (Message("user", ""),)
    assert decode_completion() == GenerationRequest(prompt=TextPrompts(("Once",)))


SAMPLING = [
    ({"max_tokens": 5}, {"max_tokens": 5}),
    ({"temperature": 0}, {"temperature": 0}),
    ({"temperature": 1.5}, {"temperature": 1.5}),
    ({"top_p": 0.5}, {"top_p": 0.5}),
    ({"top_k": 40}, {"top_k": 40}),
    ({"min_p": 0.05}, {"min_p": 0.05}),
    ({"top_k": -1}, {}),
    ({"seed": 2**63 - 1}, {"seed": 2**63 - 1}),
    ({"seed": -(2**63)}, {"seed": -(2**63)}),
    ({"seed": -1}, {"seed": -1}),
    ({"stop": ""}, {}),
    ({"stop": ["", "x"]}, {"stop": ("x",)}),
    ({"model": "m"}, {"model": "m"}),
    ({"repeat_last_n": 64, "repeat_penalty": 1.0}, {}),
    ({"repeat_last_n": -1, "presence_penalty": 1}, {"presence_penalty": 1}),
    ({"stop": "x"}, {"stop": ("x",)}),
    ({"stop": ["x", "\n", "y", "z"]}, {"stop": ("x", "\n", "y", "z")}),
    ({"stop": []}, {"stop": ()}),
    ({"presence_penalty": -2}, {"presence_penalty": -2}),
    ({"frequency_penalty": 2}, {"frequency_penalty": 2}),
    ({"logit_bias": {"0": -100, "15": 1.5}}, {"logit_bias": ((0, -100), (15, 1.5))}),
    ({"n": 3}, {"n": 3}),
    ({"stream": True}, {"stream": True}),
    ({"stream": False}, {}),
    ({"stream": True, "stream_options": {"include_usage": True}}, {"stream": True, "include_usage": True}),
    ({"stream": True, "stream_options": {}}, {"stream": True}),
    ({"user": "someone"}, {}),
    (dict.fromkeys(("max_tokens", "temperature", "top_p", "seed", "stop", "n", "logit_bias", "stream")), {}),
]


@pytest.mark.parametrize(("fields", "expected"), SAMPLING)
def test_sampling_fields(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    assert decode_chat(**fields) == GenerationRequest(prompt=(Message("user", "Hi"),), **expected)
    assert decode_completion(**fields) == GenerationRequest(prompt=TextPrompts(("Once",)), **expected)


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"max_completion_tokens": 5}, {"max_tokens": 5, "max_tokens_param": "max_completion_tokens"}),
        (
            {"max_completion_tokens": 5, "max_tokens": 5},
            {"max_tokens": 5, "max_tokens_param": "max_completion_tokens"},
        ),
        ({"logprobs": True}, {"top_logprobs": 0}),
        ({"logprobs": True, "top_logprobs": 20}, {"top_logprobs": 20}),
        ({"logprobs": False}, {}),
        ({"response_format": {"type": "text"}}, {}),
        ({"response_format": {"type": "json_object"}}, {"json_output": JsonOutput(schema=None)}),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": SCHEMA, "strict": True},
                }
            },
            {"json_output": JsonOutput(schema=SCHEMA)},
        ),
        ({"metadata": {"k": "v"}, "store": False}, {}),
        ({"tools": None, "tool_choice": None, "reasoning_effort": None}, {}),
    ],
)
def test_chat_fields(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    assert decode_chat(**fields) == GenerationRequest(prompt=(Message("user", "Hi"),), **expected)


def test_messages_of_every_role() -> None:
    request = decode_chat(
        messages=[
            {"role": "system", "content": "s"},
            {"role": "developer", "content": [{"type": "text", "text": "d1"}, {"type": "text", "text": " d2"}]},
            {"role": "user", "content": "u", "name": None},
            {
                "role": "assistant",
                "content": "a",
                "refusal": None,
                "tool_calls": [],
                "audio": None,
                "annotations": [{"type": "url_citation"}],
                "reasoning_content": "Hm.",
                "name": "Bob",
            },
            {"role": "assistant", "content": None},
            {"role": "assistant", "content": []},
            {"role": "tool", "content": "t", "tool_call_id": "call_1"},
        ]
    )
    assert request.prompt == (
        Message("system", "s"),
        Message("developer", "d1 d2"),
        Message("user", "u"),
        Message("assistant", "a"),
        Message("assistant", ""),
        Message("assistant", ""),
        Message("tool", "t"),
    )


TOOL = {"type": "function", "function": {"name": "f"}}
UNSUPPORTED_IN_CHAT: list[tuple[dict[str, Any], str]] = [
    ({"tools": [TOOL]}, "tools"),
    ({"tools": {}}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
    ({"id_slot": 0}, "id_slot"),
    ({"repeat_penalty": 1.1}, "repeat_penalty"),
    ({"repeat_penalty": True}, "repeat_penalty"),
    ({"ignore_eos": 0}, "ignore_eos"),
    ({"chat_template_kwargs": {"enable_thinking": True}}, "chat_template_kwargs"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"function_call": {"name": "f"}}, "function_call"),
    ({"audio": {"voice": "alloy", "format": "wav"}}, "audio"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"prediction": {"type": "content", "content": "x"}}, "prediction"),
    ({"reasoning_effort": "low"}, "reasoning_effort"),
    ({"service_tier": "flex"}, "service_tier"),
    ({"verbosity": "low"}, "verbosity"),
    ({"web_search_options": {}}, "web_search_options"),
    ({"store": True}, "store"),
    ({"grammar": "root ::= x"}, "grammar"),
    ({"unheard_of": None}, "unheard_of"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "messages.0.content.0",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "input_audio"}]}]},
        "messages.0.content.1",
    ),
    ({"messages": [{"role": "user", "content": [{"type": "file", "file": {}}]}]}, "messages.0.content.0"),
    ({"messages": [{"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}]}, "messages.0.tool_calls"),
    ({"messages": [{"role": "assistant", "content": "x", "function_call": {}}]}, "messages.0.function_call"),
    ({"messages": [{"role": "assistant", "content": "x", "refusal": "no"}]}, "messages.0.refusal"),
    ({"messages": [{"role": "assistant", "content": None, "audio": {"id": "1"}}]}, "messages.0.audio"),
    ({"messages": [{"role": "function", "name": "f", "content": "x"}]}, "messages.0.role"),
]


@pytest.mark.parametrize(("fields", "param"), UNSUPPORTED_IN_CHAT)
def test_unsupported_in_chat_is_named(fields: dict[str, Any], param: str) -> None:
    problem = refusal(lambda: decode_chat(**fields))
    assert problem.kind is Kind.UNSUPPORTED
    status, body = chat.CONTRACT.errors.render(problem)
    assert status == 400
    assert body["error"]["type"] == "invalid_request_error"
    assert body["error"]["param"] == param
    assert param.rsplit(".", 1)[-1] in body["error"]["message"]


def test_several_unsupported_fields_are_all_named() -> None:
    assert '"tool", "sound" are not supported' in refusal(lambda: decode_chat(tool=[], sound={})).message
    problem = refusal(lambda: decode_chat(tools=[TOOL], audio={}))
    assert [detail.loc for detail in problem.details] == [("audio",), ("tools",)]


def test_a_long_unknown_name_is_shortened() -> None:
    assert len(refusal(lambda: decode_chat(**{"x" * 100_000: 1})).message) < 1000


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"echo": True, "logprobs": 0}, "echo"),
        ({"best_of": 2}, "best_of"),
        ({"suffix": "x"}, "suffix"),
        ({"messages": []}, "messages"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ],
)
def test_unsupported_in_completions_is_named(fields: dict[str, Any], param: str) -> None:
    problem = refusal(lambda: decode_completion(**fields))
    assert (problem.kind, problem.param) == (Kind.UNSUPPORTED, param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 1.01}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"top_k": 2**31}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"seed": -(2**63) - 1}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"stop": ["a", 1]}, "stop.1"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"logit_bias": {"a": 1}}, "logit_bias.a"),
        ({"logit_bias": {"01": 1}}, "logit_bias.01"),
        ({"logit_bias": {"1": 101}}, "logit_bias.1"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"n": 0}, "n"),
        ({"n": 9}, "n"),
        ({"stream": 1}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"repeat_last_n": 64, "presence_penalty": 1}, "repeat_last_n"),
        ({"user": 1}, "user"),
        ({"model": 1}, "model"),
    ],
)
def test_wrong_values_name_their_place(fields: dict[str, Any], param: str) -> None:
    for call in (decode_chat, decode_completion):
        problem = refusal(lambda: call(**fields))  # noqa: B023
        assert problem.kind is Kind.INVALID
        assert chat.CONTRACT.errors.render(problem)[0] == 400
        place = problem.param or ""
        assert place == param or place.startswith(f"{param}.")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": []}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0.text"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages.0"),
        ({"messages": [{"content": "x"}]}, "messages.0"),
        ({"messages": ["Hi"]}, "messages.0"),
        ({"messages": [{"role": "user", "content": "x", "tool_call_id": "1"}]}, "messages.0.tool_call_id"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": 1}, "logprobs"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x y", "schema": {}}}},
            "response_format.json_schema.name",
        ),
        ({"metadata": {"a": 1}}, "metadata.a"),
    ],
)
def test_wrong_chat_values_name_their_place(fields: dict[str, Any], param: str) -> None:
    problem = refusal(lambda: decode_chat(**fields))
    assert problem.kind is Kind.INVALID
    assert problem.param == param


@pytest.mark.parametrize("body", [None, [], "x", 1, {}])
def test_bodies_of_no_shape(body: Any) -> None:
    for call in (
        lambda: chat.decode(body, limits=ONE),
        lambda: completions.decode(body, limits=ONE),
    ):
        assert refusal(call).kind is Kind.INVALID
    assert refusal(lambda: embeddings.decode(body, limits=Limits())).kind is Kind.INVALID


@pytest.mark.parametrize(
    ("fields", "top_logprobs"), [({"logprobs": 0}, 0), ({"logprobs": 5}, 5), ({"logprobs": None}, None), ({}, None)]
)
def test_completion_logprobs(fields: dict[str, Any], top_logprobs: int | None) -> None:
    assert decode_completion(**fields).top_logprobs == top_logprobs


def test_completion_of_one_text_in_a_list() -> None:
    assert decode_completion(prompt=["x"], echo=False, best_of=1, suffix=None) == GenerationRequest(
        prompt=TextPrompts(("x",))
    )


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        (["a", "b"], ("a", "b")),
        (["", "b"], ("", "b")),
        ([1, 2], ((1, 2),)),
        ([[1, 2], [3]], ((1, 2), (3,))),
        (None, ("",)),
        ("", ("",)),
    ],
)
def test_prompts_of_every_form(given: Any, prompts: tuple[Any, ...]) -> None:
    assert decode_completion(prompt=given, echo=True).prompt == TextPrompts(prompts, echo=True)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt.0"),
        ({"prompt": 7}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt.1"),
        ({"prompt": [1, "a"]}, "prompt.1"),
        ({"prompt": [1, True]}, "prompt.1"),
        ({"prompt": [1.0]}, "prompt.0"),
        ({"prompt": [1, -1]}, "prompt.1"),
        ({"prompt": [1, 2**31]}, "prompt.1"),
        ({"prompt": [[1], ["a"]]}, "prompt.1.0"),
        ({"prompt": ["a"] * 9}, "prompt"),
        ({"prompt": ["a"] * 3, "n": 3}, "prompt"),
        ({"prompt": ["a"] * 200}, "prompt"),
    ],
)
def test_wrong_prompts_name_their_place(fields: dict[str, Any], param: str) -> None:
    problem = refusal(lambda: decode_completion(**fields))
    assert (problem.kind, problem.param) == (Kind.INVALID, param)


def reply(*, logprobs: TokenLogprobs = (), n: int = 1) -> Reply:
    choices = [Choice(index=index, text=f" a€{index}", logprobs=logprobs, reason="stop") for index in range(n)]
    return Reply(choices=tuple(choices), done=DONE)


def strict(payload: dict[str, Any]) -> str:
    return json.dumps(payload, allow_nan=False)


def test_chat_reply_is_what_the_client_reads() -> None:
    payload = chat.encode(reply(logprobs=LOGPROBS, n=2), head=HEAD)
    parsed = ChatCompletion.model_validate_json(strict(payload), strict=True)
    assert [choice.message.content for choice in parsed.choices] == [" a€0", " a€1"]
    assert parsed.choices[0].finish_reason == "stop"
    assert parsed.id == "chatcmpl-1a"
    assert parsed.model == "tiny"
    assert parsed.system_fingerprint == fingerprint({"id": "tiny"})
    assert parsed.usage is not None
    assert (parsed.usage.prompt_tokens, parsed.usage.completion_tokens, parsed.usage.total_tokens) == (9, 3, 12)
    assert parsed.usage.prompt_tokens_details is not None
    assert parsed.usage.prompt_tokens_details.cached_tokens == 5
    assert parsed.choices[0].logprobs is not None
    content = parsed.choices[0].logprobs.content or []
    assert [entry.token for entry in content] == [" a", "bytes:\\xe2\\x82", "bytes:\\xac"]
    assert bytes(byte for entry in content for byte in entry.bytes or []).decode() == " a€"
    assert content[0].top_logprobs[0].logprob == -9999.0
    assert payload["x_tokens"] == {"prompt": 9, "evaluated": 4, "reused": 5, "generated": 3}
    assert payload["x_timing"] == {"queue_ms": 0.5, "prefill_ms": 1.5, "generate_ms": 2.5}
    assert payload["x_prompt_sha256"] == "ab" * 32
    assert payload["x_identity"] == {"id": "tiny"}


def test_chat_reply_without_logprobs() -> None:
    assert chat.encode(reply(), head=HEAD)["choices"][0]["logprobs"] is None


EVENTS: list[Event] = [
    Delta(index=0, text=" a", logprobs=LOGPROBS[:1]),
    Delta(index=1, text="b"),
    Delta(index=0, text=""),
    Finished(index=1, reason="length", generated_tokens=1),
    Delta(index=0, text="€", logprobs=LOGPROBS[1:]),
    Finished(index=0, reason="stop", generated_tokens=2),
    DONE,
]


def streamed(chunks: chat.ChatChunks | completions.CompletionChunks) -> list[dict[str, Any]]:
    return chunks.start() + [chunk for event in EVENTS for chunk in chunks.event(event)]


def test_chat_stream_is_what_the_client_reads() -> None:
    payloads = streamed(chat.ChatChunks(HEAD, n=2, include_usage=False))
    parsed = [ChatCompletionChunk.model_validate_json(strict(payload), strict=True) for payload in payloads]
    seen = [
        (chunk.choices[0].index, chunk.choices[0].delta.content, chunk.choices[0].finish_reason) for chunk in parsed
    ]
    assert seen == [
        (0, "", None),
        (1, "", None),
        (0, " a", None),
        (1, "b", None),
        (1, None, "length"),
        (0, "€", None),
        (0, None, "stop"),
    ]
    assert [chunk.choices[0].delta.role for chunk in parsed] == ["assistant"] * 2 + [None] * 5
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in parsed}) == 1
    assert [name in payload for payload in payloads for name in ("x_tokens",)] == [False] * 6 + [True]
    assert all("usage" not in payload for payload in payloads)
    logprobs = parsed[2].choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert logprobs.content[0].logprob == -0.25


@pytest.mark.parametrize("codec", [chat, completions])
def test_stream_with_usage_ends_with_it(codec: Any) -> None:
    payloads = streamed(codec.CONTRACT.chunks(HEAD, n=2, include_usage=True))
    assert payloads[-1]["choices"] == []
    assert payloads[-1]["usage"]["total_tokens"] == 12
    assert payloads[-1]["x_prompt_sha256"] == "ab" * 32
    assert all(payload["usage"] is None for payload in payloads[:-1])
    assert all("x_tokens" not in payload for payload in payloads[:-1])


def test_completion_reply_is_what_the_client_reads() -> None:
    payload = completions.encode(reply(logprobs=LOGPROBS), head=HEAD)
    parsed = Completion.model_validate_json(strict(payload))
    assert parsed.object == "text_completion"
    assert parsed.choices[0].text == " a€0"
    logprobs = parsed.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == [" a", "bytes:\\xe2\\x82", "bytes:\\xac"]
    assert logprobs.token_logprobs == [-0.25, -1.0, -2.0]
    assert logprobs.text_offset == [0, 2, 3]
    assert payload["choices"][0]["logprobs"]["top_logprobs"] == [
        {" a": -0.25, "b": -9999.0},
        {"bytes:\\xe2\\x82": -1.0},
        {"bytes:\\xac": -2.0},
    ]


def test_completion_stream_is_what_the_client_reads() -> None:
    payloads = streamed(completions.CompletionChunks(HEAD, n=2, include_usage=False))
    for payload in payloads:
        # The client's type has no null for a reason that is not there yet; its parser does not validate.
        reason = payload["choices"][0]["finish_reason"] or "stop"
        Completion.model_validate_json(
            strict(payload | {"choices": [payload["choices"][0] | {"finish_reason": reason}]})
        )
    assert (
        "".join(payload["choices"][0]["text"] for payload in payloads if payload["choices"][0]["index"] == 0) == " a€"
    )
    offsets = [payload["choices"][0]["logprobs"] for payload in payloads]
    assert [entry["text_offset"] for entry in offsets if entry] == [[0], [2, 3]]
    assert payloads[-1]["choices"][0]["finish_reason"] == "stop"
    assert payloads[-1]["x_tokens"]["prompt"] == 9


def test_an_event_is_one_line() -> None:
    assert sse({"text": "a\n\nb\u2028é"}) == b'data: {"text":"a\\n\\nb\xe2\x80\xa8\xc3\xa9"}\n\n'


def test_an_error_event() -> None:
    event = json.loads(sse_error(Problem(Kind.BUSY, "full", retry_after_ms=5), OPENAI).removeprefix(b"data: "))
    assert event["error"]["message"] == "full"
    assert event["error"]["retry_after_ms"] == 5


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"input": "a"}, EmbeddingRequest(inputs=("a",), dimensions=None, base64=False)),
        (
            {"input": ["a", "b"], "encoding_format": "base64", "dimensions": 3, "user": "u", "model": "m"},
            EmbeddingRequest(inputs=("a", "b"), model="m", dimensions=3, base64=True),
        ),
        ({"input": "a", "encoding_format": "float"}, EmbeddingRequest(inputs=("a",), dimensions=None, base64=False)),
    ],
)
def test_embedding_requests(body: dict[str, Any], expected: EmbeddingRequest) -> None:
    assert embeddings.decode(body, limits=Limits()) == expected


@pytest.mark.parametrize(
    ("body", "kind", "param"),
    [
        ({"input": [1, 2]}, Kind.UNSUPPORTED, "input"),
        ({"input": [[1], [2]]}, Kind.UNSUPPORTED, "input"),
        ({"input": "a", "extra": 1}, Kind.UNSUPPORTED, "extra"),
        ({"input": ""}, Kind.INVALID, "input"),
        ({"input": []}, Kind.INVALID, "input"),
        ({"input": ["a", ""]}, Kind.INVALID, "input"),
        ({"input": ["a"] * 2049}, Kind.INVALID, "input"),
        ({"input": "a", "encoding_format": "int8"}, Kind.INVALID, "encoding_format"),
        ({"input": "a", "dimensions": 0}, Kind.INVALID, "dimensions"),
    ],
)
def test_wrong_embedding_requests(body: dict[str, Any], kind: Kind, param: str) -> None:
    problem = refusal(lambda: embeddings.decode(body, limits=Limits()))
    assert problem.kind is kind
    assert (problem.param or "").split(".")[0] == param


def test_embeddings_are_what_the_client_reads() -> None:
    result = Embeddings(
        vectors=((0.5, -0.5), (1.0, 0.0)), prompt_sha256=("a", "b"), prompt_tokens=4, model="tiny", identity={}
    )
    request = EmbeddingRequest(inputs=("x", "y"), dimensions=None, base64=False)
    parsed = CreateEmbeddingResponse.model_validate_json(strict(embeddings.encode(request, result)), strict=True)
    assert [item.embedding for item in parsed.data] == [[0.5, -0.5], [1.0, 0.0]]
    assert parsed.usage.prompt_tokens == 4
    packed = embeddings.encode(EmbeddingRequest(inputs=("x",), dimensions=None, base64=True), result)
    assert struct.unpack("<2f", base64.b64decode(packed["data"][0]["embedding"])) == (0.5, -0.5)


@pytest.mark.parametrize("codec", [chat, completions, embeddings])
def test_the_request_has_a_schema(codec: Any) -> None:
    schema = codec.Request.model_json_schema()
    assert schema["additionalProperties"] is False
    assert set(schema["required"]) <= {"messages", "prompt", "input"}

"""Every optional field of the published request schemas, at each value that changes nothing, to a real server.

The fields are those of the installed clients' types, so a version that adds one fails here until it is decided on.
Null, and an empty value where the type has one, are always sent; the table adds each field's default. What an empty
value would ask for is in ``ASKS_FOR``, and is refused by name.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from typing import Any, Literal, Union

import httpx
import pytest
import typing_extensions
from openai.types import (
    completion_create_params,
    decision_create_params,
    decision_input_text_param,
    embedding_create_params,
)
from openai.types.chat import (
    chat_completion_assistant_message_param,
    chat_completion_content_part_text_param,
    chat_completion_developer_message_param,
    chat_completion_stream_options_param,
    chat_completion_system_message_param,
    chat_completion_tool_message_param,
    chat_completion_user_message_param,
)
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.shared_params import response_format_json_schema
from pydantic import BaseModel
from typesafe_sdk._schemas import models as systemone

import tiny_models
from live_server import ServerProcess

Body = dict[str, Any]
NOTHING: tuple[Any, ...] = ()

CHAT: Body = {"messages": [{"role": "user", "content": "Name a colour."}], "seed": 1, "max_tokens": 4}
COMPLETION: Body = {"prompt": "Once", "seed": 1, "max_tokens": 4}
EMBEDDING: Body = {"input": "late"}
PREDICATE: Body = {"type": "predicate", "instructions": "Late?"}
CHOICE: Body = {"type": "choice", "instructions": "?", "choices": [{"value": "a"}, {"value": "b"}]}
SCORE: Body = {"type": "score", "instructions": "?", "levels": [{"label": "a"}, {"label": "b"}]}
DECISION: Body = {"model": "default", "input": "The parcel is late.", "questions": [PREDICATE, CHOICE, SCORE]}
CALL: Body = {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "1"}
CALLED: Body = {"type": "function_call_output", "output": "x", "call_id": "1"}
CUSTOM: Body = {"type": "custom_tool_call", "name": "f", "input": "x", "call_id": "1"}
CUSTOM_CALLED: Body = {"type": "custom_tool_call_output", "output": "x", "call_id": "1"}
NOUL: Body = {"type": "noul"}
SYSTEM_ONE: Body = {
    "state": "The parcel is late.",
    "questions": {
        "n": NOUL,
        "c": {"type": "choice", "criteria": {"a": None, "b": None}},
        "s": {"type": "score", "criteria": ["a", "b"]},
    },
}

PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "embeddings": "/v1/embeddings",
    "decisions": "/v1/decisions",
    "systemone": "/v1/systemone",
}


def item(body: Body) -> Body:
    """A decision on one input item, behind the call that it may answer."""
    calls = {"function_call_output": [CALL], "custom_tool_call_output": [CUSTOM]}
    return {**DECISION, "input": [*calls.get(body.get("type", ""), []), body]}


def chat_of(message: Body) -> Body:
    return {**CHAT, "messages": [{"role": "user", "content": "Hi"}, message, *CHAT["messages"]]}


# (contract, published type): a body with the holder of the fields in place, and every optional field's neutral values
# besides null and the empty one.
Wrap = typing.Callable[[Body], Body]
HOLDERS: dict[str, tuple[str, Any, Body, Wrap, dict[str, tuple[Any, ...]]]] = {
    "chat": (
        "chat",
        chat_create_params.CompletionCreateParamsNonStreaming,
        CHAT,
        lambda body: body,
        {
            "audio": NOTHING,
            "frequency_penalty": (0, 0.0),
            "function_call": ("none", "auto"),
            "functions": NOTHING,
            "logit_bias": NOTHING,
            "logprobs": (False,),
            "max_completion_tokens": NOTHING,
            "max_tokens": NOTHING,
            "metadata": NOTHING,
            "modalities": (["text"],),
            "moderation": NOTHING,
            "n": (1,),
            "parallel_tool_calls": (True, False),
            "prediction": NOTHING,
            "presence_penalty": (0, 0.0),
            "prompt_cache_key": ("tenant-7",),
            "prompt_cache_options": ({"mode": "implicit"}, {"ttl": "30m"}),
            "prompt_cache_retention": ("in_memory", "24h"),
            "reasoning_effort": ("none",),
            "response_format": ({"type": "text"},),
            "safety_identifier": ("u" * 128,),
            "seed": (-(2**63), -1, 0, 2**63 - 1),
            "service_tier": ("auto", "default"),
            "stop": ([""],),
            "store": (False,),
            "stream": (False,),
            "stream_options": ({"include_usage": False, "include_obfuscation": False},),
            "temperature": (1, 1.0),
            "tool_choice": ("none", "auto"),
            "tools": NOTHING,
            "top_logprobs": (0,),
            "top_p": (1, 1.0),
            "user": ("someone",),
            "verbosity": ("medium",),
            "web_search_options": NOTHING,
        },
    ),
    "chat stream options": (
        "chat",
        chat_completion_stream_options_param.ChatCompletionStreamOptionsParam,
        {},
        lambda options: {**CHAT, "stream_options": options},
        {"include_obfuscation": (False,), "include_usage": (False,)},
    ),
    "chat cache options": (
        "chat",
        chat_create_params.PromptCacheOptions,
        {},
        lambda options: {**CHAT, "prompt_cache_options": options},
        {"mode": ("implicit",), "ttl": ("30m",)},
    ),
    "chat json schema": (
        "chat",
        response_format_json_schema.JSONSchema,
        {"name": "x", "schema": {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"]}},
        lambda schema: {
            **CHAT,
            "max_tokens": 200,
            "response_format": {"type": "json_schema", "json_schema": schema},
        },
        {"description": ("what it is",), "schema": NOTHING, "strict": (True, False)},
    ),
    "chat text part": (
        "chat",
        chat_completion_content_part_text_param.ChatCompletionContentPartTextParam,
        {"type": "text", "text": "Hi"},
        lambda part: chat_of({"role": "user", "content": [part]}),
        {"prompt_cache_breakpoint": ({"mode": "explicit"}, {"mode": "explicit", "ttl": "12h"})},
    ),
    "system message": (
        "chat",
        chat_completion_system_message_param.ChatCompletionSystemMessageParam,
        {"role": "system", "content": "Be brief."},
        lambda message: {**CHAT, "messages": [message, *CHAT["messages"]]},
        {"name": ("house",)},
    ),
    "developer message": (
        "chat",
        chat_completion_developer_message_param.ChatCompletionDeveloperMessageParam,
        {"role": "developer", "content": "Be brief."},
        lambda message: {**CHAT, "messages": [message, *CHAT["messages"]]},
        {"name": ("house",)},
    ),
    "user message": (
        "chat",
        chat_completion_user_message_param.ChatCompletionUserMessageParam,
        {"role": "user", "content": "Hello"},
        lambda message: {**CHAT, "messages": [message]},
        {"name": ("Ann",)},
    ),
    "assistant message": (
        "chat",
        chat_completion_assistant_message_param.ChatCompletionAssistantMessageParam,
        {"role": "assistant", "content": ""},
        chat_of,
        {
            "audio": NOTHING,
            "content": NOTHING,
            "function_call": NOTHING,
            "name": ("Bob",),
            "refusal": NOTHING,
            "tool_calls": NOTHING,
        },
    ),
    "tool message": (
        "chat",
        chat_completion_tool_message_param.ChatCompletionToolMessageParam,
        {"role": "tool", "content": "x", "tool_call_id": "1"},
        chat_of,
        {},
    ),
    "completions": (
        "completions",
        completion_create_params.CompletionCreateParamsNonStreaming,
        COMPLETION,
        lambda body: body,
        {
            "best_of": (1,),
            "echo": (False,),
            "frequency_penalty": (0,),
            "logit_bias": NOTHING,
            "logprobs": NOTHING,
            "max_tokens": NOTHING,
            "n": (1,),
            "presence_penalty": (0,),
            "seed": (-(2**63), -1, 2**63 - 1),
            "stop": ([""],),
            "stream": (False,),
            "stream_options": ({"include_obfuscation": False},),
            "suffix": NOTHING,
            "temperature": (1,),
            "top_p": (1,),
            "user": ("someone",),
        },
    ),
    "embeddings": (
        "embeddings",
        embedding_create_params.EmbeddingCreateParams,
        EMBEDDING,
        lambda body: body,
        {"dimensions": NOTHING, "encoding_format": ("float",), "user": ("someone",)},
    ),
    "decisions": (
        "decisions",
        decision_create_params.DecisionCreateParams,
        DECISION,
        lambda body: body,
        {
            "prompt_cache_key": ("tenant-7",),
            "prompt_cache_options": ({"mode": "implicit", "ttl": "30m"},),
            "safety_identifier": ("u" * 64,),
        },
    ),
    "decisions cache options": (
        "decisions",
        decision_create_params.PromptCacheOptions,
        {},
        lambda options: {**DECISION, "prompt_cache_options": options},
        {"mode": ("implicit",), "ttl": ("30m",)},
    ),
    "decisions text part": (
        "decisions",
        decision_input_text_param.DecisionInputTextParam,
        {"type": "input_text", "text": "x"},
        lambda part: item({"role": "user", "content": [part]}),
        {"prompt_cache_breakpoint": ({"mode": "explicit"},)},
    ),
    **{
        f"decisions {role} message": (
            "decisions",
            published,
            {"role": role, "content": "x"},
            item,
            {"type": ("message",), **({"phase": NOTHING} if role == "assistant" else {})},
        )
        for role, published in {
            "user": decision_create_params.InputUnionMember1DecisionInputUserMessage,
            "developer": decision_create_params.InputUnionMember1DecisionInputDeveloperMessage,
            "system": decision_create_params.InputUnionMember1DecisionInputSystemMessage,
            "assistant": decision_create_params.InputUnionMember1DecisionInputAssistantMessage,
        }.items()
    },
    **{
        f"decisions {body['type']}": (
            "decisions",
            published,
            body,
            item,
            {"id": ("i",), "status": NOTHING, **({"namespace": NOTHING} if "name" in body else {})},
        )
        for published, body in (
            (decision_create_params.InputUnionMember1DecisionInputFunctionCall, CALL),
            (decision_create_params.InputUnionMember1DecisionInputFunctionCallOutput, CALLED),
            (decision_create_params.InputUnionMember1DecisionInputCustomToolCall, CUSTOM),
            (decision_create_params.InputUnionMember1DecisionInputCustomToolCallOutput, CUSTOM_CALLED),
        )
    },
    **{
        f"decisions {body['type']}": (
            "decisions",
            published,
            body,
            lambda question: {**DECISION, "questions": [question]},
            {"name": ("n",)},
        )
        for published, body in (
            (decision_create_params.QuestionQuestionParamPredicate, PREDICATE),
            (decision_create_params.QuestionQuestionParamChoice, CHOICE),
            (decision_create_params.QuestionQuestionParamScore, SCORE),
        )
    },
    "decisions choice's choice": (
        "decisions",
        decision_create_params.QuestionQuestionParamChoiceChoice,
        {"value": "c"},
        lambda choice: {**DECISION, "questions": [{**CHOICE, "choices": [*CHOICE["choices"], choice]}]},
        {"description": NOTHING},
    ),
    "decisions score's level": (
        "decisions",
        decision_create_params.QuestionQuestionParamScoreLevel,
        {"label": "c"},
        lambda level: {**DECISION, "questions": [{**SCORE, "levels": [*SCORE["levels"], level]}]},
        {"description": NOTHING},
    ),
    "system one": (
        "systemone",
        systemone.SystemOneRequest,
        SYSTEM_ONE,
        lambda body: body,
        {"assets": NOTHING},
    ),
    "system one noul": (
        "systemone",
        systemone.NoulQuestion,
        NOUL,
        lambda question: {**SYSTEM_ONE, "questions": {"q": question}},
        {"criteria": NOTHING, "instructions": NOTHING},
    ),
    "system one noul's criteria": (
        "systemone",
        systemone.NoulCriteria,
        {},
        lambda criteria: {**SYSTEM_ONE, "questions": {"q": {**NOUL, "criteria": criteria}}},
        {"true": NOTHING, "false": NOTHING},
    ),
    "system one choice": (
        "systemone",
        systemone.ChoiceQuestion,
        SYSTEM_ONE["questions"]["c"],
        lambda question: {**SYSTEM_ONE, "questions": {"q": question}},
        {"instructions": NOTHING},
    ),
    "system one score": (
        "systemone",
        systemone.ScoreQuestion,
        SYSTEM_ONE["questions"]["s"],
        lambda question: {**SYSTEM_ONE, "questions": {"q": question}},
        {"instructions": NOTHING},
    ),
}

# Empty values, and nulls, that mean something or nothing at all: refused, with the field's name.
ASKS_FOR = {
    ("chat", "web_search_options", "{}"): "switches the search on",
    ("chat json schema", "schema", "None"): "says nothing of what is wanted",
}
# Empty values that are text like any other, which the model reads: the answer may differ.
IS_READ = {("decisions function_call", "namespace"), ("decisions custom_tool_call", "namespace")} | {
    (holder, field)
    for holder in ("system one noul", "system one choice", "system one score", "system one noul's criteria")
    for field in ("instructions", "true", "false")
}
# Fields whose default makes the answer another one: a random seed, another length.
DIFFERS = {"seed", "max_tokens"}


def optional_fields(published: Any) -> dict[str, Any]:
    """Types by name."""
    if isinstance(published, type) and issubclass(published, BaseModel):
        return {name: field.annotation for name, field in published.model_fields.items() if not field.is_required()}
    hints = typing_extensions.get_type_hints(published, include_extras=True)
    return {
        name: hint
        for name, hint in hints.items()
        if typing_extensions.get_origin(hint) is not typing_extensions.Required
    }


def parts_of(hint: Any) -> Iterator[Any]:
    """The members of a union, of unions in it, and the type itself."""
    if typing.get_origin(hint) in (Union, types.UnionType):
        for part in typing.get_args(hint):
            yield from parts_of(part)
    else:
        yield hint


def empty_values(hint: Any) -> Iterator[Any]:
    """The empty text, array and object, where the type has them."""
    for part in parts_of(hint):
        origin = typing.get_origin(part) or part
        if origin is str:
            yield ""
        elif origin is Literal:
            continue
        elif typing.is_typeddict(part) or typing_extensions.is_typeddict(part):
            if len(optional_fields(part)) == len(typing_extensions.get_type_hints(part)):
                yield {}
        elif isinstance(part, type) and issubclass(part, BaseModel):
            if not any(field.is_required() for field in part.model_fields.values()):
                yield {}
        elif isinstance(origin, type) and issubclass(origin, dict | typing.Mapping):  # type: ignore[arg-type]
            yield {}
        elif isinstance(origin, type) and hasattr(origin, "__iter__"):
            yield []


@pytest.mark.parametrize("holder", HOLDERS)
def test_every_published_field_is_decided_on(holder: str) -> None:
    _, published, _, _, fields = HOLDERS[holder]
    assert set(fields) == set(optional_fields(published))


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    model = tiny_models.write("llama-pooling", tmp_path_factory.mktemp("published") / "tiny.gguf")
    with (
        ServerProcess(model=model, threads=1, default_max_tokens=4, deadline_s=300).running() as process,
        httpx.Client(base_url=process.url, timeout=120) as client,
    ):
        yield client


def essence(contract: str, answer: Body, *, whole: bool) -> Any:
    """What may not differ: the text or the numbers, and the exact prompt."""
    if contract in ("chat", "completions"):
        return answer["x_prompt_sha256"], answer["choices"] if whole else len(answer["choices"])
    if contract == "embeddings":
        return [(each["embedding"], each["x_prompt_sha256"]) for each in answer["data"]]
    answers = answer["answers"] if contract == "decisions" else list(answer["answers"].values())
    return [(each["x_logits"], each["x_prompt_sha256"]) if whole else len(each["x_logits"]) for each in answers]


@pytest.mark.parametrize("holder", HOLDERS)
def test_values_that_change_nothing_are_taken(client: httpx.Client, holder: str) -> None:
    contract, published, base, wrap, fields = HOLDERS[holder]
    hints = optional_fields(published)

    def ask(body: Body) -> httpx.Response:
        return client.post(PATHS[contract], json=wrap(body))

    for name, defaults in fields.items():
        without = {key: value for key, value in base.items() if key != name or name == "schema"}
        plain = ask(without)
        assert plain.status_code == 200, plain.text
        for value in (None, *empty_values(hints[name]), *defaults):
            response = ask({**base, name: value})
            if (holder, name, repr(value)) in ASKS_FOR:
                assert response.status_code == 400, (name, value, response.text)
                assert name in response.json()["error"]["param"]
                continue
            assert response.status_code == 200, (name, value, response.text)
            whole = name not in DIFFERS and not (value not in (None, *defaults) and (holder, name) in IS_READ)
            if holder == "chat json schema" and name == "schema":
                continue
            assert essence(contract, response.json(), whole=whole) == essence(contract, plain.json(), whole=whole), (
                name,
                value,
            )


OTHER_SERVERS: Body = {
    "repeat_penalty": 1,
    "repetition_penalty": 1.0,
    "repeat_last_n": 64,
    "typical_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "top_n_sigma": -1.0,
    "dynatemp_range": 0.0,
    "dynatemp_exponent": 1.0,
    "mirostat": 0,
    "mirostat_tau": 5.0,
    "mirostat_eta": 0.1,
    "xtc_probability": 0.0,
    "xtc_threshold": 0.1,
    "dry_multiplier": 0.0,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": -1,
    "dry_sequence_breakers": ["\n", ":"],
    "grammar": "",
    "json_schema": None,
    "cache_prompt": True,
    "id_slot": -1,
    "n_keep": 0,
    "n_probs": 0,
    "min_keep": 0,
    "ignore_eos": False,
    "lora": [],
    "timings_per_token": False,
    "length_penalty": 1.0,
    "use_beam_search": False,
    "min_tokens": 0,
    "stop_token_ids": [],
    "bad_words": [],
    "include_stop_str_in_output": False,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "truncate_prompt_tokens": None,
    "prompt_logprobs": None,
    "guided_json": None,
    "structured_outputs": None,
    "priority": 0,
    "return_tokens_as_token_ids": None,
    "allowed_token_ids": None,
    "logits_processors": None,
    "kv_transfer_params": None,
}
CHAT_OF_OTHER_SERVERS: Body = {
    "add_generation_prompt": True,
    "continue_final_message": False,
    "echo": False,
    "documents": None,
    "chat_template": None,
    "chat_template_kwargs": {"enable_thinking": False},
    "reasoning_format": "none",
    "parallel_tool_calls": True,
}


@pytest.mark.parametrize(
    ("contract", "base", "extra"),
    [("chat", CHAT, OTHER_SERVERS | CHAT_OF_OTHER_SERVERS), ("completions", COMPLETION, OTHER_SERVERS)],
)
def test_the_defaults_of_other_servers_change_nothing(
    client: httpx.Client, contract: str, base: Body, extra: Body
) -> None:
    """What clients of llama.cpp's server and of vLLM send, all at once."""
    plain, full = (client.post(PATHS[contract], json=body) for body in (base, base | extra))
    assert full.status_code == 200, full.text
    assert essence(contract, full.json(), whole=True) == essence(contract, plain.json(), whole=True)


@pytest.mark.parametrize(
    ("field", "value"),
    [("repeat_penalty", 1.1), ("mirostat", 2), ("cache_prompt", "yes"), ("grammar", "root ::= x"), ("tools", [{}]),
     ("tool_choice", "required"), ("reasoning_effort", "high"), ("service_tier", "flex"), ("modalities", ["audio"])],
)  # fmt: skip
def test_values_that_would_change_something_are_refused_by_name(client: httpx.Client, field: str, value: Any) -> None:
    response = client.post("/v1/chat/completions", json={**CHAT, field: value})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == field


@pytest.mark.parametrize(
    "message",
    [
        {"content": None},
        {},
        {"content": "Blue.", "reasoning_content": "A colour is wanted.", "annotations": [], "refusal": None},
        {"content": "Blue.", "annotations": [{"type": "url_citation"}], "tool_calls": None, "function_call": None},
        {"content": "Blue.", "audio": None, "tool_calls": [], "name": "Bob", "reasoning": None},
    ],
)
def test_an_answer_can_be_sent_back_as_history(client: httpx.Client, message: Body) -> None:
    response = client.post("/v1/chat/completions", json=chat_of({"role": "assistant", **message}))
    assert response.status_code == 200, response.text
    same = client.post(
        "/v1/chat/completions", json=chat_of({"role": "assistant", "content": message.get("content") or ""})
    )
    assert essence("chat", response.json(), whole=True) == essence("chat", same.json(), whole=True)

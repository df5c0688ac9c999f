"""OpenAI chat completions: ``POST /v1/chat/completions``.

Text parts of a message are joined as they are, nothing between them. ``developer`` messages are system messages to the
model. Names, ``tool_call_id``, ``annotations`` and the reasoning of earlier turns are accepted and not shown to the
model. A seed, and a temperature of 0, give the same answer to the same request. What does not change an answer is
accepted: identifiers, hints for caches, and every other server's field at the value that asks for nothing.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StrictInt, StrictStr, TypeAdapter

from steelyard_runtime.contracts.contract import GenerationContract, Shape
from steelyard_runtime.contracts.error_formats import OPENAI
from steelyard_runtime.contracts.limits import Limits
from steelyard_runtime.contracts.neutral import IgnoredFlag, IgnoredText, Neutral
from steelyard_runtime.contracts.openai_text import (
    LIST,
    MAX_INT32,
    TEXT,
    TEXT_OR_LIST,
    UNIONS,
    Chunks,
    FinishReason,
    SamplingFields,
    WholeAnswer,
    finite,
    opening,
    parse,
    provenance,
    sampling,
    token_text,
    unsupported,
    usage,
)
from steelyard_runtime.contracts.validation import OnlyFalse, Path, Strict, Texts, invalid, quote
from steelyard_runtime.contracts.wire import Count, Wire
from steelyard_runtime.engine.interface import TokenLogprob
from steelyard_runtime.generation import GenerationRequest, Head, JsonOutput, Message, Reply, TokenLogprobs

_NO_TOOLS = "this server calls no tools"
_TEXT_ONLY = "this server reads and writes text only"


class CacheBreakpoint(Strict):
    """A hint that a reusable prefix ends here."""

    mode: Literal["explicit"]
    ttl: Literal["30m", "12h"] | None = None


class CacheOptions(Strict):
    """Hints for the prefix cache; they change no answer."""

    mode: Annotated[Any, Neutral("implicit", because="prefixes are reused at boundaries of the server's own")] = None
    ttl: Literal["30m"] | None = None


class TextPart(Strict):
    """A part of a message's content."""

    type: Literal["text"]
    text: StrictStr
    prompt_cache_breakpoint: CacheBreakpoint | None = None


_Parts = Annotated[list[TextPart], Field(fail_fast=True), LIST]
_SomeParts = Annotated[list[TextPart], Field(min_length=1, fail_fast=True), LIST]
Content = Annotated[Annotated[StrictStr, TEXT] | _SomeParts, TEXT_OR_LIST]


class PromptMessage(Strict):
    """A message of the application or its user."""

    role: Literal["system", "developer", "user"]
    content: Content
    name: IgnoredText = None


class AssistantMessage(Strict):
    """An earlier answer of the model; without content, a turn in which it said nothing."""

    role: Literal["assistant"]
    content: Annotated[Annotated[StrictStr, TEXT] | _Parts, TEXT_OR_LIST] | None = None
    name: IgnoredText = None
    reasoning_content: IgnoredText = None
    reasoning: IgnoredText = None
    annotations: Annotated[list[dict[str, Any]], Field(fail_fast=True)] | None = Field(
        None, description="Accepted, not shown to the model."
    )
    refusal: Annotated[Any, Neutral("", because="send the words as content")] = None
    tool_calls: Annotated[Any, Neutral([], because=_NO_TOOLS)] = None
    function_call: Annotated[Any, Neutral(because=_NO_TOOLS)] = None
    audio: Annotated[Any, Neutral(because=_TEXT_ONLY)] = None


class ToolMessage(Strict):
    """The result of a tool."""

    role: Literal["tool"]
    content: Content
    tool_call_id: StrictStr | None = None
    name: IgnoredText = None


class TextFormat(Strict):
    """Any text."""

    type: Literal["text"]


class JsonObjectFormat(Strict):
    """Any JSON object."""

    type: Literal["json_object"]


class JsonSchema(Strict):
    """A JSON schema with its name. It is always enforced, whatever ``strict`` says; what could not be is refused."""

    name: Annotated[StrictStr, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: StrictStr | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class JsonSchemaFormat(Strict):
    """JSON of a schema."""

    type: Literal["json_schema"]
    json_schema: JsonSchema


class Request(SamplingFields):
    """The body of a chat completion."""

    messages: Annotated[
        list[Annotated[PromptMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]],
        Field(min_length=1, fail_fast=True),
    ]
    max_completion_tokens: Annotated[StrictInt, Field(ge=1, le=MAX_INT32)] | None = Field(
        None, description="The newer name of max_tokens; when both are given they must be equal."
    )
    logprobs: bool | None = Field(None, description="Report each generated token's log probability.")
    top_logprobs: Annotated[StrictInt, Field(ge=0, le=20)] | None = Field(
        None, description="How many likeliest tokens to report at each place; only with logprobs."
    )
    response_format: Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")] | None = (
        Field(None, description="Constrains the answer to JSON by a grammar.")
    )
    metadata: Texts | None = Field(None, description="Accepted, not stored, not shown to the model.")
    store: OnlyFalse | None = Field(None, description="Nothing is stored; true is refused.")

    prompt_cache_key: IgnoredText = None
    prompt_cache_options: CacheOptions | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = Field(
        None, description="A hint. Prefixes are kept in memory only, as long as there is room."
    )
    safety_identifier: IgnoredText = None
    parallel_tool_calls: IgnoredFlag = None

    audio: Annotated[Any, Neutral(because=_TEXT_ONLY)] = None
    function_call: Annotated[Any, Neutral("none", "auto", because=_NO_TOOLS)] = None
    functions: Annotated[Any, Neutral([], because=_NO_TOOLS)] = None
    modalities: Annotated[Any, Neutral([], ["text"], because=_TEXT_ONLY)] = None
    moderation: Annotated[Any, Neutral(because="nothing is moderated here")] = None
    prediction: Annotated[Any, Neutral(because="predicted outputs are not supported")] = None
    reasoning_effort: Annotated[Any, Neutral("none", because="thinking is off")] = None
    service_tier: Annotated[Any, Neutral("auto", "default", because="callers take turns")] = None
    tool_choice: Annotated[Any, Neutral("none", "auto", because=_NO_TOOLS)] = None
    tools: Annotated[Any, Neutral([], because=_NO_TOOLS)] = None
    verbosity: Annotated[Any, Neutral("medium", because="ask for it in a message")] = None
    web_search_options: Annotated[Any, Neutral(because="nothing is searched")] = None

    # Of llama.cpp's server and vLLM, for chats only.
    echo: Annotated[Any, Neutral(False, because="messages are not repeated")] = None
    add_generation_prompt: Annotated[Any, Neutral(True, because="an answer is a turn of its own")] = None
    continue_final_message: Annotated[Any, Neutral(False, because="an answer is a turn of its own")] = None
    add_special_tokens: Annotated[Any, Neutral(False, because="the template has them")] = None
    documents: Annotated[Any, Neutral([], because="put them into a message")] = None
    chat_template: Annotated[Any, Neutral(because="the model's own is used")] = None
    chat_template_kwargs: Annotated[Any, Neutral({}, {"enable_thinking": False}, because="thinking is off")] = None
    mm_processor_kwargs: Annotated[Any, Neutral({}, because=_TEXT_ONLY)] = None
    reasoning_format: Annotated[Any, Neutral("none", because="thinking is off")] = None
    include_reasoning: IgnoredFlag = None
    parse_tool_calls: IgnoredFlag = None


_UNIONS: tuple[Path, ...] = (*UNIONS, ("messages", ...), ("messages", ..., "content"), ("response_format",))


def decode(body: Any, limits: Limits) -> GenerationRequest:
    """The request in a body.

    Args:
        body: Any JSON value.
        limits: How much a request may ask.

    Raises:
        Problem: UNSUPPORTED for fields, roles and parts that this server does not have, INVALID for wrong values.
    """
    if isinstance(body, dict):
        if body.get("store") is True:
            raise unsupported(("store",), "nothing is stored here; leave it out or send false")
        _refuse_parts(body.get("messages"))
    request = parse(body, Request, limits=limits, unions=_UNIONS)
    shared = sampling(request, limits=limits)
    limit, param = _limit(request)
    return GenerationRequest(
        prompt=tuple(Message(message.role, _text(message.content)) for message in request.messages),
        max_tokens_param=param,
        top_logprobs=_top_logprobs(request),
        json_output=_json_output(request),
        **shared | {"max_tokens": limit},
    )


class Token(Wire):
    """A token with its log probability; its bytes may be a part of a character."""

    token: str
    logprob: float
    bytes: list[Count]
    x_token_id: Count


class ChosenToken(Token):
    """The token at one place of the answer, and the likeliest ones there."""

    top_logprobs: list[Token]


class Logprobs(Wire):
    """The tokens of an answer."""

    content: list[ChosenToken]
    refusal: None


class WholeMessage(Wire):
    """The answer of the model."""

    role: Literal["assistant"]
    content: str
    refusal: None


class WholeChoice(Wire):
    """One answer."""

    index: Count
    message: WholeMessage
    logprobs: Logprobs | None
    finish_reason: FinishReason | None


class Response(WholeAnswer):
    """A whole answer."""

    object: Literal["chat.completion"]
    choices: list[WholeChoice]


def encode(reply: Reply, head: Head) -> Response:
    """The body of a whole answer."""
    return {
        "id": f"chatcmpl-{head.id}",
        "object": "chat.completion",
        **opening(head),
        "choices": [
            {
                "index": choice.index,
                "message": {"role": "assistant", "content": choice.text, "refusal": None},
                "logprobs": _logprobs(choice.logprobs),
                "finish_reason": choice.reason,
            }
            for choice in reply.choices
        ],
        "usage": usage(reply.done),
        **provenance(head, reply.done),
    }


class ChatChunks(Chunks):
    """The bodies of a streamed chat."""

    prefix = "chatcmpl"
    kind = "chat.completion.chunk"

    def start(self) -> list[dict[str, Any]]:
        """The role of each choice."""
        delta = {"role": "assistant", "content": "", "refusal": None}
        return [
            self._chunk({"index": index, "delta": delta, "logprobs": None, "finish_reason": None})
            for index in range(self._n)
        ]

    def _choice(self, index: int, text: str, tokens: TokenLogprobs, reason: FinishReason | None) -> dict[str, Any]:
        delta = {"content": text} if reason is None else {}
        return {"index": index, "delta": delta, "logprobs": _logprobs(tokens), "finish_reason": reason}


def _refuse_parts(messages: Any) -> None:
    """Refuse what OpenAI's messages may hold and ours may not, by its place."""
    if not isinstance(messages, list):
        return
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            continue
        place = ("messages", index)
        if message.get("role") == "function":
            raise unsupported((*place, "role"), "'function' messages are not supported; use the role 'tool'")
        content = message.get("content")
        for position, part in enumerate(content if isinstance(content, list) else ()):
            kind = part.get("type") if isinstance(part, dict) else None
            if isinstance(kind, str) and kind != "text":
                raise unsupported(
                    (*place, "content", position), f"is a part of type {quote(kind)}; this server reads text only"
                )


def _text(content: str | list[TextPart] | None) -> str:
    if content is None:
        return ""
    return content if isinstance(content, str) else "".join(part.text for part in content)


def _limit(request: Request) -> tuple[int | None, str]:
    old, new = request.max_tokens, request.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise invalid(
            ("max_completion_tokens",), f"is {new} and max_tokens is {old}; give one of them, or the same number"
        )
    return (old, "max_tokens") if new is None else (new, "max_completion_tokens")


def _top_logprobs(request: Request) -> int | None:
    if request.logprobs:
        return request.top_logprobs or 0
    if request.top_logprobs:
        raise invalid(("top_logprobs",), "is only allowed with logprobs: true")
    return None


def _json_output(request: Request) -> JsonOutput | None:
    match request.response_format:
        case JsonObjectFormat():
            return JsonOutput(schema=None)
        case JsonSchemaFormat(json_schema=named):
            return JsonOutput(schema=named.schema_)
    return None


def _logprobs(tokens: TokenLogprobs) -> Logprobs | None:
    if not tokens:
        return None
    content: list[ChosenToken] = [
        {**_token(chosen), "top_logprobs": [_token(other) for other in others]} for chosen, others in tokens
    ]
    return {"content": content, "refusal": None}


def _token(token: TokenLogprob) -> Token:
    return {
        "token": token_text(token),
        "logprob": finite(token.logprob),
        "bytes": list(token.bytes),
        "x_token_id": token.token_id,
    }


CONTRACT = GenerationContract(
    name="openai_chat",
    prefix="Chat",
    paths={
        "/v1/chat/completions": "Chat",
        "/openai/v1/chat/completions": "Chat, at the path of a SageMaker endpoint",
    },
    shape=Shape(title="chat", example="{'messages': [...]}", fields=("messages",)),
    request=Request,
    answer=TypeAdapter(Response),
    errors=OPENAI,
    decode=decode,
    encode=encode,
    chunks=ChatChunks,
)

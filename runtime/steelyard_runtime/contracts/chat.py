"""OpenAI chat completions: ``POST /v1/chat/completions``.

Text parts of a message are joined as they are, nothing between them. ``developer`` messages are system messages to the
model. Names, ``tool_call_id``, ``annotations`` and the reasoning of earlier turns are accepted and not shown to the
model. A seed, and a temperature of 0, give the same answer to the same request. What does not change an answer is
accepted: identifiers, hints for caches, and every other server's field at the value that asks for nothing.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StrictInt, StrictStr

from steelyard_runtime.contracts.neutral import IgnoredFlag, IgnoredText, Neutral
from steelyard_runtime.contracts.openai_text import (
    LIST,
    MAX_INT32,
    TEXT,
    TEXT_OR_LIST,
    UNIONS,
    SamplingFields,
    finite,
    opening,
    parse,
    provenance,
    sampling,
    token_text,
    unsupported,
    usage,
)
from steelyard_runtime.contracts.validation import OnlyFalse, Path, Strict, invalid, quote
from steelyard_runtime.engine.interface import Delta, Done, Event, Finished, TokenLogprob
from steelyard_runtime.errors import openai_error
from steelyard_runtime.generation import GenerationRequest, Head, JsonOutput, Message, Reply, TokenLogprobs

NAME = "openai_chat"

error = openai_error


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
    """What the application or its user says."""

    role: Literal["system", "developer", "user"]
    content: Content
    name: IgnoredText = None


class AssistantMessage(Strict):
    """What the model said earlier; without content, a turn in which it said nothing."""

    role: Literal["assistant"]
    content: Annotated[Annotated[StrictStr, TEXT] | _Parts, TEXT_OR_LIST] | None = None
    name: IgnoredText = None
    reasoning_content: IgnoredText = None
    reasoning: IgnoredText = None
    annotations: list[dict[str, Any]] | None = Field(None, description="Accepted, not shown to the model.")
    refusal: Annotated[Any, Neutral("", because="send the words as content")] = None
    tool_calls: Annotated[Any, Neutral([], because=_NO_TOOLS)] = None
    function_call: Annotated[Any, Neutral(because=_NO_TOOLS)] = None
    audio: Annotated[Any, Neutral(because=_TEXT_ONLY)] = None


class ToolMessage(Strict):
    """What a tool returned."""

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
    metadata: dict[StrictStr, StrictStr] | None = Field(
        None, description="Accepted, not stored, not shown to the model."
    )
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


def decode(body: Any, *, max_choices: int) -> GenerationRequest:
    """The request in a body.

    Args:
        body: Any JSON value.
        max_choices: The server's largest ``n``.

    Raises:
        Problem: UNSUPPORTED for fields, roles and parts that this server does not have, INVALID for wrong values.
    """
    if isinstance(body, dict):
        if body.get("store") is True:
            raise unsupported(("store",), "nothing is stored here; leave it out or send false")
        _refuse_parts(body.get("messages"))
    request = parse(body, Request, unions=_UNIONS)
    shared = sampling(request, max_choices=max_choices)
    limit, param = _limit(request)
    return GenerationRequest(
        prompt=tuple(Message(message.role, _text(message.content)) for message in request.messages),
        max_tokens_param=param,
        top_logprobs=_top_logprobs(request),
        json_output=_json_output(request),
        **shared | {"max_tokens": limit},
    )


def encode(reply: Reply, *, head: Head) -> dict[str, Any]:
    """The body of a whole answer."""
    choices = [
        {
            "index": choice.index,
            "message": {"role": "assistant", "content": choice.text, "refusal": None},
            "logprobs": _logprobs(choice.logprobs),
            "finish_reason": choice.reason,
        }
        for choice in reply.choices
    ]
    return (
        opening(head, prefix="chatcmpl", kind="chat.completion")
        | {"choices": choices, "usage": usage(reply.done)}
        | provenance(head, reply.done)
    )


class Chunks:
    """The bodies of a streamed answer, one event after the other.

    The last chunk of a stream carries what a whole answer carries beside its choices: the ``x_`` fields, and, with
    ``include_usage``, the usage in a chunk of its own without choices.

    Args:
        head: Of the answer.
        n: How many choices.
        include_usage: The caller's wish.
    """

    def __init__(self, head: Head, *, n: int, include_usage: bool) -> None:
        self._head = head
        self._n = n
        self._include_usage = include_usage
        self._running = n
        self._last: dict[str, Any] | None = None

    def start(self) -> list[dict[str, Any]]:
        """The chunks before any text: the role of each choice."""
        delta = {"role": "assistant", "content": "", "refusal": None}
        return [self._chunk(index, dict(delta)) for index in range(self._n)]

    def event(self, event: Event) -> list[dict[str, Any]]:
        """The chunks for one event of the engine; often one, sometimes none."""
        match event:
            case Delta(index=index, text=text, logprobs=logprobs):
                if not text and not logprobs:
                    return []
                return [self._chunk(index, {"content": text}, logprobs=_logprobs(logprobs))]
            case Finished(index=index, reason=reason):
                self._running -= 1
                chunk = self._chunk(index, {}, reason=reason)
                if self._running:
                    return [chunk]
                self._last = chunk  # held back for what Done brings
                return []
            case Done():
                return self._end(event)
        return []

    def _end(self, done: Done) -> list[dict[str, Any]]:
        chunks = [] if self._last is None else [self._last]
        if self._include_usage:
            chunks.append(self._opening() | {"choices": [], "usage": usage(done)})
        return [*chunks[:-1], chunks[-1] | provenance(self._head, done)] if chunks else []

    def _chunk(
        self, index: int, delta: dict[str, Any], *, logprobs: dict[str, Any] | None = None, reason: str | None = None
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return self._opening() | {"choices": [choice]} | ({"usage": None} if self._include_usage else {})

    def _opening(self) -> dict[str, Any]:
        return opening(self._head, prefix="chatcmpl", kind="chat.completion.chunk")


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


def _logprobs(tokens: TokenLogprobs) -> dict[str, Any] | None:
    if not tokens:
        return None
    content = [_entry(chosen) | {"top_logprobs": [_entry(other) for other in others]} for chosen, others in tokens]
    return {"content": content, "refusal": None}


def _entry(token: TokenLogprob) -> dict[str, Any]:
    return {
        "token": token_text(token),
        "logprob": finite(token.logprob),
        "bytes": list(token.bytes),
        "x_token_id": token.token_id,
    }

"""OpenAI's older text completions: ``POST /v1/completions``. A prompt is continued as it is, without a template.

Several prompts are continued each by itself, as if they were sent one at a time: their answers come in the order of the
prompts, ``n`` for each. A prompt may be token ids of the model's vocabulary; it begins as a text does, with the
begin-of-text token that the server puts there, once. Control tokens are refused, because callers cannot send them. No
prompt (null) and the empty one are the beginning of a text.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, StrictInt, StrictStr, Tag, TypeAdapter

from steelyard_runtime.contracts.contract import GenerationContract, Shape
from steelyard_runtime.contracts.error_formats import OPENAI
from steelyard_runtime.contracts.limits import Limits
from steelyard_runtime.contracts.neutral import Neutral
from steelyard_runtime.contracts.openai_text import (
    MAX_INT32,
    TEXT,
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
from steelyard_runtime.contracts.validation import SETTING, Path, count, invalid
from steelyard_runtime.contracts.wire import Count, Wire
from steelyard_runtime.generation import GenerationRequest, Head, Reply, TextPrompt, TextPrompts, TokenLogprobs
from steelyard_runtime.settings import MAX_CHOICES

TokenIds = Annotated[
    list[Annotated[StrictInt, Field(ge=0, le=MAX_INT32)]], Field(min_length=1, fail_fast=True), Tag("ids")
]


_SEVERAL = Field(min_length=1, max_length=MAX_CHOICES, fail_fast=True, json_schema_extra={SETTING: "max_choices"})


def _kind_of_prompt(value: Any) -> str:
    if not isinstance(value, list):
        return "text"
    first = value[0] if value else ""
    return "ids" if isinstance(first, int | float) else "lists" if isinstance(first, list) else "texts"


class Request(SamplingFields):
    """The body of a completion."""

    prompt: (
        Annotated[
            Annotated[StrictStr, TEXT]
            | Annotated[list[StrictStr], _SEVERAL, Tag("texts")]
            | TokenIds
            | Annotated[list[TokenIds], _SEVERAL, Tag("lists")],
            Discriminator(_kind_of_prompt),
        ]
        | None
    ) = Field(
        description="The text to continue or its token ids, or a list of such prompts. Prompts times n are at most the "
        "server's max_choices."
    )
    logprobs: Annotated[StrictInt, Field(ge=0, le=5)] | None = Field(
        None, description="Report each token's log probability, and this many likeliest tokens beside it."
    )
    echo: bool | None = Field(None, description="Begin each answer with its prompt; not together with logprobs.")
    best_of: Annotated[StrictInt, Field(ge=1, le=1)] | None = Field(
        None, description="Not supported beyond 1; ask for n answers instead."
    )

    suffix: Annotated[Any, Neutral("", because="a text is continued at its end")] = None
    add_special_tokens: Annotated[Any, Neutral(True, because="a prompt begins as the model's texts do")] = None


_UNIONS: tuple[Path, ...] = (*UNIONS, ("prompt",))


def decode(body: Any, limits: Limits) -> GenerationRequest:
    """The request in a body.

    Args:
        body: Any JSON value.
        limits: How much a request may ask.

    Raises:
        Problem: UNSUPPORTED for what this server does not have, INVALID for wrong values.
    """
    if isinstance(body, dict):
        _refuse(body)
    request = parse(body, Request, limits=limits, unions=_UNIONS)
    if request.echo and request.logprobs is not None:
        raise unsupported(
            ("echo",),
            "is not supported together with logprobs: a prompt is evaluated for its last position only, and the log "
            "probabilities of its own tokens would need the logits at each; leave one of them out",
        )
    wanted = GenerationRequest(
        prompt=TextPrompts(_prompts(request.prompt), echo=bool(request.echo)),
        top_logprobs=request.logprobs,
        **sampling(request, limits=limits),
    )
    if wanted.choices > limits.max_choices:
        raise invalid(
            ("prompt",),
            f"{count(wanted.choices // wanted.n, 'prompt')} with n={wanted.n} ask for {wanted.choices} answers; one "
            f"request may have {limits.max_choices} (the server's setting max_choices)",
        )
    return wanted


def _prompts(given: str | list[str] | list[int] | list[list[int]] | None) -> tuple[TextPrompt, ...]:
    if given is None or isinstance(given, str):
        return (given or "",)
    if isinstance(given[0], int):
        return (tuple(each for each in given if isinstance(each, int)),)
    return tuple(tuple(each) if isinstance(each, list) else str(each) for each in given)


class Logprobs(Wire):
    """Four parallel lists, of the tokens of one answer; a text's offset is in characters."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]] | None
    text_offset: list[Count]


class Choice(Wire):
    """One answer."""

    index: Count
    text: str
    logprobs: Logprobs | None
    finish_reason: FinishReason | None


class Response(WholeAnswer):
    """A whole answer."""

    object: Literal["text_completion"]
    choices: list[Choice]


def encode(reply: Reply, head: Head) -> Response:
    """The body of a whole answer."""
    return {
        "id": f"cmpl-{head.id}",
        "object": "text_completion",
        **opening(head),
        "choices": [
            {
                "index": choice.index,
                "text": choice.text,
                "logprobs": _logprobs(choice.logprobs, offset=0)[0],
                "finish_reason": choice.reason,
            }
            for choice in reply.choices
        ],
        "usage": usage(reply.done),
        **provenance(head, reply.done),
    }


class CompletionChunks(Chunks):
    """The bodies of a streamed completion."""

    prefix = "cmpl"
    kind = "text_completion"

    def __init__(self, head: Head, *, n: int, include_usage: bool) -> None:
        super().__init__(head, n=n, include_usage=include_usage)
        self._offsets = [0] * n

    def _choice(self, index: int, text: str, tokens: TokenLogprobs, reason: FinishReason | None) -> Choice:
        logprobs, self._offsets[index] = _logprobs(tokens, offset=self._offsets[index])
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}


def _refuse(body: dict[str, Any]) -> None:
    best_of = body.get("best_of")
    if isinstance(best_of, int) and not isinstance(best_of, bool) and best_of != 1:
        raise unsupported(("best_of",), "is not supported; ask for n answers and choose among them")


def _logprobs(tokens: TokenLogprobs, *, offset: int) -> tuple[Logprobs | None, int]:
    """The four parallel lists of the older shape, and where the next token's text begins, in characters."""
    if not tokens:
        return None, offset
    texts = [token_text(chosen) for chosen, _ in tokens]
    offsets = []
    for chosen, _ in tokens:
        offsets.append(offset)
        # Continuation bytes belong to a character that an earlier token began.
        offset += sum(byte & 0xC0 != 0x80 for byte in chosen.bytes)
    wanted = any(others for _, others in tokens)
    top = [{token_text(token): finite(token.logprob) for token in (chosen, *others)} for chosen, others in tokens]
    return {
        "tokens": texts,
        "token_logprobs": [finite(chosen.logprob) for chosen, _ in tokens],
        "top_logprobs": top if wanted else None,
        "text_offset": offsets,
    }, offset


CONTRACT = GenerationContract(
    name="openai_completions",
    prefix="Completions",
    paths={"/v1/completions": "Continue a text"},
    shape=Shape(title="completion", example="{'prompt': ...}", fields=("prompt",)),
    request=Request,
    answer=TypeAdapter(Response),
    errors=OPENAI,
    decode=decode,
    encode=encode,
    chunks=CompletionChunks,
)
